"""A gateway's index joins a fleet that is there: what replicas would have written to Redis, and the real reader."""

import asyncio
import time
from array import array
from random import Random
from typing import Any

from redis.asyncio import Redis

from gateway.addresses import DEFAULT_NETWORKS, AddressList
from gateway.fleet import Fleet
from gateway.identity import Identity
from gateway.index.prefix_index import PrefixIndex
from gateway.index.reader import IndexReader
from gateway.records_gate import RecordsGate
from gateway.wire import Wire
from replica.protocol.hashing import BLOCK_SIZE, HASH_VERSION
from replica.protocol.records import (
    CostModel,
    Delta,
    Heartbeat,
    Keys,
    ReplicaState,
    Snapshot,
    xor_root,
)
from replica.protocol.redis_url import parse_redis_url
from replica.protocol.signing import Signer

DELTAS = 10
"""Of each replica since its snapshot."""
DELTA_BLOCKS = 64
EPOCH = "e"

_TICK_S = 0.0005
_PATIENCE_S = 120.0


class _Events:
    def resync(self, reason: str) -> None: ...

    def bad_record(self, reason: str) -> None:
        raise AssertionError("a record that can't be read")

    def digest_lag(self, seconds: float) -> None: ...

    def redis_up(self, up: bool) -> None: ...


async def publish_fleet(url: str, fleet: str, replicas: int, blocks: int) -> dict[str, float]:
    """Bytes of Redis's memory a block: of all that was written, and of the snapshots."""
    keys, rng = Keys(fleet), Random(1)
    redis: Any = Redis.from_url(url)
    try:
        before = (await redis.info("memory"))["used_memory"]
        snapshots = 0
        for number in range(replicas):
            name = f"r{number}"
            held = array("Q", rng.randbytes(8 * blocks))
            # Without a life of its own, unlike a real one: nobody renews it here.
            await redis.set(keys.heartbeat(name), _heartbeat(name).encode())
            await redis.sadd(keys.replicas, name)
            await redis.set(keys.snapshot(name), Snapshot(EPOCH, 0, "0-0", tuple(held)).encode())
            snapshots += await redis.memory_usage(keys.snapshot(name))
            root = xor_root(held)
            for seq in range(1, DELTAS + 1):
                added = tuple(array("Q", rng.randbytes(8 * DELTA_BLOCKS)))
                removed = tuple(held[(seq - 1) * DELTA_BLOCKS : seq * DELTA_BLOCKS])
                root ^= xor_root(added) ^ xor_root(removed)
                await redis.xadd(keys.stream, Delta(name, EPOCH, seq, added, removed, blocks, root).encode())
        used = (await redis.info("memory"))["used_memory"] - before
        return {"bytes_per_block": used / replicas / blocks, "snapshot_bytes_per_block": snapshots / replicas / blocks}
    finally:
        await redis.aclose()


async def join(url: str, fleet: str, index: PrefixIndex, replicas: int, blocks: int) -> dict[str, float]:
    """Seconds until every replica gets full credit, and the longest time that the event loop was held meanwhile."""
    reader = IndexReader(
        lambda: Wire(parse_redis_url(url), Keys(fleet)),
        index,
        Fleet(Identity("m", "t")),
        _Events(),
        on_fleet=lambda: None,
        gate=RecordsGate(Keys(fleet), Signer(), AddressList(DEFAULT_NETWORKS)),
    )
    started = time.perf_counter()
    task = asyncio.create_task(reader.run())
    longest, last = 0.0, started
    try:
        while not all(index.position(f"r{number}") == (EPOCH, DELTAS) for number in range(replicas)):
            await asyncio.sleep(_TICK_S)
            now = time.perf_counter()
            longest, last = max(longest, now - last - _TICK_S), now
            if now > started + _PATIENCE_S or task.done():
                raise AssertionError(f"the index doesn't catch up: {len(index.replicas())} of {replicas}")
        seconds = time.perf_counter() - started
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return {"seconds": seconds, "longest_hold_ms": longest * 1e3}


def _heartbeat(replica: str) -> Heartbeat:
    return Heartbeat(
        replica=replica,
        url="http://127.0.0.1:1",
        state=ReplicaState.READY,
        model="m",
        model_fingerprint="m",
        tokenizer_fingerprint="t",
        hash_version=HASH_VERSION,
        block_size=BLOCK_SIZE,
        max_context=4096,
        epoch=EPOCH,
        cost=CostModel(0.005, 2e-4, 1e-8, 1e-4, 512),
    )
