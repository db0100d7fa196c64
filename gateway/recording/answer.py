"""How many tokens an answer has, from the bytes that pass by. Pure.

A quote within a JSON string is escaped, so nothing that a model says looks like what is searched for here.
"""

import re

_NAME = b'"completion_tokens":'
_NUMBER = re.compile(rb" ?(\d{1,9})")
_CHUNK = b'"finish_reason":null'
"""Every chunk but the last of each choice: one a token, unless several came at once."""
_TAIL_BYTES = 2048
"""The usage comes last, just before `[DONE]`, which may come by itself."""


class AnswerCount:
    """Feed it a stream's events, or a whole answer, as they go to the client."""

    chunks = 0
    _last = b""
    """What was fed last."""
    _before = b""
    """And before that."""

    def feed(self, data: bytes) -> None:
        self.chunks += data.count(_CHUNK)
        self._before = self._last
        self._last = data if len(data) <= _TAIL_BYTES else data[-_TAIL_BYTES:]

    @property
    def is_stream(self) -> bool:
        return self.chunks > 0

    @property
    def told(self) -> int | None:
        """As the usage says, where the client has asked for it or got a whole answer."""
        tail = self._before + self._last
        at = tail.rfind(_NAME)
        if at < 0:
            return None
        found = _NUMBER.match(tail, at + len(_NAME))
        return int(found[1]) if found else None

    @property
    def tokens(self) -> int:
        told = self.told
        return self.chunks if told is None else told
