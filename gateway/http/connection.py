"""A client's connection: requests one after the other, each in a task that dies with the connection.

The hot routes are served here. A request for any other is read whole, under the same limits, and then lent to aiohttp
with `connection: close`, so that one parser alone ever decides where a request ends.
"""

import asyncio
from enum import IntEnum
from typing import TYPE_CHECKING, cast

from gateway.http.errors import HttpError
from gateway.http.head import MAX_HEAD_BYTES, RequestHead, find_end
from gateway.http.lean_exchange import LeanExchange
from gateway.http.limits import BODY_RATE, PIPELINED_MAX, WRITE_HIGH
from gateway.http.wheel import NEVER, Timed
from replica.protocol.strict import error_body

if TYPE_CHECKING:
    from gateway.http.server import LeanServer

_JSON = {"content-type": "application/json"}
_HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-connection", "expect", "transfer-encoding", "content-length", "te", "upgrade")
)


class Phase(IntEnum):
    HEAD = 0
    """Between requests, or within a head."""
    BODY = 1
    """A request's body is coming in, and its task may be running."""
    SERVING = 2
    """What comes in now is for later."""
    LENT = 3
    """aiohttp has it."""
    LINGER = 4
    """The last reply is out; what still comes in is dropped."""


# NOTE: an attribute of an enum takes ten times as long, and it is looked at ten times a request.
_HEAD, _BODY, _SERVING, _LENT, _LINGER = Phase


class ClientConnection(asyncio.Protocol, Timed):
    __slots__ = (
        "_buffer",
        "_exchange",
        "_guest",
        "_phase",
        "_reading",
        "idle_since",
        "is_stalled",
        "server",
        "transport",
    )

    def __init__(self, server: "LeanServer") -> None:
        super().__init__()
        self.server = server
        self._buffer = b""
        self._phase = _HEAD
        self._exchange: LeanExchange | None = None
        self._guest: asyncio.Protocol | None = None
        self._reading = True
        self.idle_since = server.loop.time()
        self.is_stalled = False
        """The client doesn't keep up with what is written to it."""
        self.transport: asyncio.Transport

    @property
    def remote(self) -> str | None:
        peer = self.transport.get_extra_info("peername")
        return peer[0] if peer else None

    @property
    def is_idle(self) -> bool:
        return self._phase is _HEAD and not self._buffer

    # From the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(WRITE_HIGH)
        if self.server.admit(self):
            self._watch(self.server.limits.idle_s)
        else:
            self._refuse(HttpError(503, "too_many_connections", "this gateway has too many connections"))

    def data_received(self, data: bytes) -> None:
        phase = self._phase
        if phase is _HEAD:
            self._buffer = self._buffer + data if self._buffer else data
            self._next_request()
        elif phase is _BODY:
            self._take_body(data)
        elif phase is _SERVING:
            self._buffer += data
            if len(self._buffer) > PIPELINED_MAX:
                self._pause()

    def eof_received(self) -> bool:
        """A client that has closed its side has left: one that only will not send more can't be told from it."""
        if self._guest is not None:
            self._guest.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.forget(self)
        if self._guest is not None:
            self._guest.connection_lost(exc)
            self._guest = None
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.ended = True
            if exchange.task is not None:
                exchange.task.cancel()

    def pause_writing(self) -> None:
        self.is_stalled = True
        if self._guest is not None:
            self._guest.pause_writing()
        elif self._exchange is not None and self._exchange.flow is not None:
            self._exchange.flow.pause_reading()
        self._watch(self.server.limits.stall_s)

    def resume_writing(self) -> None:
        self.is_stalled = False
        self.deadline = NEVER
        if self._guest is not None:
            self._guest.resume_writing()
        elif self._exchange is not None and self._exchange.flow is not None:
            self._exchange.flow.resume_reading()
        limits = self.server.limits
        again = {_HEAD: limits.idle_s, _BODY: limits.body_s, _LINGER: limits.linger_s}.get(self._phase)
        if again is not None:
            self._watch(again)

    def expired(self) -> None:
        if self.is_stalled or self._phase is _LINGER or self.is_idle:
            self.transport.abort() if self.is_stalled else self.transport.close()
        elif self._phase is _HEAD:
            self._refuse(HttpError(408, "request_timeout", "the request's head didn't come in time"))
        elif self._phase is _BODY and self._exchange is not None:
            now = self.server.loop.time()
            until = self._exchange.started_at + self.server.limits.body_s + self._exchange.received / BODY_RATE
            if until > now:
                self.server.wheel.watch(self, until)
            else:
                self._break_body(HttpError(408, "request_timeout", "the request's body didn't come in time"))

    # What is written.

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        """An idle connection, or one that is over."""
        self.transport.close()

    # Requests.

    def _next_request(self) -> None:
        if self._phase is not _HEAD or self.transport.is_closing():
            return
        server, buffer = self.server, self._buffer
        try:
            if buffer.startswith(b"\r\n"):
                buffer = self._buffer = buffer[2:]
            end = find_end(buffer)
            if end < 0:
                if buffer and self.deadline > server.loop.time() + server.limits.head_s:
                    self._watch(server.limits.head_s)
                return
            self._buffer = b""
            self._begin(server.heads.request(buffer[:end]), buffer[end:])
        except HttpError as error:
            self._refuse(error)

    def _begin(self, head: RequestHead, rest: bytes) -> None:
        server, length, is_hot = self.server, head.length, self.server.is_hot(head)
        if length is not None and length > server.limits.body:
            self._refuse(HttpError(413, "body_too_large", f"the body may have {server.limits.body} bytes"), head)
            return
        self.deadline = NEVER
        if is_hot and rest and len(rest) == length:
            exchange = self._exchange = LeanExchange(self, head, rest)
            self._phase = _SERVING
        else:
            exchange = self._exchange = LeanExchange(self, head)
            exchange.started_at = server.loop.time()
            self._phase = _BODY
            if rest or exchange.incoming.done:
                self._take_body(rest)
            if self._phase is _BODY:
                server.wheel.watch(self, exchange.started_at + server.limits.body_s)
        if is_hot and self._exchange is exchange:
            exchange.task = server.loop.create_task(self._serve(exchange))

    def _take_body(self, data: bytes) -> None:
        exchange = self._exchange
        assert exchange is not None
        try:
            if data:
                exchange.feed(data, self.server.limits.body)
        except HttpError as error:
            self._break_body(error)
            return
        if exchange.incoming.done:
            self._body_is_there(exchange)

    def _body_is_there(self, exchange: LeanExchange) -> None:
        self._phase = _SERVING
        self.deadline = NEVER
        self._buffer = exchange.incoming.excess
        if not self.server.is_hot(exchange.head):
            self._lend(exchange)

    def _break_body(self, error: HttpError) -> None:
        """What still comes of the request isn't read, so it is the last."""
        assert self._exchange is not None
        if self._exchange.task is None:
            head, self._exchange = self._exchange.head, None
            self._refuse(error, head)
            return
        self._exchange.break_off(error)
        self._phase = _SERVING
        self._pause()

    async def _serve(self, exchange: LeanExchange) -> None:
        try:
            await self.server.handle(exchange)
        finally:
            self._served(exchange)

    def _served(self, exchange: LeanExchange) -> None:
        if self._exchange is not exchange:
            return
        self._exchange = None
        server = self.server
        if not exchange.ended or not exchange.keep_alive or server.draining:
            self._hang_up(whole=exchange.incoming.done)
            return
        self._phase = _HEAD
        now = self.idle_since = server.loop.time()
        if not self._reading:
            self._resume()
        server.wheel.watch(self, now + server.limits.idle_s)
        if self._buffer:
            server.loop.call_soon(self._next_request)

    def _hang_up(self, *, whole: bool) -> None:
        """NOTE: closing a socket with unread bytes in it resets the connection, and the client may never see the
        reply; so it is closed to the one side first."""
        if whole and not self._buffer:
            self.transport.close()
            return
        self._phase, self._buffer = _LINGER, b""
        self._resume()
        self._watch(self.server.limits.linger_s)
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()

    def _refuse(self, error: HttpError, head: RequestHead | None = None) -> None:
        """A request that can't even be read. Nothing after it can be, either."""
        body = error_body(
            str(error),
            type="server_error" if error.status >= 500 else "invalid_request_error",
            code=error.code,
        )
        exchange = LeanExchange(self, RequestHead("GET", "/", "/", 1, {}, 0, False))
        more = {} if head is None else self.server.refusal_headers(head)
        exchange.send(error.status, {**_JSON, **more}, body)
        self.server.refused(error)
        self._hang_up(whole=False)

    def _lend(self, exchange: LeanExchange) -> None:
        """To aiohttp, as if the request had just come in, whole, and asked to be the last."""
        head, body = exchange.head, exchange.whole_body()
        self._exchange, self._phase, self._buffer = None, _LENT, b""
        fields = [f"{name}: {value}\r\n" for name, value in head.headers.items() if name not in _HOP_BY_HOP]
        length = [] if not body and head.method in ("GET", "HEAD", "OPTIONS") else [f"content-length: {len(body)}\r\n"]
        lines = [f"{head.method} {head.target} HTTP/1.1\r\n", *fields, *length, "connection: close\r\n\r\n"]
        guest = self._guest = self.server.guest()
        guest.connection_made(self.transport)
        guest.data_received("".join(lines).encode(errors="surrogateescape") + body)

    # Small helpers.

    def _watch(self, seconds: float) -> None:
        self.server.wheel.watch(self, self.server.loop.time() + seconds)

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self.transport.pause_reading()

    def _resume(self) -> None:
        if not self._reading and not self.transport.is_closing():
            self._reading = True
            self.transport.resume_reading()


assert PIPELINED_MAX > MAX_HEAD_BYTES
