"""A network before Redis that can be made bad while connections are open."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum

_CHUNK = 1 << 16


class Network(StrEnum):
    GOOD = "good"
    SLOW = "slow"
    """Each reply comes `delay_s` later."""
    HOLE = "hole"
    """Whatever is sent is swallowed, also what opens a new connection to the server."""
    GONE = "gone"
    """Connections are cut, and new ones too as soon as they are open."""


class TcpProxy:
    """`port` is where it listens, on loopback, as long as it is `running`."""

    def __init__(self, host: str, port: int, delay_s: float = 1.0) -> None:
        self._target = (host, port)
        self._delay_s = delay_s
        self._network = Network.GOOD
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    def become(self, network: Network) -> None:
        self._network = network
        if network is Network.GONE:
            for task in self._tasks:
                task.cancel()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["TcpProxy"]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self._network is not Network.GONE:
                await self._connect(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(*self._target)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._requests(reader, server_writer))
                group.create_task(self._replies(server_reader, writer))
        except* OSError:
            pass
        finally:
            server_writer.transport.abort()

    async def _requests(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(_CHUNK):
            if self._network is not Network.HOLE:
                target.write(data)
                await target.drain()
        raise ConnectionResetError

    async def _replies(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Those that are under way at the same time are late by the same time, not one after the other."""
        loop = asyncio.get_running_loop()
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due, data = await late.get()
                await asyncio.sleep(due - loop.time())
                if self._network is not Network.HOLE:
                    target.write(data)
                    with contextlib.suppress(ConnectionError):
                        await target.drain()

        delivering = asyncio.create_task(deliver())
        try:
            while data := await source.read(_CHUNK):
                late.put_nowait((loop.time() + (self._delay_s if self._network is Network.SLOW else 0.0), data))
        finally:
            delivering.cancel()
        raise ConnectionResetError
