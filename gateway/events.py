"""The rules by which a replica's server-sent events go on to a client. Pure: bytes in, bytes out."""

import re
from collections.abc import Callable

from replica.protocol import headers

DONE = b"data: [DONE]\n\n"
HELD_BACK_MAX = 1 << 16

_DONE = re.compile(rb"\[DONE\]\r?\n\r?\n")
"""NOTE: begins with what is rare. A pattern that begins with a line's start is tried at every byte, which took a fifth
of the CPU of a whole stream that came in one read."""


class EventRelay:
    """One client's stream, up to `[DONE]`, which it gets once, whatever the replicas do with it.

    A last event that is still incomplete is held back, so that what follows a break is never glued to half of one.
    """

    __slots__ = ("_held", "begun", "between_events", "delivered", "done", "rewrite")

    def __init__(self) -> None:
        self._held = b""
        self.begun = False
        """Whether an event has gone to the client, comments included."""
        self.done = False
        self.delivered: int | None = None
        """Tokens from the replica's cache, where it told them in a comment."""
        self.between_events = True
        """Whether something else may be put in here."""
        self.rewrite: Callable[[bytes], bytes] | None = None
        """Sees all whole events before the client does, `[DONE]` excepted, and returns what goes on."""

    def feed(self, data: bytes) -> bytes:
        """What may go to the client now."""
        if self.done:
            return b""
        if self._held:
            data, self._held = self._held + data, b""
        if not data.endswith(b"\n\n"):
            data = self._whole_part(data)
        else:
            self.between_events = True
            if b"[DONE]" not in data:
                self.begun = True
                return data if self.rewrite is None else self.rewrite(data)
        if b"[DONE]" in data and (start := find_done(data)) >= 0:
            self.done = True
            rest, self.delivered = without_comment(data[:start])
            return self._passed(rest) + DONE
        return self._passed(data)

    def end(self) -> bytes:
        """The replica's answer has come to its proper end."""
        if self.done:
            return b""
        self.done = True
        held, self._held = self._held, b""
        return (self._passed(held + b"\n\n") if held else b"") + DONE

    def break_off(self, event: bytes) -> bytes:
        """The stream ends with an error event."""
        self.done = True
        return (b"" if self.between_events else b"\n\n") + b"data: " + event + b"\n\n" + DONE

    def go_on(self) -> None:
        """What comes now is from another answer: half an event of the one before is dropped."""
        self._held = b""

    def _passed(self, events: bytes) -> bytes:
        if not events:
            return b""
        self.begun = True
        return events if self.rewrite is None else self.rewrite(events)

    def _whole_part(self, data: bytes) -> bytes:
        end = data.rfind(b"\n\n") + 2
        if b"\n\r\n" in data:
            end = max(end, data.rfind(b"\n\r\n") + 3)
        if end < 2:
            end = 0
        if len(data) - end > HELD_BACK_MAX:
            self.between_events = False
            return data
        self._held = data[end:]
        if end:
            self.between_events = True
        return data[:end]


def find_done(data: bytes) -> int:
    """Where the event `[DONE]` begins; -1: nowhere."""
    for found in _DONE.finditer(data):
        start = data.rfind(b"\n", 0, found.start()) + 1
        if data[start : found.start()] in (b"data: ", b"data:"):
            return start
    return -1


def without_comment(events: bytes) -> tuple[bytes, int | None]:
    """What comes before `[DONE]`, and the number of delivered tokens that may stand just there."""
    start = events.rfind(b"\n", 0, -1) + 1
    line = events[start:]
    if not line.startswith(headers.DELIVERED_COMMENT):
        return events, None
    number = line.removeprefix(headers.DELIVERED_COMMENT).strip()
    return events[:start], int(number) if number.isdigit() and len(number) < 10 else None
