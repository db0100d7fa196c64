"""Prompts to token ids and block hashes: what is remembered at once, the rest in threads, off the event loop.

Special tokens cut text exactly, so each segment between two of them is tokenised once and remembered: a long shared
system prompt or an earlier turn costs one look-up. Whether a tokenizer really cuts exactly is tried at start-up.
"""

import asyncio
import functools
import logging
import re
import sys
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from gateway.public_prompts import PublicPrompts, public_tokens
from replica.protocol.checks import check_length, check_tokens
from replica.protocol.hashing import block_hashes, chain_of, namespace_hash
from replica.protocol.openai import RequestError
from replica.protocol.text import ModelText, TemplateError

log = logging.getLogger(__name__)

NAMESPACES = 4096
"""Salts whose hashes are remembered."""

MEMO_BYTES = 64 << 20
INLINE_RENDERED = 64 << 10
"""Characters of messages that are rendered, and looked up by segment, on the event loop: 1 ms."""
INLINE_NEW = 1024
"""Characters that are tokenised there: 0.5 ms, where going to a thread and back costs 0.2 ms and waits for a turn."""
ENTRY_OVERHEAD = 200
"""Bytes of the memo's own book-keeping for a segment."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Prompt:
    tokens: list[int]
    hashes: "array[int]"
    """Of 64 bits each, as the index takes them without converting."""
    public_tokens: int = 0
    """The first ones, which all tenants share; see public_prompts.py."""


class SegmentMemo:
    """Token ids by segment, least recently used first out, bounded by bytes. Safe to share between threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[str, array[int]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, segment: str) -> "array[int] | None":
        with self._lock:
            ids = self._entries.get(segment)
            if ids is not None:
                self._entries.move_to_end(segment)
            return ids

    def put(self, segment: str, ids: "array[int]") -> None:
        size = _entry_bytes(segment, ids)
        if size > self._max_bytes:
            return
        with self._lock:
            if segment in self._entries:
                return
            self._entries[segment] = ids
            self._bytes += size
            while self._bytes > self._max_bytes:
                self._bytes -= _entry_bytes(*self._entries.popitem(last=False))


def _entry_bytes(segment: str, ids: "array[int]") -> int:
    return sys.getsizeof(segment) + len(ids) * ids.itemsize + ENTRY_OVERHEAD


class SegmentEncoder:
    """Rendered chat text to token ids, segment by segment."""

    def __init__(self, text: ModelText, memo: SegmentMemo) -> None:
        self._text = text
        self._memo = memo
        # Longest first: where one special token begins another, the tokenizer prefers the longer.
        by_length = sorted(filter(None, text.special_tokens), key=len, reverse=True)
        ids = {special: text.tokenizer.token_to_id(special) for special in by_length}
        self._ids = {special: token for special, token in ids.items() if token is not None}
        self._split = re.compile("(" + "|".join(map(re.escape, self._ids)) + ")") if self._ids else None
        self.exact = self._is_exact()
        if not self.exact:
            log.warning("the tokenizer of %s doesn't split exactly at special tokens: no memo by segment", text.name)

    def encode(self, rendered: str) -> list[int]:
        return self._by_segment(rendered) if self.exact else self._text.encode_chat(rendered)

    def encode_known(self, rendered: str, max_new: int) -> list[int] | None:
        """The same, if no more than so many characters of it must be tokenised anew."""
        if not self.exact:
            return None
        pieces = self._split.split(rendered) if self._split else [rendered]
        tokens: list[int] = []
        for piece in pieces:
            if not piece:
                continue
            special = self._ids.get(piece)
            if special is not None:
                tokens.append(special)
                continue
            ids = self._memo.get(piece)
            if ids is None:
                max_new -= len(piece)
                if max_new < 0:
                    return None
                ids = self._segment(piece)
            tokens.extend(ids)
        return tokens

    def _by_segment(self, rendered: str) -> list[int]:
        tokens: list[int] = []
        pieces = self._split.split(rendered) if self._split else [rendered]
        for piece in pieces:
            special = self._ids.get(piece)
            if special is not None:
                tokens.append(special)
            elif piece:
                tokens.extend(self._segment(piece))
        return tokens

    def _segment(self, segment: str) -> "array[int]":
        ids = self._memo.get(segment)
        if ids is None:
            ids = array("I", self._text.encode_chat(segment))
            self._memo.put(segment, ids)
        return ids

    def _is_exact(self) -> bool:
        return all(self._by_segment(sample) == self._text.encode_chat(sample) for sample in _corpus(self._ids))


def _corpus(specials: Iterable[str]) -> list[str]:
    """Texts on which tokenizers that don't cut exactly have been seen to differ."""
    texts = [
        "Hello",
        " leading space",
        "trailing space ",
        "\n\nlines\n",
        "  ",
        "",
        "naïve façade — “quotes”…",
        "日本語のテキスト と 한국어",
        "emoji 👩‍👩‍👧‍👦 🇫🇷 and e\u0301 combining",
        "\u200b\ufeff\u00a0odd spaces\u3000",
        "a" * 300,
        "12345.678e-9 x=[1,2]; // code\tTab",
    ]
    specials = list(specials)
    first = specials[0] if specials else ""
    samples = list(texts)
    for special in specials:
        samples += [special + text + special for text in texts]
        samples += [f"word{special} word {special}{special}{first}\n{special}"]
    return samples


class PromptTokenizer:
    """Close it when done: it owns threads."""

    def __init__(self, text: ModelText, threads: int, memo_bytes: int = MEMO_BYTES) -> None:
        self._text = text
        self._namespace = functools.lru_cache(NAMESPACES)(self._namespace_of)
        self.memo = SegmentMemo(memo_bytes)
        self.encoder = SegmentEncoder(text, self.memo)
        self.public = PublicPrompts()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tokenise")

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def chat(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = (), salt: str | None = None
    ) -> Prompt:
        """Raises RequestError where the chat template refuses the messages."""
        if sum([len(message["content"]) for message in messages]) > INLINE_RENDERED or tools:
            return await self.in_thread(lambda: self._prompt(self.encoder.encode(self._render(messages, tools)), salt))
        rendered = self._render(messages, tools)
        known = self.encoder.encode_known(rendered, INLINE_NEW)
        if known is not None:
            return self._prompt(known, salt)
        return await self.in_thread(lambda: self._prompt(self.encoder.encode(rendered), salt))

    async def completion(self, prompt: str | list[int], salt: str | None = None) -> Prompt:
        """Raises RequestError for token ids outside the vocabulary."""
        if len(prompt) <= INLINE_NEW:
            return self._prompt(self._encode_completion(prompt), salt)
        return await self.in_thread(lambda: self._prompt(self._encode_completion(prompt), salt))

    def public_prompts(self, prompts: Iterable[str]) -> PublicPrompts:
        """These system prompts, at the head of chats and of plain prompts. Raises TemplateError."""
        rows = []
        for prompt in prompts:
            rows.append(public_tokens(functools.partial(self._plain_below, prompt)))
            if self._text.template is not None:
                rows.append(public_tokens(functools.partial(self._chat_below, prompt)))
        return PublicPrompts(rows)

    def _plain_below(self, prompt: str, question: str) -> list[int]:
        return self._text.encode_plain(prompt + question)

    def _chat_below(self, prompt: str, question: str) -> list[int]:
        system, user = {"role": "system", "content": prompt}, {"role": "user", "content": question}
        return self.encoder.encode(self._text.render([system, user]))

    async def in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _render(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> str:
        try:
            rendered = self._text.render(messages, tools)
        except TemplateError as error:
            raise RequestError(str(error), param="messages", code="invalid_value") from error
        check_length(rendered, self._text, "messages")
        return rendered

    def _encode_completion(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            check_length(prompt, self._text, "prompt")
            return self._text.encode_plain(prompt)
        check_tokens(prompt, self._text.vocab_size, "prompt")
        return prompt

    def _prompt(self, tokens: list[int], salt: str | None) -> Prompt:
        if not tokens:
            raise RequestError("the prompt has no tokens", code="invalid_value")
        public = 0 if salt is None else self.public.tokens_of(tokens)
        return Prompt(tokens, array("Q", block_hashes(tokens, *chain_of(self._namespace, salt, public))), public)

    def _namespace_of(self, salt: str | None) -> int:
        text = self._text
        return namespace_hash(model=text.model_fingerprint, tokenizer=text.tokenizer_fingerprint, salt=salt or "")
