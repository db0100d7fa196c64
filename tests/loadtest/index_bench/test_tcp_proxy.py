import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from loadtest.index_bench.tcp_proxy import Network, TcpProxy

CUT = (ConnectionResetError, asyncio.IncompleteReadError)
"""Which of them depends on whether anything was left to read when the proxy closed it."""


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


@pytest.fixture
async def proxy() -> AsyncIterator[TcpProxy]:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    async with TcpProxy("127.0.0.1", server.sockets[0].getsockname()[1], delay_s=0.2).running() as proxy:
        yield proxy
    server.close()


async def test_replies_are_late_by_the_same_time_however_many(proxy: TcpProxy) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"a")
    assert await reader.readexactly(1) == b"a"
    proxy.become(Network.SLOW)
    started = time.monotonic()
    for letter in (b"b", b"c", b"d"):
        writer.write(letter)
        await asyncio.sleep(0.05)
    assert await reader.readexactly(3) == b"bcd"
    assert 0.3 <= time.monotonic() - started < 2
    writer.close()


async def test_a_hole_swallows_and_opens_connections(proxy: TcpProxy) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    proxy.become(Network.HOLE)
    other_reader, other_writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    for one, two in ((reader, writer), (other_reader, other_writer)):
        two.write(b"a")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.read(1), 0.1)
        two.close()


async def test_what_is_gone_cuts_connections(proxy: TcpProxy) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"a")
    assert await reader.readexactly(1) == b"a"
    proxy.become(Network.GONE)
    with pytest.raises(CUT):
        await reader.readexactly(1)
    writer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    with pytest.raises(CUT):
        await reader.readexactly(1)
    writer.close()
