"""How far a client's stream has come, so that another replica can go on with it. Pure: bytes in, bytes out.

See replica/protocol/resume.py for what replicas write before each event.
"""

import re
from collections.abc import Mapping
from typing import Any

from replica.protocol import headers
from replica.protocol.resume import USAGE_MARK, Begun, Told, read_marks

_MARK = re.compile(rb"\n\n(:[^\n]*\n(?!\n))")
"""With the end of the event before. NOTE: begins with what can be searched for as it is."""


class Progress:
    """Of one answer, over all attempts at it."""

    __slots__ = ("_cached_tokens", "_choices", "_id", "_marks", "_wants_usage", "header", "shown")

    def __init__(self, begun: Begun, choices: int, wants_usage: bool) -> None:
        self.header = begun.encode()
        """Goes with every attempt."""
        self._choices = choices
        self._wants_usage = wants_usage
        self._marks = bytearray()
        self._id: str | None = None
        self._cached_tokens = 0
        self.shown: dict[int, Told] | None = None
        """By choice, as of the last `stop`; None: it can't be gone on with."""

    def begin(self, given: Mapping[str, str], request_id: str) -> bool:
        """An answer begins that has these headers; whether it may be gone on with, and has marks to be taken out."""
        if headers.RESUMABLE not in given:
            return False
        if self._id is None:
            self._id = given.get(headers.REQUEST_ID, request_id)
            raw = given.get(headers.DELIVERED_TOKENS, "")
            self._cached_tokens = int(raw) if raw.isascii() and raw.isdigit() and len(raw) < 10 else 0
        return True

    def take_marks(self, events: bytes) -> bytes:
        """Whole events as they came; what goes to the client. Mostly one event: a search and two slices."""
        if not events.startswith(b":"):
            return events
        if events.find(b"\n\n:") < 0:
            end = events.find(b"\n") + 1
            self._marks += events[:end]
            return events[end:]
        parts = _MARK.split(b"\n\n" + events)
        self._marks += b"".join(parts[1::2])
        return b"\n\n".join(parts[::2])[2:]

    def stop(self) -> None:
        """The answer has broken off: reads what was told of it."""
        lines = bytes(self._marks).splitlines(keepends=True)
        self.shown = read_marks(lines) if self._id is not None else None
        if self.shown is not None and any(index >= self._choices for index in self.shown):
            self.shown = None

    @property
    def tokens(self) -> int:
        """That the client has been shown, as of the last `stop`."""
        return sum(len(told.token_ids) for told in (self.shown or {}).values())

    @property
    def is_whole(self) -> bool:
        """Nothing but `[DONE]` is missing."""
        if self.shown is None or (self._wants_usage and not self._marks.endswith(USAGE_MARK)):
            return False
        return len(self.shown) == self._choices and all(told.finished for told in self.shown.values())

    def field(self) -> dict[str, Any]:
        """What the next request has besides: nothing where nothing was shown."""
        if not self.shown:
            return {}
        choices = [self.shown.get(index, Told()) for index in range(self._choices)]
        return {
            "resume": {
                "id": self._id,
                "cached_tokens": self._cached_tokens,
                "choices": [{"token_ids": told.token_ids, "finished": told.finished} for told in choices],
            }
        }
