"""From token ids to text, piece by piece: whole characters only, and nothing of a stop string."""

import codecs
from collections.abc import Sequence
from typing import Protocol

from tokenizers import Tokenizer, decoders

from replica.token_bytes import bytes_of, special_token_ids

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_UNFINISHED = 3
"""Bytes of a UTF-8 character that isn't finished: as many tokens at most, and replacement characters."""
_MAX_WINDOW = 64
_MIN_WINDOW = 16


class Detokenizer(Protocol):
    """The joined pieces are the text of all tokens. An unfinished character is held back until it is whole, or until
    the end."""

    def push(self, token: int) -> str: ...
    def flush(self) -> str: ...


def make_detokenizer(tokenizer: Tokenizer, skip_special: bool = True) -> Detokenizer:
    if isinstance(tokenizer.decoder, decoders.ByteLevel):
        return ByteLevelDetokenizer(tokenizer, skip_special)
    return WindowDetokenizer(tokenizer, skip_special)


class ByteLevelDetokenizer:
    """Exact: each token of a byte-level tokenizer is some bytes, and bytes are decoded as they come."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._special = special_token_ids(tokenizer) if skip_special else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        piece = None if token in self._special else self._tokenizer.id_to_token(token)
        return "" if piece is None else self._decoder.decode(bytes_of(piece))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any tokenizer: decodes a window of recent tokens and emits what is new in its text, as a token's text may
    depend on the ones before it. Replacement characters at its end may stand for an unfinished character; all before
    them is final."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._special = special_token_ids(tokenizer) if skip_special else frozenset()
        self._tokens: list[int] = []
        self._whole = 0
        """Tokens up to the last place between two characters."""
        self._emitted = 0
        """Characters of the window's text."""

    def push(self, token: int) -> str:
        # A token without text is no context for the next one.
        if token in self._special or self._tokenizer.id_to_token(token) is None:
            return ""
        self._tokens.append(token)
        text = self._decode()
        held = len(text) - len(text.rstrip(_REPLACEMENT))
        if len(self._tokens) - self._whole > _MAX_UNFINISHED:
            held = min(held, _MAX_UNFINISHED)
        piece = self._emit(text, len(text) - held)
        if held == 0:
            self._forget(self._whole, held)
            self._whole = len(self._tokens)
        elif len(self._tokens) > _MAX_WINDOW:
            # Invalid bytes without end. An unfinished character begins within the last three tokens.
            self._forget(len(self._tokens) - _MIN_WINDOW, held)
            self._whole = 0
        return piece

    def flush(self) -> str:
        text = self._decode()
        return self._emit(text, len(text))

    def _emit(self, text: str, end: int) -> str:
        start, self._emitted = self._emitted, max(self._emitted, end)
        return text[start:end]

    def _forget(self, num_tokens: int, held: int) -> None:
        del self._tokens[:num_tokens]
        self._emitted = len(self._decode()) - held

    def _decode(self) -> str:
        return str(self._tokenizer.decode(self._tokens, skip_special_tokens=False))


class StopChecker:
    """Cuts the text before the stop string that is complete first (of several that end at once, the longest), so that
    the answer doesn't depend on how it comes in pieces. Holds back a tail that may yet become one."""

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        """With `include` the stop string itself goes out."""
        self._stops = stops
        self._include = include
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """What may go out now. After a stop nothing more does."""
        if self.stopped or not self._stops:
            return "" if self.stopped else text
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            end, at = min(found)
            return text[: end if self._include else at]
        keep = max(overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[len(text) - n :])), 0)
