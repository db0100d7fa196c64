"""From an outbox through a real Valkey, as the reader of another gateway gets it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from gateway.addresses import DEFAULT_NETWORKS, AddressList
from gateway.intents.outbox import PENDING_MAX, Outbox
from gateway.intents.publisher import IntentPublisher
from gateway.records_gate import RecordsGate
from gateway.wire import RENEW_S, Wire
from replica.protocol.intents import STREAM_MAX_ENTRIES, Intents
from replica.protocol.records import FLEET_TTL_S, Keys
from replica.protocol.redis_url import parse_redis_url
from replica.protocol.shape import RecordError
from replica.protocol.signing import Signer
from tests.gateway.fakes import eventually, redis_client

KEYS = Keys()
SIGNER = Signer.of(b"a secret of the whole fleet")


class Seen:
    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self.sent = 0

    def intents_sent(self, intents: int) -> None:
        self.sent += intents

    def intents_dropped(self, reason: str, intents: int) -> None:
        self.dropped[reason] += intents


class Rig:
    def __init__(self) -> None:
        self.seen = Seen()
        self.clock: Callable[[], float] = asyncio.get_running_loop().time
        self.outbox = Outbox("g0", self.seen.intents_dropped)
        self.outbox.peers.hear("another", -1, self.clock())

    def route(self, *hashes: int) -> int:
        return self.outbox.routed("r1", 100, hashes, self.clock())

    def end(self, number: int) -> None:
        self.outbox.done(number, self.clock())

    @asynccontextmanager
    async def publishing(self, connect: Callable[[], Any]) -> AsyncIterator[None]:
        publisher = IntentPublisher(connect, self.outbox, self.seen, clock=self.clock, jitter=lambda: 0.0)
        task = asyncio.create_task(publisher.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def wire_to(url: str, signer: Signer | None = None) -> Callable[[], Wire]:
    return lambda: Wire(parse_redis_url(url), KEYS, signer)


async def told(redis: Any, signer: Signer | None = None) -> list[Intents]:
    gate = RecordsGate(KEYS, signer or Signer(), AddressList(DEFAULT_NETWORKS))
    return [gate.intents(fields) for _, fields in await redis.xrange(KEYS.intents)]


async def test_what_is_routed_and_done_is_told(redis_url: str) -> None:
    made = Rig()
    async with redis_client(redis_url) as redis, made.publishing(wire_to(redis_url)):
        number = made.route(1, 2)
        await eventually(lambda: made.seen.sent == 1)
        made.end(number)
        async with asyncio.timeout(5):
            while not (entries := await told(redis)) or not entries[-1].done:
                await asyncio.sleep(0.01)
        assert [tuple(intent.hashes) for entry in entries for intent in entry.routed] == [(1, 2)]
        assert [(done.number, done.replica) for entry in entries for done in entry.done] == [(number, "r1")]


async def test_the_stream_is_short_and_outlives_the_last_gateway_by_an_hour_at_most(redis_url: str) -> None:
    entry, now = Intents("g0").encode(), 0.0
    async with redis_client(redis_url) as redis:

        async def lives() -> float:
            return float(await redis.pttl(KEYS.intents)) / 1000

        async with Wire(parse_redis_url(redis_url), KEYS, clock=lambda: now) as wire:
            await wire.add(entry)
            assert FLEET_TTL_S - 10 < await lives() <= FLEET_TTL_S
            # Not renewed by each; but soon where it was begun anew.
            await redis.delete(KEYS.intents)
            await wire.add(entry)
            assert await lives() < 0
            now += RENEW_S
            await wire.add(entry)
            assert FLEET_TTL_S - 10 < await lives() <= FLEET_TTL_S
            for _ in range(STREAM_MAX_ENTRIES + 500):
                await wire.add(entry)
            # Redis cuts off whole nodes.
            assert STREAM_MAX_ENTRIES <= await redis.xlen(KEYS.intents) <= STREAM_MAX_ENTRIES + 200
        assert not await redis.exists(KEYS.stream)


async def test_with_a_fleet_key_they_are_signed(redis_url: str) -> None:
    made = Rig()
    async with redis_client(redis_url) as redis, made.publishing(wire_to(redis_url, SIGNER)):
        made.route(1)
        await eventually(lambda: made.seen.sent == 1)
        assert [len(entry.routed) for entry in await told(redis, SIGNER)][-1] == 1
        [(_, fields)] = await redis.xrevrange(KEYS.intents, count=1)
        gate = RecordsGate(KEYS, SIGNER, AddressList(DEFAULT_NETWORKS))
        for bad in ({**fields, b"gateway": b"g1"}, {name: fields[name] for name in fields if name != b"sig"}):
            with pytest.raises(RecordError) as caught:
                gate.intents(bad)
            assert caught.value.reason == "signature"
        # Nor is it believed under another key.
        with pytest.raises(RecordError) as caught:
            gate.entry(fields)
        assert caught.value.reason == "signature"


async def test_while_redis_is_away_nothing_waits_and_what_is_old_is_dropped(redis_url: str) -> None:
    """It comes back, and the next ones are told."""
    made = Rig()
    up = False

    def connect() -> Wire:
        return Wire(parse_redis_url(redis_url if up else "redis://127.0.0.1:1"), KEYS)

    async with made.publishing(connect):
        for _ in range(PENDING_MAX + 3):
            made.route()
        assert made.seen.dropped == {"full": 3}
        await asyncio.sleep(0.6)
        assert made.seen.sent == 0
        up = True
        await eventually(lambda: made.seen.dropped["stale"] == PENDING_MAX)
        made.route(9)
        await eventually(lambda: made.seen.sent == 1)


async def test_a_write_that_fails_is_lost_and_counted() -> None:
    class Broken:
        async def __aenter__(self) -> "Broken":
            return self

        async def __aexit__(self, *error: object) -> None: ...

        async def add(self, entry: dict[str, Any]) -> None:
            raise RedisConnectionError("gone")

    made = Rig()
    made.route(1)
    async with made.publishing(Broken):
        await eventually(lambda: made.seen.dropped["lost"] == 1)
        made.route(2)
        await eventually(lambda: made.seen.dropped["lost"] == 2)
    assert made.seen.sent == 0
