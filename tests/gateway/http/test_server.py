"""The lean server with raw sockets: framing, limits, slowness and leaving, at every phase."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from gateway.edge import Failure, guarded
from gateway.http.exchange import Exchange
from tests.gateway.fakes import eventually
from tests.gateway.http.raw import PATH, chunked, post, rig

CHUNKED = "transfer-encoding: chunked"


def error_of(raw: bytes) -> tuple[int, str]:
    """Status and code of an answer in OpenAI's shape that is the connection's last."""
    head, _, body = raw.partition(b"\r\n\r\n")
    assert b"connection: close" in head and b"content-type: application/json" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    return int(head.split()[1]), error["code"]


async def test_many_requests_on_one_connection() -> None:
    async with rig() as made:
        client = await made.connect()
        for number in range(5):
            await client.send(post(b"%d" % number))
            status, headers, body = await client.reply()
            assert (status, body) == (200, b"<%d>" % number)
            assert "connection" not in headers and headers["date"].endswith("GMT")


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_any_split_of_pipelined_requests_is_answered_in_order(size: int) -> None:
    bodies = [b"first", b"", b"x" * 300, b"\r\n\r\n"]
    requests = [post(body) for body in bodies]
    requests[2] = post(chunked(bodies[2], 40), CHUNKED, length=False)
    whole = b"".join(requests)
    async with rig(head_s=5, body_s=5) as made:
        client = await made.connect()
        for at in range(0, len(whole), size):
            await client.send(whole[at : at + size])
            await asyncio.sleep(0)
        for body in bodies:
            assert (await client.reply())[2] == b"<" + body + b">"


async def test_a_flood_of_pipelined_requests_is_read_as_fast_as_it_is_served() -> None:
    turn = asyncio.Event()

    async def waits(exchange: Exchange) -> None:
        await turn.wait()
        exchange.send(200, {}, await exchange.body())

    async with rig(waits) as made:
        client = await made.connect()
        body = b"x" * 1000
        client.writer.write(post(body) * 500)
        await asyncio.sleep(0.2)
        [connection] = made.server._connections
        assert len(connection._buffer) < 400_000
        turn.set()
        for _ in range(500):
            assert (await client.reply())[2] == body


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (post(b"x", CHUNKED), 400),
        (post(b"", "content-length: 0"), 400),
        (post(b"", "content-length: 0", "content-length: 0", length=False), 400),
        (post(b"", "content-length: +1", length=False), 400),
        (post(b"", "content-length: 1, 1", length=False), 400),
        (post(b"", "content-length: -1", length=False), 400),
        (post(b"", "content-length: 0x1", length=False), 400),
        (post(b"", "content-length: ", length=False), 400),
        (post(b"", "transfer-encoding: gzip, chunked", length=False), 501),
        (post(b"", "transfer-encoding: xchunked", length=False), 501),
        (post(b"", CHUNKED, CHUNKED, length=False), 400),
        (post(b"", "transfer-encoding: \x0bchunked", length=False), 400),
        (post(b"", "transfer-encoding : chunked", length=False), 400),
        (post(b"", CHUNKED, length=False, version="1.0"), 400),
        (post(b"", "x: a", " folded"), 400),
        (post(b"", "x: a\rb: c"), 400),
        (post(b"", "x: a\nb: c"), 400),
        (post(b"", "x\0: a"), 400),
        (post(b"", ": nameless"), 400),
        (post(b"", "no colon"), 400),
        (post(b"", "host: y"), 400),
        (post(b"", "authorization: a", "authorization: b"), 400),
        (post(version="2.0"), 400),
        (post(version="1.11"), 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\nhost: x\n\n", 400),
        (b"POST  /v1/chat/completions HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"POST /a b HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (post(b"", "x: " + "y" * 40_000), 431),
        (post(b"", *["x: y"] * 200), 431),
        (post(b"nonsense\r\n", CHUNKED, length=False), 400),
        (post(b"1\r\nab\r\n", CHUNKED, length=False), 400),
        (post(b"1\nab\r\n", CHUNKED, length=False), 400),
        (post(b"-1\r\n", CHUNKED, length=False), 400),
        (post(b"1;" + b"x" * 2000, CHUNKED, length=False), 400),
        (post(b"0\r\n" + b"x: y\r\n" * 3000, CHUNKED, length=False), 400),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
async def test_what_is_no_clear_http_is_refused_and_the_connection_closed(raw: bytes, status: int, whole: bool) -> None:
    """Smuggling needs two parsers that read one message differently."""
    async with rig() as made:
        pieces = [raw + post(b"smuggled")] if whole else [raw[:20], raw[20:]]
        answer = await made.ask(*pieces)
        assert error_of(answer)[0] == status
        assert len(made.served) <= 1


async def test_a_body_over_the_limit_is_refused_without_being_read() -> None:
    async with rig() as made:
        client = await made.connect()
        await client.send(post(b"", "content-length: 100000001", length=False) + b"x" * 1000)
        status, headers, _ = await client.reply()
        assert (status, headers["connection"]) == (413, "close")
        assert not made.served
        answer = await made.ask(post(chunked(b"x" * 100_001, 5000), CHUNKED, length=False))
        assert error_of(answer) == (413, "body_too_large")
        assert (await made.ask(post(b"x" * 100_000, "connection: close"))).endswith(b"x>")


async def test_a15_an_early_refusal_reaches_a_client_that_is_still_sending() -> None:
    async def refuses(exchange: Exchange) -> None:
        exchange.send(401, {}, b"no")

    async with rig(refuses, body=50 << 20) as made:
        client = await made.connect()
        client.writer.write(post(b"", "content-length: 20000000", length=False) + b"x" * 1_000_000)
        status, headers, body = await client.reply()
        assert (status, headers["connection"], body) == (401, "close", b"no")
        await eventually(lambda: len(made.server) == 0)


async def test_100_continue_is_sent_where_the_body_is_wanted() -> None:
    async with rig() as made:
        client = await made.connect()
        await client.send(post(b"", "expect: 100-continue", "content-length: 3", length=False))
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"abc")
        assert (await client.reply())[2] == b"<abc>"
        await client.send(post(b"abc", "expect: 100-continue"))
        assert (await client.reply())[2] == b"<abc>"


async def test_http_1_0_is_spoken_with_those_who_speak_it() -> None:
    async def streams(exchange: Exchange) -> None:
        exchange.start(200, {"content-type": "text/event-stream"})
        exchange.write(b"one")
        exchange.write(b"two")
        exchange.end()

    async with rig() as made:
        assert (await made.ask(post(b"a", version="1.0"))).endswith(b"<a>")
        client = await made.connect()
        await client.send(post(b"a", "connection: keep-alive", version="1.0"))
        assert (await client.reply())[1]["connection"] == "keep-alive"
    async with rig(streams) as made:
        answer = await made.ask(post(b"a", "connection: keep-alive", version="1.0"))
        assert b"chunked" not in answer and answer.endswith(b"\r\n\r\nonetwo")
        client = await made.connect()
        await client.send(post(b"a"))
        assert (await client.reply())[2] == b"onetwo"


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ([post(b"a")[:10]], 408),
        ([post(b"", "content-length: 5", length=False), b"abc"], 408),
        ([post(b"", CHUNKED, length=False), b"5\r\nab"], 408),
    ],
)
async def test_a_slow_head_or_body_ends_in_a_408(pieces: Sequence[bytes], status: int) -> None:
    async with rig(echo_errors) as made:
        answer = await made.ask(*pieces)
        assert error_of(answer)[0] == status


async def echo_errors(exchange: Exchange) -> None:
    async def work() -> None:
        exchange.send(200, {}, await exchange.body())

    failure = await guarded(work())
    if isinstance(failure, Failure):
        exchange.send(failure.status, failure.headers, failure.body)


async def test_a_drip_doesn_t_hold_a_connection() -> None:
    """Each byte comes in time; all of them together don't."""
    async with rig(echo_errors) as made:
        client = await made.connect()

        async def drip() -> None:
            for byte in post(b"x" * 100, "x: y"):
                client.writer.write(bytes([byte]))
                await asyncio.sleep(0.05)

        task = asyncio.create_task(drip())
        assert error_of(await client.rest())[0] == 408
        task.cancel()


async def test_idle_connections_are_closed_without_a_word() -> None:
    async with rig() as made:
        assert await made.ask() == b""
        client = await made.connect()
        await client.send(post(b"a"))
        await client.reply()
        assert await client.rest() == b""
        await eventually(lambda: len(made.server) == 0)


@pytest.mark.parametrize("way", ["fin", "rst"])
@pytest.mark.parametrize("phase", ["body", "waiting", "streaming"])
async def test_b03_b04_a_client_that_leaves_cancels_its_task(way: str, phase: str) -> None:
    begun = asyncio.Event()

    async def works(exchange: Exchange) -> None:
        begun.set()
        await exchange.body()
        if phase == "streaming":
            exchange.start(200, {})
            exchange.write(b"first")
        await asyncio.Event().wait()

    async with rig(works, body_s=20) as made:
        client = await made.connect()
        await client.send(post(b"", "content-length: 5", length=False) + (b"abc" if phase == "body" else b"abcde"))
        await begun.wait()
        await asyncio.sleep(0.05)
        client.reset() if way == "rst" else client.writer.close()
        await eventually(lambda: made.cancelled == 1, timeout_s=5)
        await eventually(lambda: len(made.server) == 0)


async def test_a_client_that_closes_its_side_only_has_left_too() -> None:
    async def works(exchange: Exchange) -> None:
        await asyncio.Event().wait()

    async with rig(works) as made:
        client = await made.connect()
        await client.send(post(b"abc"))
        await eventually(lambda: len(made.served) == 1)
        client.writer.write_eof()
        await eventually(lambda: made.cancelled == 1, timeout_s=5)


class Source:
    """Writes whenever it isn't paused, as a replica's connection would."""

    def __init__(self) -> None:
        self.running = True
        self.written = 0

    def pause_reading(self) -> None:
        self.running = False

    def resume_reading(self) -> None:
        self.running = True


async def test_a_slow_reader_stops_its_source_and_holds_little() -> None:
    source = Source()
    chunk = b"x" * 1000

    async def streams(exchange: Exchange) -> None:
        exchange.start(200, {})
        exchange.draw_from(source)
        while source.written < 20_000:
            if source.running:
                exchange.write(chunk)
                source.written += 1
            await asyncio.sleep(0)
        exchange.end()

    async with rig(streams, stall_s=30) as made:
        client = await made.connect()
        await client.send(post(b""))
        await eventually(lambda: not source.running)
        [connection] = made.server._connections
        assert connection.transport.get_write_buffer_size() < 40_000
        other = await made.connect()
        assert source.written < 20_000
        del other
        status, _, body = await client.reply()
        assert (status, len(body)) == (200, 20_000_000)


async def test_a_client_that_reads_nothing_is_cut_in_the_end() -> None:
    async def streams(exchange: Exchange) -> None:
        exchange.start(200, {})
        exchange.write(b"x" * 20_000_000)
        await asyncio.Event().wait()

    async with rig(streams) as made:
        client = await made.connect()
        await client.send(post(b""))
        await eventually(lambda: made.cancelled == 1)
        assert client.reader is not None


async def test_f08_too_many_connections_get_a_503_and_room_comes_back() -> None:
    async with rig(connections=3) as made:
        clients = [await made.connect() for _ in range(3)]
        for client in clients:
            await client.send(post(b"a"))
            await client.reply()
        assert error_of(await made.ask()) == (503, "too_many_connections")
        clients[0].writer.close()
        await eventually(lambda: len(made.server) == 2)
        assert (await made.ask(post(b"a", "connection: close"))).endswith(b"<a>")


async def test_other_routes_are_lent_to_aiohttp_whole() -> None:
    async with rig() as made:
        client = await made.connect()
        await client.send(post(b"a"))
        await client.reply()
        await client.send(post(chunked(b"x" * 5000, 700), CHUNKED, path="/other?a=b", length=False))
        answer = await client.rest()
        assert b"connection: close" in answer.lower()
        assert answer.endswith(b"\r\n\r\nPOST /other?a=b " + b"x" * 5000)
        head = await made.ask(b"HEAD /other HTTP/1.1\r\nhost: x\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and head.endswith(b"\r\n\r\n")
        assert b"GET /v1/chat/completions " in await made.ask(f"GET {PATH} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        absolute = b"GET http://example.org/other?q HTTP/1.1\r\nhost: x\r\n\r\n"
        assert (await made.ask(absolute)).startswith(b"HTTP/1.1 200")
        await eventually(lambda: len(made.server) == 0)


async def test_a_reply_can_hold_no_line_break_in_a_header() -> None:
    async def injects(exchange: Exchange) -> None:
        with pytest.raises(ValueError):
            exchange.send(200, {"x": "a\r\nset-cookie: b"}, b"")
        exchange.send(500, {}, b"")

    async with rig(injects) as made:
        client = await made.connect()
        await client.send(post(b""))
        assert (await client.reply())[0] == 500


async def test_hundreds_of_idle_connections_cost_little() -> None:
    async with rig(idle_s=30) as made:
        clients = [await made.connect() for _ in range(500)]
        for client in clients:
            client.writer.write(post(b"a"))
        for client in clients:
            assert (await client.reply())[0] == 200
        assert len(made.server) == 500
        assert len(asyncio.all_tasks()) < 20
        for client in clients:
            client.writer.close()
        await eventually(lambda: len(made.server) == 0)


async def test_draining_closes_idle_connections_and_ends_the_others_after_their_request() -> None:
    turn = asyncio.Event()

    async def waits(exchange: Exchange) -> None:
        await turn.wait()
        exchange.send(200, {}, b"done")

    async with rig(waits) as made:
        idle, busy = await made.connect(), await made.connect()
        await busy.send(post(b""))
        await eventually(lambda: len(made.served) == 1)
        made.server.drain()
        assert await idle.rest() == b""
        turn.set()
        assert (await busy.reply())[1]["connection"] == "close"
        assert await busy.rest() == b""
