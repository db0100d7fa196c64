"""A fixed text through the tokenizer, the chat template and the hashing, so that two sides that should agree do.

Fingerprints compare files; this compares what comes of them: another version of the tokenizer's library, a template's
engine that differs, a memo that cuts wrongly. Each of those would mean no hit, for ever, and in silence.
"""

from collections.abc import Callable
from typing import Any, TypedDict

import xxhash

from replica.protocol.hashing import BLOCK_SIZE, block_hashes, pack_tokens
from replica.protocol.records import pack_hashes
from replica.protocol.text import ModelText, TemplateError

_TEXT = """\
The hotel's lift is 90 cm wide, its ramp rises 1:12 over 7.25 m; rooms 101-117 cost 12,345.67 a night (+10 %).
Où est l'ascenseur ? Größe, façade, naïve, Ærø, “quotes” — and an ellipsis… e\u0301 composed of two.
車椅子で入れますか。 휠체어로 들어갈 수 있나요? Доступен ли вход? هل المدخل متاح؟
👩‍🦽 🦮 ♿️ 👨‍👩‍👧‍👦 🇫🇷 and 1️⃣
def widest(doors: dict[str, float]) -> float:
\treturn max(doors.values(), default=0.0)  # 0x1F, 1e-9, a_b != aB

    {"ramp": true, "rooms": [101, 102], "path": "C:\\\\inn\\\\#3"}\r\n  trailing blanks   """

_SYSTEM = "You are a travel assistant for accessible hotels. Answer in one sentence."
_DATE = "2026-01-01"
"""Templates may ask for today's date, which two sides needn't agree on."""


class Fingerprints(TypedDict):
    """What a heartbeat tells of its replica's text side, by the names of its fields."""

    model_fingerprint: str
    tokenizer_fingerprint: str
    template_fingerprint: str
    canary_plain: str
    """Of a raw completion prompt."""
    canary_chat: str
    """Of a chat; empty where the model has no template."""


def fingerprints(text: ModelText, encode_chat: Callable[[str], list[int]] | None = None) -> Fingerprints:
    """`encode_chat`: how rendered chats are tokenised, if not by the text's own."""
    encode = encode_chat or text.encode_chat
    rendered = _rendered(text)
    return Fingerprints(
        model_fingerprint=text.model_fingerprint,
        tokenizer_fingerprint=text.tokenizer_fingerprint,
        template_fingerprint=text.template_fingerprint,
        canary_plain=_digest(text.encode_plain(_TEXT)),
        canary_chat="" if rendered is None else _digest(encode(rendered)),
    )


def _rendered(text: ModelText) -> str | None:
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": _TEXT},
        {"role": "assistant", "content": "Yes, there is a ramp."},
        {"role": "user", "content": _TEXT[:300]},
    ]
    fixed = {"strftime_now": lambda pattern: _DATE}
    # Some templates refuse a system prompt.
    for messages in ([{"role": "system", "content": _SYSTEM}, *turns], turns):
        try:
            return text.render(messages, variables=fixed)
        except TemplateError:
            continue
    return None


def _digest(tokens: list[int]) -> str:
    """Of all block hashes, and of the tokens of the last, partial block."""
    hashes = block_hashes(tokens, namespace=0)
    rest = tokens[len(hashes) * BLOCK_SIZE :]
    return xxhash.xxh3_64_hexdigest(pack_hashes(hashes) + pack_tokens(rest))
