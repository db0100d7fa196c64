"""From token ids to text, piece by piece: whole characters only, and nothing of a stop string."""

from collections.abc import Sequence

from tokenizers import Tokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_HELD_TOKENS = 4
"""A UTF-8 character has at most 4 bytes and a token at least one: more tokens than that are no unfinished character."""


class Detokenizer:
    """Decodes a window of recent tokens twice, with and without the new ones, and emits the difference: a token's text
    may depend on the ones before it. Text that ends in an unfinished character is held back."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._window = 0
        self._emitted = 0

    def push(self, tokens: Sequence[int]) -> str:
        self._tokens.extend(tokens)
        text = self._new_text()
        held = len(self._tokens) - self._emitted
        if text.endswith(_REPLACEMENT) and held < _MAX_HELD_TOKENS:
            return ""
        return self._emit(text)

    def flush(self) -> str:
        """What is still held, at the end of the answer."""
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
