"""Connections to replicas: a keep-alive pool for each, and answers whose bytes are handed on as they come in.

What fails is told by what it says about the replica (`errors.UpstreamError`). Nothing is tried twice, but for one case:
a pooled connection that the replica closed just as a request went out on it. That request was never looked at.
"""

import asyncio
import math
import ssl
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Protocol, cast
from urllib.parse import urlsplit

from gateway.errors import ReplicaDied, ReplicaTimeout, ReplicaUnreachable, UpstreamError
from gateway.http.body import Body, Chunked, Fixed, UntilClose
from gateway.http.errors import HttpError
from gateway.http.head import ResponseHead, find_end
from gateway.http.head_memo import HeadMemo
from gateway.http.wheel import NEVER, Timed, Wheel

KEEP_ALIVE_S = 15.0
"""Shorter than any replica's, so that a replica never closes an idle connection just as a request goes out on it."""
RACE_S = 0.25
"""After a request went out on a pooled connection: closed later than that, it was closed because of the request."""
SETTLE_S = 1.0
"""For a stream to end properly after `[DONE]`, which is all that keeps its connection from being used again."""
AHEAD_MAX = 256 << 10
"""Bytes of an answer that wait for somebody to take them; then the socket isn't read."""

Place = tuple[str, int, bool]
"""Host, port, whether with TLS."""


class Sink(Protocol):
    """Takes an answer's body, within the callback that brought it in. Exactly one of the last two is called, once."""

    def data(self, payload: bytes) -> None: ...

    def ended(self) -> None: ...

    def failed(self, error: UpstreamError) -> None: ...


class Answer:
    """A replica's answer from its head on. Close it: before its end that makes the replica abort."""

    __slots__ = ("_ahead", "_ahead_bytes", "_connection", "_ended", "_error", "headers", "sink", "status")

    def __init__(self, head: ResponseHead, connection: "ReplicaConnection | None", *ahead: bytes) -> None:
        """`connection`: None where nothing comes behind `ahead`."""
        self.status = head.status
        self.headers: Mapping[str, str] = head.headers
        self._connection = connection
        self.sink: Sink | None = None
        self._ahead = list(ahead)
        self._ahead_bytes = 0
        self._ended = connection is None
        self._error: UpstreamError | None = None

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def pour_into(self, sink: Sink) -> None:
        """What has come by now at once, the rest as it comes."""
        self.sink = sink
        if self._connection is not None:
            self._connection.take = sink.data
        ahead, self._ahead = self._ahead, []
        for payload in ahead:
            sink.data(payload)
        if self._error is not None:
            sink.failed(self._error)
        elif self._ended:
            sink.ended()
        else:
            self.resume_reading()

    def read_at_once(self) -> bytes | None:
        """The whole body, if it came in one piece with its end."""
        return self._ahead.pop() if self._ended and self._error is None and len(self._ahead) == 1 else None

    async def read(self) -> bytes:
        """The whole body. Raises an UpstreamError."""
        whole = _Whole()
        self.pour_into(whole)
        return await whole.done

    def pause_reading(self) -> None:
        if self._connection is not None:
            self._connection.pause()

    def resume_reading(self) -> None:
        if self._connection is not None:
            self._connection.resume()

    def settle(self) -> None:
        """All that matters has been read: the connection can be used again if now nothing but the answer's end
        comes, and soon."""
        connection, self._connection, self.sink = self._connection, None, None
        if connection is not None:
            connection.settle()

    def close(self) -> None:
        connection, self._connection, self.sink = self._connection, None, None
        if connection is not None:
            connection.abandon()

    # For its connection.

    def keep(self, payload: bytes) -> None:
        self._ahead.append(payload)
        self._ahead_bytes += len(payload)
        if self._ahead_bytes > AHEAD_MAX:
            self.pause_reading()

    def over(self, error: UpstreamError | None) -> None:
        self._connection, self._ended, self._error = None, True, error
        if self.sink is None:
            return
        if error is None:
            self.sink.ended()
        else:
            self.sink.failed(error)


class _Whole:
    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def data(self, payload: bytes) -> None:
        self._parts.append(payload)

    def ended(self) -> None:
        if not self.done.done():
            self.done.set_result(b"".join(self._parts))

    def failed(self, error: UpstreamError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class ReplicaConnection(asyncio.Protocol, Timed):
    __slots__ = (
        "_answer",
        "_body",
        "_fresh",
        "_head",
        "_held",
        "_idle_s",
        "_now",
        "_paused",
        "_pool",
        "_sent_at",
        "_transport",
        "_waiter",
        "place",
        "take",
    )

    def __init__(self, pool: "Pool", place: Place) -> None:
        super().__init__()
        self.place = place
        self._pool = pool
        self._now = pool.loop.time
        self._fresh = True
        self._held = b""
        self._waiter: asyncio.Future[Answer] | None = None
        """Of whoever waits for a head."""
        self._head: ResponseHead | None = None
        self._body: Body | None = None
        self._answer: Answer | None = None
        self.take: Callable[[bytes], None] | None = None
        """What is done with the answer's bytes; None: nobody wants any."""
        self._paused = False
        self._idle_s = 0.0
        self._sent_at = 0.0
        self._transport: asyncio.Transport

    @property
    def usable(self) -> bool:
        return not self._transport.is_closing()

    @property
    def heard_at(self) -> float:
        """When its request went out, or the last byte of its answer came; for ever, where it has none, or the client is
        what is slow."""
        if self._waiter is not None:
            return self._sent_at
        return math.inf if self._answer is None or self._paused else self.deadline - self._idle_s

    def send(self, request: bytes, first_byte_s: float, idle_s: float) -> "asyncio.Future[Answer]":
        """The answer once its head is there; from then on `idle_s` is the longest silence. Raises an UpstreamError."""
        pool, now = self._pool, self._now()
        self._idle_s, self._sent_at = idle_s, now
        waiter = self._waiter = pool.loop.create_future()
        self._transport.write(request)
        pool.wheel.watch(self, now + first_byte_s)
        return waiter

    # From the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        body = self._body
        if body is None:
            if self._waiter is None:
                # Nobody asked: this replica's answers can't be told apart any more.
                self._drop()
                return
            self._take_head(data)
            return
        self.deadline = self._now() + self._idle_s
        try:
            payload = body.feed(data)
        except HttpError as error:
            self._fail(error)
            self._drop()
            return
        if payload:
            take = self.take
            if take is None:
                # It should be over by now.
                self._drop()
                return
            take(payload)
        if body.done and self._body is body:
            self._over(body)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.forget(self)
        if isinstance(self._body, UntilClose) and exc is None:
            self._over(None)
        else:
            self._fail(exc)

    def expired(self) -> None:
        if self._waiter is None and self._answer is None:
            self._drop()
        elif self._paused:
            # The client is slow, not the replica.
            self._pool.wheel.watch(self, self._pool.loop.time() + self._idle_s)
        else:
            self._fail(TimeoutError())
            self._drop()

    # Answers.

    def _take_head(self, data: bytes) -> None:
        if self._held:
            data, self._held = self._held + data, b""
        try:
            while (end := find_end(data)) >= 0:
                head, data = self._pool.heads.response(data[:end]), data[end:]
                if head.status >= 200:
                    self._begin(head, data)
                    return
            self._held = data
        except HttpError as error:
            self._fail(error)
            self._drop()

    def _begin(self, head: ResponseHead, rest: bytes) -> None:
        waiter, self._waiter = self._waiter, None
        assert waiter is not None
        if waiter.done():
            self._drop()
            return
        if rest and len(rest) == head.length:
            # All of it is here.
            waiter.set_result(Answer(head, None, rest))
            self._hand_back(head.keep_alive)
            return
        self._head = head
        answer = self._answer = Answer(head, self)
        self.take = answer.keep
        body = Chunked() if head.chunked else UntilClose() if head.length is None else Fixed(head.length)
        self._body = body
        waiter.set_result(answer)
        if rest:
            self.data_received(rest)
        elif body.done:
            self._over(body)
        if self._body is body:
            self._pool.wheel.watch(self, self._now() + self._idle_s)

    def _over(self, body: Body | None) -> None:
        """The answer came to its proper end."""
        head, answer = self._head, self._answer
        clean = body is not None and not body.excess and head is not None and head.keep_alive
        self._reset()
        self._hand_back(clean)
        if answer is not None:
            answer.over(None)

    def _hand_back(self, clean: bool) -> None:
        """To the pool, if another request can be sent on it."""
        transport = self._transport
        if not clean or transport.is_closing() or transport.get_write_buffer_size():
            self._drop()
            return
        self._fresh = False
        if self._paused:
            self.resume()
        self._pool.put_back(self)

    def _fail(self, cause: Exception | None) -> None:
        error = self._meaning(cause)
        waiter, answer = self._waiter, self._answer
        self._reset()
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)
        if answer is not None:
            answer.over(error)

    def _meaning(self, cause: Exception | None) -> UpstreamError:
        if isinstance(cause, TimeoutError):
            return ReplicaTimeout("the replica has been silent for too long")
        if isinstance(cause, HttpError):
            return ReplicaDied(f"the replica's answer is no HTTP: {cause}")
        soon = self._pool.loop.time() - self._sent_at < RACE_S
        if self._waiter is not None and not self._held and not self._fresh and soon:
            return ClosedWhileIdle("the replica closed an idle connection")
        return ReplicaDied("the replica closed the connection before its answer was whole")

    def _reset(self) -> None:
        self._waiter, self._answer, self._head, self._body, self.take = None, None, None, None, None
        self._held = b""

    # For answers and the pool.

    def pause(self) -> None:
        if not self._paused and self.usable:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self.usable:
            self._paused = False
            self.deadline = self._pool.loop.time() + self._idle_s
            self._transport.resume_reading()

    def settle(self) -> None:
        self._answer, self.take = None, None
        self.resume()
        self._pool.wheel.watch(self, self._pool.loop.time() + SETTLE_S)

    def abandon(self) -> None:
        """Nobody wants the rest."""
        self._answer, self.take = None, None
        self._drop()

    def _drop(self) -> None:
        self._pool.forget(self)
        self._transport.abort()


class ClosedWhileIdle(ReplicaUnreachable):
    """Before the request could reach the replica."""


class Pool:
    """Idle connections by place, the last used first. Close it."""

    def __init__(self, wheel: Wheel, connect_s: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.wheel = wheel
        self.heads = HeadMemo()
        self.connect_s = connect_s
        self._idle: defaultdict[Place, list[ReplicaConnection]] = defaultdict(list)
        self._all: set[ReplicaConnection] = set()
        self._tls: ssl.SSLContext | None = None

    def __len__(self) -> int:
        """Connections, busy ones included."""
        return len(self._all)

    async def request(
        self, method: str, url: str, head: bytes, body: bytes, *, first_byte_s: float, idle_s: float
    ) -> Answer:
        """`head`: header lines but for `host` and `content-length`. Raises an UpstreamError."""
        place, start = _address(method, url)
        request = b"%b%bcontent-length: %d\r\n\r\n%b" % (start, head, len(body), body)
        connection = self._pooled(place)
        while True:
            if connection is None:
                connection = await self._connect(place)
            try:
                return await connection.send(request, first_byte_s, idle_s)
            except ClosedWhileIdle:
                # A fresh one can't be: this happens once.
                connection = None
            except asyncio.CancelledError:
                connection.abandon()
                raise

    def close(self) -> None:
        """Cuts what is in flight, too: whoever reads an answer gets an error."""
        for connection in list(self._all):
            connection._fail(None)
            connection._drop()

    def cut_silent(self, url: str, seconds: float) -> None:
        """Requests to that server of which nothing has been heard for so long fail, as if their time were over."""
        place, _ = _address("GET", url)
        since = self.loop.time() - seconds
        for connection in [each for each in self._all if each.place == place and each.heard_at < since]:
            connection.expired()

    def put_back(self, connection: ReplicaConnection) -> None:
        self._idle[connection.place].append(connection)
        self.wheel.watch(connection, self.loop.time() + KEEP_ALIVE_S)

    def forget(self, connection: ReplicaConnection) -> None:
        self.wheel.forget(connection)
        self._all.discard(connection)
        idle = self._idle.get(connection.place)
        if idle is not None:
            if connection in idle:
                idle.remove(connection)
            if not idle:
                del self._idle[connection.place]

    def _pooled(self, place: Place) -> ReplicaConnection | None:
        idle = self._idle.get(place)
        while idle:
            connection = idle.pop()
            connection.deadline = NEVER
            if connection.usable:
                return connection
        return None

    async def _connect(self, place: Place) -> ReplicaConnection:
        host, port, secure = place
        if secure and self._tls is None:
            self._tls = ssl.create_default_context()
        try:
            async with asyncio.timeout(self.connect_s):
                _, connection = await self.loop.create_connection(
                    lambda: ReplicaConnection(self, place), host, port, ssl=self._tls if secure else None
                )
        except (OSError, TimeoutError) as error:
            raise ReplicaUnreachable("no connection to the replica") from error
        self._all.add(connection)
        return connection


@lru_cache(maxsize=4096)
def _address(method: str, url: str) -> tuple[Place, bytes]:
    """Where to connect, and the request's first lines."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not target.isascii() or any(c <= " " or c == "\x7f" for c in target + parts.netloc):
        raise ReplicaUnreachable("the replica's address is no URL")
    return (host, port, secure), f"{method} {target} HTTP/1.1\r\nhost: {parts.netloc.rpartition('@')[2]}\r\n".encode()
