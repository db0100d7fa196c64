"""What a replica must agree with before its digest means anything here."""

from collections.abc import Callable
from dataclasses import dataclass

from replica.protocol.canary import fingerprints
from replica.protocol.hashing import BLOCK_SIZE, HASH_VERSION
from replica.protocol.records import Heartbeat
from replica.protocol.text import ModelText

CANARY = "canary"
KINDS = ("model", "tokenizer", "chat_template", "block_size", "hash_version", CANARY)
"""Of differences, as the metric's label."""


@dataclass(frozen=True, slots=True)
class Difference:
    kind: str
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Identity:
    model_fingerprint: str
    tokenizer_fingerprint: str
    template_fingerprint: str = ""
    canary_plain: str = ""
    canary_chat: str = ""

    @classmethod
    def of(cls, text: ModelText, encode_chat: Callable[[str], list[int]]) -> "Identity":
        """`encode_chat`: as the gateway will tokenise rendered chats."""
        return cls(**fingerprints(text, encode_chat))

    def differences(self, heartbeat: Heartbeat) -> tuple[Difference, ...]:
        """Where everything that has a name is equal, and yet a fixed text comes out otherwise, that is said."""
        named = (
            ("model", "model fingerprint", self.model_fingerprint, heartbeat.model_fingerprint),
            ("tokenizer", "tokenizer fingerprint", self.tokenizer_fingerprint, heartbeat.tokenizer_fingerprint),
            ("chat_template", "chat template fingerprint", self.template_fingerprint, heartbeat.template_fingerprint),
            ("block_size", "block size", BLOCK_SIZE, heartbeat.block_size),
            ("hash_version", "hash version", HASH_VERSION, heartbeat.hash_version),
        )
        canaries = (
            (CANARY, "hash of a fixed prompt", self.canary_plain, heartbeat.canary_plain),
            (CANARY, "hash of a fixed chat", self.canary_chat, heartbeat.canary_chat),
        )
        return _unequal(named) or _unequal(canaries)


def _unequal(compared: tuple[tuple[str, str, object, object], ...]) -> tuple[Difference, ...]:
    return tuple(
        Difference(kind, f"{name} {theirs or 'not told'}, here {ours}")
        for kind, name, ours, theirs in compared
        if ours != theirs
    )
