"""What replicas would have written to Redis, with signatures."""

from array import array
from random import Random
from typing import Any

from redis.asyncio import Redis

from replica.protocol.hashing import BLOCK_SIZE, HASH_VERSION
from replica.protocol.records import CostModel, Delta, Heartbeat, Keys, ReplicaState, Snapshot, xor_root
from replica.protocol.signing import Signer

EPOCH = "e"
SIGNER = Signer.of(b"what this bench signs with")


class PublishedReplica:
    """Of random blocks."""

    def __init__(self, name: str, blocks: int, rng: Random) -> None:
        self.name = name
        self._rng = rng
        self._held = array("Q", rng.randbytes(8 * blocks))
        self._root = xor_root(self._held)
        self._seq = 0

    def heartbeat(self) -> Heartbeat:
        return Heartbeat(
            replica=self.name,
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

    def snapshot(self) -> Snapshot:
        return Snapshot(EPOCH, self._seq, "0-0", self._held, (len(self._held), self._root))

    def next_delta(self, blocks: int) -> Delta:
        """As many blocks added as removed, the oldest."""
        added = array("Q", self._rng.randbytes(8 * blocks))
        removed, self._held = self._held[:blocks], self._held[blocks:] + added
        self._root ^= xor_root(added) ^ xor_root(removed)
        self._seq += 1
        return Delta(self.name, EPOCH, self._seq, added, removed, len(self._held), self._root)


async def publish_fleet(
    url: str, fleet: str, replicas: list[PublishedReplica], deltas: int, blocks: int
) -> dict[str, float]:
    """Heartbeats and snapshots, and so many deltas of each replica since, of so many blocks. Returns bytes of Redis's
    memory: of all that was written, and of the snapshots."""
    keys = Keys(fleet)
    redis: Any = Redis.from_url(url)
    try:
        before = (await redis.info("memory"))["used_memory"]
        snapshots = 0
        for replica in replicas:
            # Without a life of its own, unlike a real one: nobody renews it here.
            await redis.set(keys.heartbeat(replica.name), _sealed(keys.heartbeat(replica.name), replica.heartbeat()))
            await redis.sadd(keys.replicas, replica.name)
            await redis.set(keys.snapshot(replica.name), _sealed(keys.snapshot(replica.name), replica.snapshot()))
            snapshots += await redis.memory_usage(keys.snapshot(replica.name))
            for _ in range(deltas):
                await redis.xadd(keys.stream, SIGNER.sign_entry(keys.stream, replica.next_delta(blocks).encode()))
        return {"bytes": (await redis.info("memory"))["used_memory"] - before, "snapshot_bytes": snapshots}
    finally:
        await redis.aclose()


async def publish_deltas(url: str, fleet: str, replicas: list[PublishedReplica], deltas: int, blocks: int) -> None:
    """So many of each, in turns, as quickly as can be."""
    stream = Keys(fleet).stream
    redis: Any = Redis.from_url(url)
    try:
        for _ in range(deltas):
            for replica in replicas:
                await redis.xadd(stream, SIGNER.sign_entry(stream, replica.next_delta(blocks).encode()))
    finally:
        await redis.aclose()


def _sealed(key: str, record: Heartbeat | Snapshot) -> bytes:
    return SIGNER.seal(key, record.encode())
