"""A server that leaves its port to another one: who is connected gets an answer to what it may be sending just now."""

import asyncio
import socket

import pytest

from gateway.http.exchange import Exchange
from tests.gateway.fakes import eventually
from tests.gateway.http.raw import post, rig


async def test_a_connection_may_bring_one_request_more_and_is_told_that_it_was_the_last() -> None:
    async with rig() as made:
        client = await made.connect()
        await client.send(post(b"1"))
        assert "connection" not in (await client.reply())[1]
        retiring = asyncio.create_task(made.server.retire(5.0, 10.0))
        await asyncio.sleep(0.1)
        await client.send(post(b"2"))
        status, headers, body = await client.reply()
        assert (status, headers["connection"], body) == (200, "close", b"<2>")
        assert await client.rest() == b""
        await asyncio.wait_for(retiring, 2)


async def test_a_stream_that_had_begun_is_followed_by_one_request_more() -> None:
    """Its head had said that the connection stays."""
    turn = asyncio.Event()

    async def streams(exchange: Exchange) -> None:
        if exchange is not made.served[0]:
            exchange.send(200, {}, b"more")
            return
        exchange.start(200, {})
        exchange.write(b"a")
        await turn.wait()
        exchange.write(b"b")
        exchange.end()

    async with rig(streams) as made:
        client = await made.connect()
        await client.send(post(b""))
        await eventually(lambda: len(made.served) == 1)
        retiring = asyncio.create_task(made.server.retire(5.0, 10.0))
        await asyncio.sleep(0.1)
        turn.set()
        assert (await client.reply())[2] == b"ab"
        await client.send(post(b""))
        assert (await client.reply())[1]["connection"] == "close"
        await asyncio.wait_for(retiring, 2)


async def test_who_brings_nothing_is_closed_in_time_and_who_does_not_end_is_left() -> None:
    turn = asyncio.Event()

    async def waits(exchange: Exchange) -> None:
        await turn.wait()
        exchange.send(200, {}, b"done")

    async with rig(waits, idle_s=30) as made:
        idle, busy = await made.connect(), await made.connect()
        await busy.send(post(b""))
        await eventually(lambda: len(made.served) == 1)
        await asyncio.wait_for(made.server.retire(0.2, 0.6), 5)
        assert await idle.rest() == b""
        assert len(made.server) == 1
        turn.set()
        assert (await busy.reply())[2] == b"done"


async def test_what_waits_to_be_taken_is_taken_and_then_the_port_is_free() -> None:
    async with rig() as made:
        clients = [socket.create_connection(("127.0.0.1", made.port)) for _ in range(5)]
        retiring = asyncio.create_task(made.server.retire(5.0, 10.0))
        await asyncio.sleep(0.1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", made.port))
        for client in clients:
            client.sendall(post(b"x"))
            client.setblocking(False)
            answer = b""
            while piece := await asyncio.get_running_loop().sock_recv(client, 4096):
                answer += piece
            assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"<x>")
            client.close()
        await asyncio.wait_for(retiring, 2)
