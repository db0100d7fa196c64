"""Connections that stay: streams whose next chunk is long in coming, or clients that have gone quiet."""

import asyncio
import time

from loadtest.gateway_bench.errors import GatewayBenchError

_PER_SECOND = 400
"""New ones: a stampede would measure what a stampede leaves behind."""
_ANSWER_LIMIT_S = 60.0


class _Connection(asyncio.Protocol):
    def __init__(self, request: bytes, mark: bytes) -> None:
        self._request = request
        self._mark = mark
        self._seen = b""
        self.answered = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.answered.done():
            self._seen += data
            if self._mark in self._seen:
                self.answered.set_result(None)
                self._seen = b""

    def connection_lost(self, error: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_exception(GatewayBenchError(f"a connection was closed: {self._seen[:200]!r}"))


class HeldOpen:
    """Use it as an async context manager: at its end all are closed."""

    def __init__(self, port: int, count: int, request: bytes, mark: bytes) -> None:
        """`mark`: what an answer has in it as soon as it has begun well."""
        self._port = port
        self._count = count
        self._request = request
        self._mark = mark
        self._connections: list[_Connection] = []

    async def __aenter__(self) -> "HeldOpen":
        """Raises GatewayBenchError."""
        began, loop = time.monotonic(), asyncio.get_running_loop()
        try:
            for number in range(self._count):
                await asyncio.sleep(began + number / _PER_SECOND - time.monotonic())
                _, made = await loop.create_connection(
                    lambda: _Connection(self._request, self._mark), "127.0.0.1", self._port
                )
                self._connections.append(made)
            async with asyncio.timeout(_ANSWER_LIMIT_S):
                await asyncio.gather(*(made.answered for made in self._connections))
        except (OSError, TimeoutError) as error:
            self._close()
            raise GatewayBenchError(
                f"{len(self._connections)} of {self._count} connections, and then: {error!r}"
            ) from error
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._close()

    def _close(self) -> None:
        for made in self._connections:
            made.transport.close()
            made.answered.cancel()
