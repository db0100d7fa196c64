"""A gateway's index joins a fleet that is there, or keeps up with it: the real reader, and how long it holds the event
loop."""

import asyncio
import gc
import time

from gateway.addresses import DEFAULT_NETWORKS, AddressList
from gateway.fleet import Fleet
from gateway.identity import Identity
from gateway.index.prefix_index import PrefixIndex
from gateway.index.reader import IndexReader
from gateway.records_gate import RecordsGate
from gateway.wire import Wire
from loadtest.index_bench.held import HeldLoop
from loadtest.index_bench.published import EPOCH, SIGNER
from replica.protocol.records import Keys
from replica.protocol.redis_url import parse_redis_url

_LOOK_S = 0.005
_PATIENCE_S = 120.0


class _Events:
    def __init__(self) -> None:
        self.resyncs = 0

    def resync(self, reason: str) -> None:
        self.resyncs += 1

    def bad_record(self, reason: str) -> None:
        raise AssertionError(f"a record that can't be read: {reason}")

    def digest_lag(self, seconds: float) -> None: ...

    def redis_up(self, up: bool) -> None: ...


class _CountingWire(Wire):
    snapshots = 0

    async def snapshot(self, name: str) -> tuple[bytes, bytes] | None:
        type(self).snapshots += 1
        return await super().snapshot(name)


def follow(url: str, fleet: str, index: PrefixIndex, replicas: int, seq: int) -> dict[str, float]:
    """Seconds until every replica is credited up to `seq`, how long the event loop was held meanwhile, and snapshots
    read for each replica."""
    loop = HeldLoop()
    # As the gateway does.
    gc.collect()
    gc.freeze()
    return loop.run(_follow(loop, url, fleet, index, [f"r{number}" for number in range(replicas)], seq))


async def _follow(
    loop: HeldLoop, url: str, fleet: str, index: PrefixIndex, names: list[str], seq: int
) -> dict[str, float]:
    def connect() -> _CountingWire:
        return _CountingWire(parse_redis_url(url), Keys(fleet))

    # What the client library loads with its first connection is no part of it.
    async with connect() as wire:
        await wire.heartbeats(await wire.members())
    _CountingWire.snapshots = 0
    events = _Events()
    reader = IndexReader(
        connect,
        index,
        Fleet(Identity("m", "t")),
        events,
        on_fleet=lambda: None,
        gate=RecordsGate(Keys(fleet), SIGNER, AddressList(DEFAULT_NETWORKS)),
    )
    loop.start()
    started = time.perf_counter()
    task = asyncio.create_task(reader.run())
    try:
        while not all(index.position(name) == (EPOCH, seq) for name in names):
            await asyncio.sleep(_LOOK_S)
            if time.perf_counter() > started + _PATIENCE_S or task.done():
                raise AssertionError(f"the index doesn't catch up: {index!r}")
        seconds, figures = time.perf_counter() - started, loop.figures()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert events.resyncs == len(names), "a repair more than that of the join"
    return {"seconds": seconds, "snapshots": _CountingWire.snapshots / len(names)} | figures
