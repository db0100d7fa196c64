"""One request on a connection of our own server, and its reply."""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

from gateway.http.body import Body, Chunked, Fixed
from gateway.http.errors import HttpError
from gateway.http.exchange import Flow
from gateway.http.head import RequestHead

if TYPE_CHECKING:
    from gateway.http.connection import ClientConnection

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_ALL_THERE = Fixed(0)
"""Of a body that nothing is fed to any more."""


class LeanExchange:
    """See `exchange.Exchange`."""

    __slots__ = (
        "_connection",
        "_parts",
        "_waiter",
        "body_error",
        "chunked",
        "ended",
        "flow",
        "head",
        "headers",
        "incoming",
        "keep_alive",
        "method",
        "more_headers",
        "path",
        "pending",
        "received",
        "started_at",
        "status",
        "task",
    )

    def __init__(self, connection: "ClientConnection", head: RequestHead, whole: bytes | None = None) -> None:
        """`whole`: the body, where it came in one piece with its head."""
        self._connection = connection
        self.head = head
        self.method, self.path, self.headers = head.method, head.path, head.headers
        self._parts: list[bytes] = []
        self.incoming: Body
        if whole is not None:
            self.incoming = _ALL_THERE
            self._parts.append(whole)
        else:
            self.incoming = Chunked() if head.length is None else Fixed(head.length)
        self.received = 0
        """Bytes of a body that comes in pieces."""
        self._waiter: asyncio.Future[None] | None = None
        self.body_error: HttpError | None = None
        self.keep_alive = head.keep_alive
        self.status = 0
        self.chunked = False
        self.pending = b""
        """The reply's head, until something goes with it."""
        self.ended = False
        self.more_headers: Mapping[str, str] = {}
        self.flow: Flow | None = None
        self.task: asyncio.Task[None] | None = None
        self.started_at = 0.0
        """Of a body that comes in pieces."""

    @property
    def remote(self) -> str | None:
        return self._connection.remote

    # The request's body.

    def feed(self, data: bytes, limit: int) -> None:
        """Raises HttpError."""
        payload = self.incoming.feed(data)
        if payload:
            self.received += len(payload)
            if self.received > limit:
                raise HttpError(413, "body_too_large", f"the body may have {limit} bytes")
            self._parts.append(payload)
        if self.incoming.done:
            self._wake()

    def break_off(self, error: HttpError) -> None:
        """The body can't be had."""
        self.body_error = error
        # What follows it isn't known to be the next request.
        self.keep_alive = False
        self._wake()

    async def body(self) -> bytes:
        if not self.incoming.done and not self.received and self.body_error is None and self._wants_continue:
            self._connection.transport.write(_CONTINUE)
        # One that is too long by what came last is refused, and done nonetheless.
        while not self.incoming.done or self.body_error is not None:
            if self.body_error is not None:
                raise self.body_error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.whole_body()

    @property
    def _wants_continue(self) -> bool:
        return self.head.minor == 1 and self.headers.get("expect", "").lower() == "100-continue"

    def whole_body(self) -> bytes:
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # The reply.

    def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        if self.status:
            raise RuntimeError("the reply has begun already")
        head = self._head(status, headers, f"content-length: {len(body)}\r\n")
        self.status = status
        self._connection.write(head if self.method == "HEAD" else head + body)
        self.ended, self.flow = True, None

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        if self.status:
            raise RuntimeError("the reply has begun already")
        self.chunked = self.head.minor == 1
        if not self.chunked:
            self.keep_alive = False
        self.pending = self._head(status, headers, "transfer-encoding: chunked\r\n" if self.chunked else "")
        self.status = status

    def write(self, data: bytes) -> None:
        if self.ended or not data:
            return
        if self.chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self.pending:
            data, self.pending = self.pending + data, b""
        transport = self._connection.transport
        if not transport.is_closing():
            transport.write(data)

    def end(self) -> None:
        if self.ended:
            return
        last = self.pending + (_LAST_CHUNK if self.chunked else b"")
        self.pending = b""
        if last:
            self._connection.write(last)
        self.ended, self.flow = True, None

    def draw_from(self, flow: Flow | None) -> None:
        self.flow = flow
        if flow is not None and self._connection.is_stalled:
            flow.pause_reading()

    def _head(self, status: int, headers: Mapping[str, str], framing: str) -> bytes:
        server = self._connection.server
        if server.retiring or server.draining or not self.incoming.done:
            self.keep_alive = False
        if not self.keep_alive:
            connection = "connection: close\r\n"
        else:
            connection = "" if self.head.minor else "connection: keep-alive\r\n"
        if self.more_headers:
            headers = {**headers, **self.more_headers}
        fields = list(map(": ".join, headers.items()))
        text = "".join(fields)
        if "\n" in text or "\r" in text or "\0" in text:
            raise ValueError("a header of the reply holds a line break")
        line = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} \r\n"
        begin = f"{line}{framing}{connection}{server.date()}"
        return (begin + "\r\n".join((*fields, "\r\n"))).encode(errors="surrogateescape")
