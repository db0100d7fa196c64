"""Real ZMQ sockets, and all that can happen between an engine and who listens to it."""

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from adopt.mirror import Changes, Mirror
from adopt.stream import EventStream
from replica.protocol.hashing import block_hashes
from tests.adopt.fakes import WIRES, FakePublisher, Path


def path(length: int, start: int = 0) -> Path:
    return tuple(range(start, start + length))


def ours(tokens: Path) -> set[int]:
    return set(block_hashes(tokens, 1))


async def until(check: Callable[[], object], timeout_s: float = 30) -> None:
    async with asyncio.timeout(timeout_s):
        while not check():
            await asyncio.sleep(0.005)


@dataclass
class Listener:
    stream: EventStream
    mirror: Mirror
    told: set[int] = field(default_factory=set)
    """What the fleet would know."""
    epochs: int = 0

    def changed(self, changes: Changes) -> None:
        if changes.cleared:
            self.told, self.epochs = set(), self.epochs + 1
        self.told = (self.told - set(changes.removed)) | set(changes.added)


@asynccontextmanager
async def listening(
    engine: FakePublisher, replay: bool = True, endpoint: str | None = None, lull_s: float = 30
) -> AsyncIterator[Listener]:
    mirror = Mirror(lambda salt: 1)
    replays = engine.replay_endpoint if replay else None
    stream = EventStream(
        endpoint or engine.endpoint, replays, "", mirror, lambda changes: listener.changed(changes), 2.0, lull_s
    )
    listener = Listener(stream, mirror)
    task = asyncio.create_task(stream.run())
    try:
        if endpoint is None:
            await until(lambda: stream.connected and (engine.replays or not replay))
        # Our subscription travels after the handshake.
        await asyncio.sleep(0.1)
        yield listener
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def engine() -> Iterator[FakePublisher]:
    publisher = FakePublisher()
    yield publisher
    publisher.close()


@pytest.fixture(params=WIRES)
def any_engine(request: pytest.FixtureRequest) -> Iterator[FakePublisher]:
    publisher = FakePublisher(WIRES[request.param])
    yield publisher
    publisher.close()


async def test_every_dialect_live_and_replayed(any_engine: FakePublisher) -> None:
    wire = any_engine.wire
    any_engine.publish(wire.stored(path(32), 16, 2))
    async with listening(any_engine) as listener:
        await until(lambda: listener.told == ours(path(32)))
        any_engine.publish(wire.stored(path(48), 16))
        await until(lambda: listener.told == ours(path(48)))
        any_engine.publish(wire.removed(path(48)))
        await until(lambda: listener.told == ours(path(32)))
        any_engine.publish(wire.stored(path(16, 99), 16), lost=True)
        any_engine.publish(wire.removed(path(32)))
        await until(lambda: listener.told == ours(path(16)) | ours(path(16, 99)))
        assert not listener.epochs
        any_engine.publish(wire.cleared(), wire.stored(path(16, 7), 16))
        await until(lambda: listener.told == ours(path(16, 7)))
        assert listener.stream.losses == {}


async def test_a_loss_is_noticed_in_a_lull(engine: FakePublisher) -> None:
    async with listening(engine, lull_s=0.1) as listener:
        engine.publish(engine.wire.stored(path(16), 16))
        await until(lambda: listener.told == ours(path(16)))
        engine.publish(engine.wire.removed(path(16)), lost=True)
        # Whether the lull's question came before the loss or after it, the next batch is followed by another lull.
        engine.publish(engine.wire.stored(path(16, 50), 16), lost=True)
        engine.publish(engine.wire.stored(path(16, 90), 16))
        await until(lambda: listener.told == ours(path(16, 50)) | ours(path(16, 90)))
        engine.publish(engine.wire.removed(path(16, 90)), lost=True)
        asked = len(engine.replays)
        engine.publish(engine.wire.stored(path(16, 120), 16))
        await until(lambda: len(engine.replays) > asked)
        await until(lambda: listener.told == ours(path(16, 50)) | ours(path(16, 120)))
        assert not listener.epochs


async def test_a_gap_beyond_the_buffer_begins_anew(engine: FakePublisher) -> None:
    short = FakePublisher(buffer_batches=2)
    async with listening(short) as listener:
        short.publish(short.wire.stored(path(32), 16, 2))
        await until(lambda: listener.told == ours(path(32)))
        for start in (100, 200, 300):
            short.publish(short.wire.stored(path(16, start), 16), lost=True)
        short.publish(short.wire.stored(path(16, 400), 16))
        await until(lambda: listener.told == ours(path(16, 300)) | ours(path(16, 400)))
        assert (listener.epochs, listener.stream.losses) == (1, {"gap": 1})
    short.close()


async def test_a_batch_that_nobody_has_any_more(engine: FakePublisher) -> None:
    async with listening(engine) as listener:
        engine.publish(engine.wire.stored(path(16), 16))
        await until(lambda: listener.told == ours(path(16)))
        engine.skip()
        engine.publish(engine.wire.stored(path(16, 50), 16))
        await until(lambda: listener.told == ours(path(16, 50)))
        engine.publish(engine.wire.stored(path(16, 90), 16))
        await until(lambda: listener.told == ours(path(16, 50)) | ours(path(16, 90)))
        assert listener.epochs == 1


async def test_without_replay_every_doubt_begins_anew(engine: FakePublisher) -> None:
    engine.publish(engine.wire.stored(path(16), 16))
    async with listening(engine, replay=False) as listener:
        engine.publish(engine.wire.stored(path(32), 16))
        engine.publish(engine.wire.stored(path(16, 50), 16))
        await until(lambda: listener.told == ours(path(16, 50)))
        assert not listener.epochs
        engine.publish(engine.wire.stored(path(16, 60), 16), lost=True)
        engine.publish(engine.wire.stored(path(16, 70), 16))
        await until(lambda: listener.told == ours(path(16, 70)))
        assert listener.stream.losses == {"gap": 1}


@pytest.mark.parametrize("replay", [True, False])
async def test_an_engine_that_restarts_is_another_one(engine: FakePublisher, replay: bool) -> None:
    async with listening(engine, replay) as listener:
        engine.publish(engine.wire.stored(path(32), 16, 2))
        await until(lambda: listener.told == ours(path(32)))
        engine.close()
        await until(lambda: not listener.stream.connected)
        again = FakePublisher(port=engine.port, replay_port=engine.replay_port)
        # Before anything is said: what was known doesn't count any more.
        await until(lambda: listener.told == set() and listener.stream.connected)
        await asyncio.sleep(0.1)
        # As many batches as before: the numbers alone would look right.
        again.publish(again.wire.stored(path(16, 10), 16))
        again.publish(again.wire.stored(path(16, 90), 16))
        await until(lambda: listener.told == ours(path(16, 10)) | ours(path(16, 90)))
        again.close()


async def test_an_engine_that_is_away_for_long_counts_no_more(engine: FakePublisher) -> None:
    async with listening(engine) as listener:
        engine.publish(engine.wire.stored(path(32), 16, 2))
        await until(lambda: listener.told == ours(path(32)))
        engine.close()
        await until(lambda: listener.told == set())
        assert listener.stream.losses == {"away": 1}


async def test_late_and_repeated_batches_change_nothing(engine: FakePublisher) -> None:
    async with listening(engine) as listener:
        engine.publish(engine.wire.stored(path(16), 16))
        engine.publish(engine.wire.removed(path(16)))
        engine.publish(engine.wire.stored(path(16, 50), 16))
        await until(lambda: listener.told == ours(path(16, 50)))
        for number, payload in list(engine._buffer):
            engine.send_number(number, payload)
        engine.publish(engine.wire.stored(path(16, 60), 16))
        await until(lambda: listener.told == ours(path(16, 50)) | ours(path(16, 60)))
        assert not listener.epochs


async def test_a_batch_that_cant_be_read_begins_anew(engine: FakePublisher) -> None:
    async with listening(engine) as listener:
        engine.publish(engine.wire.stored(path(16), 16))
        await until(lambda: listener.told == ours(path(16)))
        engine.publish_raw(b"\xc1")
        engine.publish(engine.wire.stored(path(16, 50), 16))
        await until(lambda: listener.told == ours(path(16, 50)))
        assert listener.stream.losses == {"unreadable": 1}


async def test_another_rank_s_cache_isnt_this_one(engine: FakePublisher) -> None:
    async with listening(engine) as listener:
        engine.publish(engine.wire.stored(path(16), 16), rank=1)
        engine.publish(engine.wire.stored(path(16, 50), 16))
        await until(lambda: listener.told == ours(path(16, 50)))


async def test_a_replay_socket_that_is_silent(engine: FakePublisher, caplog: pytest.LogCaptureFixture) -> None:
    """It costs what it would have given, and not the stream."""
    mirror = Mirror(lambda salt: 1)
    told: list[Changes] = []
    stream = EventStream(engine.endpoint, "tcp://127.0.0.1:1", "", mirror, told.append, 0.1)
    task = asyncio.create_task(stream.run())
    await until(lambda: "no answer within" in caplog.text)
    engine.publish(engine.wire.stored(path(16), 16))
    await until(lambda: mirror.held == ours(path(16)))
    task.cancel()


async def test_an_endpoint_with_a_wildcard_is_bound(engine: FakePublisher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with listening(engine, endpoint=f"tcp://*:{port}") as listener:
        engine._pub.connect(f"tcp://127.0.0.1:{port}")
        await until(lambda: listener.stream.connected)
        await asyncio.sleep(0.1)
        engine.publish(engine.wire.stored(path(16), 16))
        await until(lambda: listener.told == ours(path(16)))


async def test_random_losses_leave_what_the_engine_holds(engine: FakePublisher, seed: int) -> None:
    rng = random.Random(seed)
    held: set[Path] = set()
    async with listening(engine, lull_s=0.1) as listener:
        for _ in range(400):
            tokens = (*[rng.randrange(3)] * 16, *[rng.randrange(3)] * 16)[: rng.choice((16, 32))]
            lost = rng.random() < 0.2
            if tokens in held:
                held.remove(tokens)
                engine.publish(engine.wire.removed(tokens), lost=lost)
            else:
                held.add(tokens)
                engine.publish(engine.wire.stored(tokens, 16), lost=lost)
            if rng.random() < 0.1:
                await asyncio.sleep(0.005)
        # Whatever was lost last: a batch that comes, and then a lull.
        engine.publish()
        expected = set().union(*(ours(tokens) for tokens in held if tokens[:16] in held))
        await until(lambda: listener.told == expected)
        assert not listener.epochs


@pytest.mark.parametrize(("replay", "buffer"), [(True, 10_000), (True, 5), (False, 10_000)])
async def test_random_losses_and_restarts_never_leave_credit_for_what_isnt_held(
    replay: bool, buffer: int, seed: int
) -> None:
    """And with a replay buffer that reaches back far enough there is credit for all that is."""
    rng = random.Random(seed)
    engine = FakePublisher(buffer_batches=buffer)
    held: set[Path] = set()
    async with listening(engine, replay) as listener:
        for _ in range(300):
            tokens = (*[rng.randrange(3)] * 16, *[rng.randrange(3)] * 16)[: rng.choice((16, 32))]
            lost = rng.random() < 0.1
            if tokens in held:
                held.remove(tokens)
                engine.publish(engine.wire.removed(tokens), lost=lost)
            else:
                held.add(tokens)
                engine.publish(engine.wire.stored(tokens, 16), lost=lost)
            if rng.random() < 0.1:
                await asyncio.sleep(0.005)
            if rng.random() < 0.01:
                engine.close()
                held.clear()
                await until(lambda: not listener.stream.connected)
                engine = FakePublisher(engine.wire, engine.port, engine.replay_port, buffer)
                if rng.random() < 0.5:
                    await until(lambda: listener.stream.connected)
        await until(lambda: listener.stream.connected)
        await asyncio.sleep(0.1)
        # After the last there is no other that would show a gap.
        last = engine.publish()
        await until(lambda: listener.stream.position == last)
        expected = set().union(*(ours(tokens) for tokens in held if tokens[:16] in held))
        assert listener.told <= expected
        assert buffer < 10_000 or not replay or listener.told == expected
    engine.close()
