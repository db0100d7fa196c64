"""Server-sent events from bytes that are cut anywhere."""


class EventParser:
    """Feed chunks as they come; each call returns the data of the events that became complete."""

    def __init__(self) -> None:
        self._buffer = b""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[str]:
        """Lines end with \\n or \\r\\n; `data:` lines of one event are joined by newlines; all else is skipped."""
        events = []
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[len(b"data:") :].removeprefix(b" ").decode())
            elif not line and self._data:
                events.append("\n".join(self._data))
                self._data = []
        return events
