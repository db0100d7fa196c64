"""A lean HTTP/1.1 server: what all its connections share."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate

from gateway.http.connection import ClientConnection
from gateway.http.errors import HttpError
from gateway.http.exchange import Exchange
from gateway.http.head import RequestHead
from gateway.http.head_memo import HeadMemo
from gateway.http.limits import HttpLimits
from gateway.http.wheel import Wheel

RETIRE_LOOK_S = 0.05


def _take_all(listener: socket.socket) -> list[socket.socket]:
    """Connections that the kernel has made and nobody has taken. NOTE: it resets them when the listener is closed."""
    taken = []
    listener.setblocking(False)
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            connection.setblocking(False)
            taken.append(connection)
    return taken


class LeanServer:
    def __init__(
        self,
        limits: HttpLimits,
        wheel: Wheel,
        *,
        hot: frozenset[tuple[str, str]],
        handle: Callable[[Exchange], Awaitable[None]],
        guest: Callable[[], asyncio.Protocol],
        on_refused: Callable[[HttpError], None] = lambda error: None,
        refusal_headers: Callable[[RequestHead], Mapping[str, str]] = lambda head: {},
    ) -> None:
        """`hot`: methods and paths that `handle` serves, which answers every error itself; `guest` makes a protocol
        for one request of any other kind; `on_refused` is told of each that was no HTTP, and
        `refusal_headers` go with the answer to it where its head could be read."""
        self.limits = limits
        self.wheel = wheel
        self.heads = HeadMemo()
        self.loop = asyncio.get_running_loop()
        self.handle = handle
        self.guest = guest
        self.retiring = False
        self.draining = False
        self._hot = hot
        self._on_refused = on_refused
        self.refusal_headers = refusal_headers
        self._connections: set[ClientConnection] = set()
        self._server: asyncio.Server | None = None
        self._listener: socket.socket | None = None
        self._emptied: asyncio.Future[None] | None = None
        self._date = ""
        self._date_of = 0

    def __len__(self) -> int:
        """Connections."""
        return len(self._connections)

    async def listen(self, listener: socket.socket, backlog: int = 4096) -> None:
        self._listener = listener
        self._server = await self.loop.create_server(lambda: ClientConnection(self), sock=listener, backlog=backlog)

    async def retire(self, linger_s: float, grace_s: float) -> None:
        """No new connections but those that wait to be taken. Whoever was told that a connection stays may send one
        request more on it, which is answered as its last, or has so long to do so; ends when nobody is left, or after
        the grace time."""
        self.retiring = True
        waiting = [] if self._listener is None else _take_all(self._listener)
        if self._server is not None:
            self._server.close()
        for connection in waiting:
            await self.loop.connect_accepted_socket(lambda: ClientConnection(self), connection)
        begun = self.loop.time()
        while self._connections and (now := self.loop.time()) < begun + grace_s:
            for each in [each for each in self._connections if each.is_idle]:
                if now >= max(begun, each.idle_since) + linger_s:
                    each.close()
            await asyncio.sleep(RETIRE_LOOK_S)

    def drain(self) -> None:
        """No new connections; idle ones are closed, the others after their request."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        for connection in [each for each in self._connections if each.is_idle]:
            connection.close()

    async def close(self, seconds: float = 0.0) -> None:
        """What is left has so long for its last bytes; then it is cut."""
        self.drain()
        if self._connections:
            self._emptied = self.loop.create_future()
            await asyncio.wait((self._emptied,), timeout=seconds)
        for connection in list(self._connections):
            connection.transport.abort()
        await asyncio.sleep(0)

    # For connections.

    def admit(self, connection: ClientConnection) -> bool:
        if len(self._connections) >= self.limits.connections:
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)
        self.wheel.forget(connection)
        if self._emptied is not None and not self._connections and not self._emptied.done():
            self._emptied.set_result(None)

    def is_hot(self, head: RequestHead) -> bool:
        return (head.method, head.path) in self._hot

    def refused(self, error: HttpError) -> None:
        self._on_refused(error)

    def date(self) -> str:
        now = int(time.time())
        if now != self._date_of:
            self._date_of, self._date = now, f"date: {formatdate(now, usegmt=True)}\r\n"
        return self._date
