"""A replica's publisher and a gateway's reader, both real, in one event loop."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from gateway.addresses import DEFAULT_NETWORKS, AddressList
from gateway.fleet import Fleet
from gateway.index.plain_index import PlainIndex
from gateway.index.reader import IndexReader
from gateway.records_gate import RecordsGate
from gateway.wire import Wire as GatewayWire
from replica.cache.manager import CacheEvents
from replica.digest import Digest
from replica.protocol.intents import Intents
from replica.protocol.records import Heartbeat, Keys
from replica.protocol.redis_url import parse_redis_url
from replica.protocol.signing import Signer
from replica.publisher import Publisher
from replica.wire import Wire as ReplicaWire
from tests.gateway.fakes import IDENTITY, eventually, heartbeat

KEYS = Keys()


class Seen:
    """What the reader tells the metrics."""

    def __init__(self) -> None:
        self.resyncs: Counter[str] = Counter()
        self.bad: Counter[str] = Counter()
        self.up = False

    def resync(self, reason: str) -> None:
        self.resyncs[reason] += 1

    def bad_record(self, reason: str) -> None:
        self.bad[reason] += 1

    def digest_lag(self, seconds: float) -> None:
        assert seconds >= 0

    def redis_up(self, up: bool) -> None:
        self.up = up


class Rig:
    def __init__(self, name: str) -> None:
        self.name = name
        self.fleet = Fleet(IDENTITY)
        self.index = PlainIndex()
        self.seen = Seen()
        self.held: set[int] = set()
        self.publisher: Publisher

    def change(self, *added: int) -> None:
        self.held.update(added)
        self.publisher.cache_changed(CacheEvents(added, ()))

    def agrees(self) -> bool:
        return self.index.position(self.name) is not None and self.index.hashes_of(self.name) == self.held

    async def follows(self, *added: int, timeout_s: float = 8.0) -> None:
        """A change arrives."""
        self.change(*added)
        await eventually(self.agrees, timeout_s)

    @property
    def routable(self) -> bool:
        return self.name in self.fleet.routable(time.monotonic())


@asynccontextmanager
async def rig(
    url: str,
    gateway_url: str | None = None,
    *,
    name: str = "r0",
    signer: Signer | None = None,
    gateway_signer: Signer | None = None,
    beat: Heartbeat | None = None,
    on_intents: Callable[[Intents], object] = lambda intents: None,
) -> AsyncIterator[Rig]:
    """Started, not waited for."""
    made = Rig(name)
    signer = signer or Signer()
    replica_redis, gateway_redis = parse_redis_url(url), parse_redis_url(gateway_url or url)
    shape = beat or heartbeat(name)
    made.publisher = Publisher(
        lambda: ReplicaWire(replica_redis, KEYS, signer),
        Digest(name),
        lambda epoch: replace(shape, epoch=epoch),
        beats=int(time.time() * 1000),
    )
    reader = IndexReader(
        lambda: GatewayWire(gateway_redis, KEYS),
        made.index,
        made.fleet,
        made.seen,
        on_fleet=lambda: None,
        gate=RecordsGate(KEYS, gateway_signer or signer, AddressList(DEFAULT_NETWORKS)),
        on_intents=lambda intents, now: on_intents(intents),
    )
    publishing = asyncio.create_task(made.publisher.run())
    reading = asyncio.create_task(reader.run())
    try:
        yield made
    finally:
        made.publisher.stop()
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        await publishing
