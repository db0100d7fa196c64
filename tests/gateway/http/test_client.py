"""The client's side: replicas that answer in every way HTTP has, and some that it hasn't."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.errors import ReplicaDied, ReplicaTimeout, ReplicaUnreachable, UpstreamError
from gateway.http.client import Answer, Pool
from gateway.http.wheel import Wheel
from tests.gateway.fakes import eventually

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Replica:
    """A raw server: `behave` gets each request, once its head and body are read, with the number of its connection."""

    def __init__(self, behave: Callable[["Replica", asyncio.StreamWriter, int], Awaitable[None]]) -> None:
        self._behave = behave
        self.connections = 0
        self.requests: list[bytes] = []
        self.url = ""
        self._writers: list[asyncio.StreamWriter] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self._writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                await self._behave(self, writer, number)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Replica"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/x?y"
        try:
            yield self
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()
            await asyncio.sleep(0.01)


def says(*pieces: bytes, close: bool = False, pause_s: float = 0.0) -> Replica:
    async def behave(replica: Replica, writer: asyncio.StreamWriter, number: int) -> None:
        for piece in pieces:
            writer.write(piece)
            if pause_s:
                await asyncio.sleep(pause_s)
        if close:
            writer.close()

    return Replica(behave)


@asynccontextmanager
async def pool() -> AsyncIterator[Pool]:
    made = Pool(Wheel(asyncio.get_running_loop()), connect_s=1.0)
    try:
        yield made
    finally:
        made.close()
        await asyncio.sleep(0.01)


async def ask(made: Pool, replica: Replica, first_byte_s: float = 2.0, idle_s: float = 2.0) -> Answer:
    return await made.request("POST", replica.url, b"x: y\r\n", b"body", first_byte_s=first_byte_s, idle_s=idle_s)


async def read(made: Pool, replica: Replica) -> tuple[int, bytes]:
    answer = await ask(made, replica)
    try:
        return answer.status, await answer.read()
    finally:
        answer.close()


async def test_connections_are_used_again() -> None:
    async with pool() as made, says(OK).serving() as replica:
        for _ in range(5):
            assert await read(made, replica) == (200, b"ok")
        assert replica.connections == 1 and len(made) == 1
        assert replica.requests[0].startswith(b"POST /v1/x?y HTTP/1.1\r\nhost: 127.0.0.1:")
        assert replica.requests[0].endswith(b"\r\nx: y\r\ncontent-length: 4\r\n\r\nbody")


@pytest.mark.parametrize(
    ("pieces", "close", "body", "pooled"),
    [
        ([CHUNKED + b"2\r\nok\r\n0\r\n\r\n"], False, b"ok", True),
        ([CHUNKED, b"2\r\nok", b"\r\n0\r", b"\n\r\n"], False, b"ok", True),
        ([b"HTTP/1.1 200 OK\r\n\r\n", b"ok"], True, b"ok", False),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], False, b"", True),
        ([b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + OK], False, b"ok", True),
        ([OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")], False, b"ok", False),
        ([OK.replace(b"1.1", b"1.0")], False, b"ok", False),
        ([OK + b"more"], False, b"ok", False),
        ([CHUNKED + b"2\r\nok\r\n0\r\n\r\nmore"], False, b"ok", False),
    ],
)
@pytest.mark.parametrize("pause_s", [0.0, 0.03])
async def test_every_way_to_frame_an_answer(
    pieces: list[bytes], close: bool, body: bytes, pooled: bool, pause_s: float
) -> None:
    async with pool() as made, says(*pieces, close=close, pause_s=pause_s).serving() as replica:
        for _ in range(2):
            assert (await read(made, replica))[1] == body
            await asyncio.sleep(0.05)
        assert replica.connections == (1 if pooled else 2)


@pytest.mark.parametrize(
    "pieces",
    [
        [b"nonsense\r\n\r\n"],
        [b"HTTP/1.1 200 OK\n\n"],
        [b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\nx"],
        [b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort"],
        [CHUNKED + b"5\r\nshor"],
        [CHUNKED + b"5\r\nshort"],
        [CHUNKED + b"nonsense\r\n"],
        [b"HTTP/1.1 200 OK\r\ncontent-"],
        [b""],
    ],
)
async def test_b07_an_answer_that_isn_t_whole_is_a_replica_that_died(pieces: list[bytes]) -> None:
    async with pool() as made, says(*pieces, close=True).serving() as replica:
        with pytest.raises(ReplicaDied):
            await read(made, replica)
        assert len(made) == 0


async def test_an_answer_that_broke_off_before_anybody_read_it_is_not_taken_for_whole() -> None:
    cut = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"
    async with pool() as made, says(cut, close=True).serving() as replica:
        answer = await ask(made, replica)
        await eventually(lambda: not made)
        assert answer.read_at_once() is None
        with pytest.raises(ReplicaDied):
            await answer.read()


async def test_a_replica_that_isn_t_there_is_unreachable() -> None:
    async with pool() as made, says(OK).serving() as replica:
        pass
    async with pool() as made:
        with pytest.raises(ReplicaUnreachable):
            await read(made, replica)


async def test_f07_an_idle_connection_that_closes_just_then_costs_nothing() -> None:
    async def closes_after_each(replica: Replica, writer: asyncio.StreamWriter, number: int) -> None:
        if len(replica.requests) % 2 == 1 or number > 1:
            writer.write(OK)
        else:
            replica.requests.pop()
            writer.transport.abort()

    async with pool() as made, Replica(closes_after_each).serving() as replica:
        for _ in range(2):
            assert await read(made, replica) == (200, b"ok")
        assert (replica.connections, len(replica.requests)) == (2, 2)


async def test_f07_later_it_isn_t_sent_twice() -> None:
    async def dies_at_the_second(replica: Replica, writer: asyncio.StreamWriter, number: int) -> None:
        if len(replica.requests) == 1:
            writer.write(OK)
        else:
            await asyncio.sleep(0.4)
            writer.transport.abort()

    async with pool() as made, Replica(dies_at_the_second).serving() as replica:
        await read(made, replica)
        with pytest.raises(ReplicaDied):
            await read(made, replica)
        assert len(replica.requests) == 2


async def test_f07_many_requests_on_connections_that_close_at_random() -> None:
    async def closes_soon(replica: Replica, writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(OK)
        delay_s = (len(replica.requests) * 7919 % 50) / 10_000
        asyncio.get_running_loop().call_later(delay_s, writer.transport.abort)

    async with pool() as made, Replica(closes_soon).serving() as replica:
        for _ in range(300):
            assert await read(made, replica) == (200, b"ok")


@pytest.mark.parametrize("pieces", [[], [b"HTTP/1.1 200 OK\r\ncontent-"]])
async def test_silence_before_the_head_is_a_timeout(pieces: list[bytes]) -> None:
    async with pool() as made, says(*pieces).serving() as replica:
        with pytest.raises(ReplicaTimeout):
            await ask(made, replica, first_byte_s=0.2)
        assert len(made) == 0


async def test_silence_within_an_answer_is_a_timeout() -> None:
    async with pool() as made, says(CHUNKED + b"2\r\nok\r\n").serving() as replica:
        answer = await ask(made, replica, idle_s=0.2)
        with pytest.raises(ReplicaTimeout):
            await answer.read()


async def test_closing_an_answer_before_its_end_closes_the_connection() -> None:
    async with pool() as made, says(CHUNKED + b"2\r\nok\r\n").serving() as replica:
        answer = await ask(made, replica)
        answer.close()
        assert len(made) == 0
        await ask(made, replica)
        assert replica.connections == 2


async def test_a_cancelled_request_closes_the_connection() -> None:
    async with pool() as made, says().serving() as replica:
        task = asyncio.create_task(ask(made, replica))
        await eventually(lambda: len(replica.requests) == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert len(made) == 0


class Taken:
    """A sink that keeps all it gets."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.over: list[UpstreamError | None] = []

    def data(self, payload: bytes) -> None:
        self.payloads.append(payload)

    def ended(self) -> None:
        self.over.append(None)

    def failed(self, error: UpstreamError) -> None:
        self.over.append(error)


async def test_bytes_are_handed_on_as_they_come_and_the_end_is_told_once() -> None:
    pieces = [CHUNKED, b"3\r\none\r\n", b"3\r\ntwo\r\n", b"0\r\n\r\n"]
    async with pool() as made, says(*pieces, pause_s=0.05).serving() as replica:
        answer = await ask(made, replica)
        taken = Taken()
        answer.pour_into(taken)
        await eventually(lambda: bool(taken.over))
        assert (taken.payloads, taken.over) == ([b"one", b"two"], [None])


async def test_nobody_takes_it_so_it_isn_t_read_either() -> None:
    body = b"x" * 30_000_000
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 30000000\r\n\r\n"
    async with pool() as made, says(head + body).serving() as replica:
        answer = await ask(made, replica)
        await asyncio.sleep(0.2)
        assert sum(map(len, answer._ahead)) < 2_000_000
        assert await answer.read() == body


@pytest.mark.parametrize(("after", "pooled"), [(b"0\r\n\r\n", True), (b"", False), (b"5\r\nextra\r\n", False)])
async def test_b09_what_comes_after_all_that_matters_decides_about_the_connection(after: bytes, pooled: bool) -> None:
    pieces = [CHUNKED + b"4\r\nDONE\r\n", after]
    async with pool() as made, says(*pieces, pause_s=0.05).serving() as replica:
        answer = await ask(made, replica)
        answer.pour_into(Taken())
        answer.settle()
        answer.close()
        await asyncio.sleep(0.2 if pooled else 1.4)
        assert len(made) == (1 if pooled else 0)


async def test_b09_data_on_an_idle_connection_ends_it() -> None:
    async def speaks_later(replica: Replica, writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(OK)
        await asyncio.sleep(0.05)
        writer.write(OK)

    async with pool() as made, Replica(speaks_later).serving() as replica:
        assert await read(made, replica) == (200, b"ok")
        await eventually(lambda: len(made) == 0)
        assert await read(made, replica) == (200, b"ok")
        assert replica.connections == 2


async def test_closing_the_pool_tells_whoever_reads() -> None:
    async with pool() as made, says(CHUNKED + b"2\r\nok\r\n").serving() as replica:
        answer = await ask(made, replica)
        reading = asyncio.create_task(answer.read())
        await asyncio.sleep(0.05)
        made.close()
        with pytest.raises(ReplicaDied):
            await reading
