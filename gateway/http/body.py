"""Bodies of HTTP/1 messages, however they arrive in pieces. Pure.

`feed` returns the payload within the bytes given; after the end `done` is set and `excess` has what came behind it.
"""

import re
from typing import Protocol

from gateway.http.errors import malformed
from gateway.http.head import END

MAX_LINE = 1024
"""Of a chunk's size with its extensions, which mean nothing to anybody."""
MAX_TRAILERS = 8 << 10

_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?")
_SIZES = {b"%x" % size: size for size in range(1, 4096)}
_LAST = b"0\r\n\r\n"
_TRAILERS = re.compile(rb"(?>\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]++:[^\x00-\x08\x0a-\x1f\x7f]*+)*+")


class Body(Protocol):
    done: bool
    excess: bytes

    def feed(self, data: bytes) -> bytes:
        """Raises HttpError."""


class Fixed:
    __slots__ = ("_left", "done", "excess")

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0
        self.excess = b""

    def feed(self, data: bytes) -> bytes:
        left = self._left
        if len(data) < left:
            self._left = left - len(data)
            return data
        self._left, self.done = 0, True
        if len(data) == left:
            return data
        self.excess = data[left:]
        return data[:left]


class UntilClose:
    __slots__ = ("done", "excess")

    def __init__(self) -> None:
        self.done = False
        self.excess = b""

    def feed(self, data: bytes) -> bytes:
        return data


class Chunked:
    __slots__ = ("_between", "_held", "_in_trailers", "_left", "_needs_line_end", "done", "excess")

    def __init__(self) -> None:
        self._held = b""
        """Of a line that isn't whole yet."""
        self._left = 0
        """Of the chunk's payload."""
        self._needs_line_end = False
        self._in_trailers = False
        self._between = True
        """What comes next is the line with a chunk's size."""
        self.done = False
        self.excess = b""

    def feed(self, data: bytes) -> bytes:
        if self._between and data.endswith(b"\r\n"):
            # One chunk, whole: what a replica sends for each token.
            size, _, rest = data.partition(b"\r\n")
            if _SIZES.get(size) == len(rest) - 2:
                return rest[:-2]
            if (payload := self._whole_chunks(data)) is not None:
                return payload
        payload = self._feed(data)
        self._between = not (self._held or self._left or self._needs_line_end or self._in_trailers)
        return payload

    def _feed(self, data: bytes) -> bytes:
        if self._held:
            data, self._held = self._held + data, b""
        at, size = 0, len(data)
        pieces = []
        while at < size:
            if self._left:
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                self._needs_line_end = not self._left
            elif self._needs_line_end:
                if data[at : at + 2] != b"\r\n":
                    if size - at > 1 or data[at] != 13:
                        raise malformed("a chunk of the body doesn't end where its size says")
                    self._held = data[at:]
                    break
                at += 2
                self._needs_line_end = False
            elif self._in_trailers:
                self._end(data[at:])
                break
            else:
                end = data.find(b"\r\n", at)
                if end < 0:
                    self._hold(data[at:])
                    break
                self._begin_chunk(data[at:end])
                # NOTE: the empty line behind the trailers is looked for from the CR LF before them on.
                at = end if self._in_trailers else end + 2
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _hold(self, line: bytes) -> None:
        if len(line) > MAX_LINE or b"\n" in line:
            raise malformed("the size of a chunk must stand on a line that ends in CR LF")
        self._held = line

    def _begin_chunk(self, line: bytes) -> None:
        found = _SIZE.fullmatch(line)
        if found is None or len(line) > MAX_LINE:
            raise malformed("the size of a chunk isn't a hexadecimal number")
        self._left = int(found.group(1), 16)
        self._in_trailers = not self._left

    def _end(self, data: bytes) -> None:
        """Trailers are dropped."""
        end = data.find(END, 0, MAX_TRAILERS)
        if end < 0:
            if len(data) >= MAX_TRAILERS:
                raise malformed("the body's trailers are too long")
            self._held = data
            return
        if end and _TRAILERS.fullmatch(data, 0, end) is None:
            raise malformed("a trailer of the body is malformed")
        self.done, self.excess = True, data[end + len(END) :]

    def _whole_chunks(self, data: bytes) -> bytes | None:
        """The payload of bytes that are nothing but short chunks without CR LF in them: many events that came in one
        read, the body's end among them. None: they aren't."""
        is_last = data.endswith(_LAST)
        lines = (data[: -len(_LAST)] if is_last else data).split(b"\r\n")
        payloads = lines[1::2]
        # Behind the last CR LF there is one line more, the empty one.
        if lines.pop() or list(map(_SIZES.get, lines[::2])) != list(map(len, payloads)):
            return None
        self.done = is_last
        return b"".join(payloads)
