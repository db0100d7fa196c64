"""From token ids to text, piece by piece: whole characters only, and nothing of a stop string."""

import codecs
import functools
from collections.abc import Sequence
from typing import Protocol

from tokenizers import Tokenizer, decoders

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_HELD_TOKENS = 4
"""A UTF-8 character has at most 4 bytes and a token at least one: more tokens than that are no unfinished character."""


class Detokenizer(Protocol):
    """The joined pieces are the text of all tokens. An unfinished character is held back until it is whole, or until
    the end."""

    def push(self, token: int) -> str: ...
    def flush(self) -> str: ...


def make_detokenizer(tokenizer: Tokenizer) -> Detokenizer:
    if isinstance(tokenizer.decoder, decoders.ByteLevel):
        return ByteLevelDetokenizer(tokenizer)
    return WindowDetokenizer(tokenizer)


class ByteLevelDetokenizer:
    """Exact: each token of a byte-level tokenizer is some bytes, and bytes are decoded as they come."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = _special_token_ids(tokenizer)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        piece = None if token in self._special else self._tokenizer.id_to_token(token)
        return "" if piece is None else self._decoder.decode(_bytes_of(piece))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any tokenizer: decodes a window of recent tokens with and without the new ones and emits the difference, as a
    token's text may depend on the ones before it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._window = 0
        self._emitted = 0

    def push(self, token: int) -> str:
        self._tokens.append(token)
        text = self._new_text()
        held = len(self._tokens) - self._emitted
        if text.endswith(_REPLACEMENT) and held < _MAX_HELD_TOKENS:
            return ""
        return self._emit(text)

    def flush(self) -> str:
        return self._emit(self._new_text())

    def _new_text(self) -> str:
        before = self._decode(self._tokens[self._window : self._emitted])
        after = self._decode(self._tokens[self._window :])
        return after[len(before) :]

    def _emit(self, text: str) -> str:
        if self._emitted < len(self._tokens):
            self._window = self._emitted
            self._emitted = len(self._tokens)
        return text

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


def _special_token_ids(tokenizer: Tokenizer) -> frozenset[int]:
    return frozenset(number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special)


@functools.cache
def _byte_alphabet() -> dict[str, int]:
    """The character that byte-level tokenizers write for each byte (GPT-2's table): printable Latin-1 characters stand
    for themselves, the other bytes for the characters from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _bytes_of(piece: str) -> bytes:
    """Tokens added to the vocabulary by hand are plain text."""
    alphabet = _byte_alphabet()
    if all(character in alphabet for character in piece):
        return bytes(alphabet[character] for character in piece)
    return piece.encode()


class StopChecker:
    """Cuts the text at the first stop string and holds back a tail that may yet become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """What may go out now. After a stop nothing more does."""
        if self.stopped or not self._stops:
            return "" if self.stopped else text
        text = self._held + text
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[len(text) - n :])), 0)
