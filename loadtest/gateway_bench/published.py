"""Sixteen replicas as a gateway sees them in Redis, on the sockets of two mocks: heartbeats, snapshots, and deltas as
caches change. Two of them hold the bench's prompts."""

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from redis.asyncio import Redis

from loadtest.gateway_bench.loads import MODEL
from replica.protocol.canary import fingerprints
from replica.protocol.hashing import BLOCK_SIZE, HASH_VERSION, block_hashes, namespace_hash
from replica.protocol.records import (
    HEARTBEAT_PERIOD_S,
    STREAM_MAX_ENTRIES,
    CostModel,
    Delta,
    Heartbeat,
    Keys,
    ReplicaState,
    Snapshot,
    StateChange,
    pack_hashes,
    xor_root,
)
from replica.protocol.text import ModelText

REPLICAS = 16
BLOCKS = 20_000
"""That each holds: 320,000 tokens."""
CHANGED_BLOCKS = 64
"""In and out, of each replica and at each heartbeat: a prompt of 1,000 tokens."""
MAX_CONTEXT = 32_768
COST = CostModel(c0=0.008, c_lin=3e-5, c_att=1e-10, c_dec=5e-5, max_step_tokens=8192)
_EPOCH = "bench"


@dataclass(slots=True)
class _Replica:
    beat: Heartbeat
    held: "array[int]"
    """The oldest first."""
    kept: int
    """So many of those behind it stay: the bench's prompts."""
    root: int
    last_id: str = "0-0"
    rng: Random = field(default_factory=Random)

    def step(self) -> Delta:
        added = array("Q", self.rng.randbytes(8 * CHANGED_BLOCKS))
        removed = self.held[self.kept : self.kept + CHANGED_BLOCKS]
        del self.held[self.kept : self.kept + CHANGED_BLOCKS]
        self.held += added
        self.root ^= xor_root(added) ^ xor_root(removed)
        self.beat = replace(self.beat, seq=self.beat.seq + 1, beats=self.beat.beats + 1)
        return Delta(self.beat.replica, _EPOCH, self.beat.seq, added, removed, len(self.held), self.root)


class Published:
    def __init__(self, redis_url: str, urls: Sequence[str], text: ModelText, prompts: Sequence[str], seed: int) -> None:
        """`urls`: of the mocks, in turns. `prompts`: that the first replica of each mock holds."""
        self._redis_url = redis_url
        self._keys = Keys()
        warm = array("Q")
        namespace = namespace_hash(model=text.model_fingerprint, tokenizer=text.tokenizer_fingerprint)
        self.cached_tokens: dict[str, int] = {}
        """Of each prompt: what an engine would say that its cache gave."""
        for prompt in prompts:
            tokens = text.encode_chat(text.render([{"role": "user", "content": prompt}]))
            self.cached_tokens[prompt] = (len(tokens) - 1) // BLOCK_SIZE * BLOCK_SIZE
            warm += array("Q", block_hashes(tokens, namespace))
        # Prompts may begin alike.
        warm = array("Q", dict.fromkeys(warm))
        self.replicas = [
            _made(number, urls[number % len(urls)], text, warm if number < len(urls) else array("Q"), seed)
            for number in range(REPLICAS)
        ]

    async def run(self, ready: asyncio.Event) -> None:
        """Until cancelled. `ready` is set as soon as all is in Redis."""
        redis: Any = Redis.from_url(self._redis_url)
        try:
            for replica in self.replicas:
                await self._join(redis, replica)
            ready.set()
            while True:
                await asyncio.sleep(HEARTBEAT_PERIOD_S)
                for replica in self.replicas:
                    await self._beat(redis, replica)
        finally:
            await redis.aclose()

    async def _join(self, redis: Any, replica: _Replica) -> None:
        await self._beat(redis, replica)
        await self._snapshot(redis, replica)
        await self._beat(redis, replica)
        await redis.xadd(self._keys.stream, StateChange(replica.beat.replica).encode())

    async def _beat(self, redis: Any, replica: _Replica) -> None:
        name = replica.beat.replica
        delta = replica.step()
        pipeline = redis.pipeline(transaction=False)
        pipeline.xadd(self._keys.stream, delta.encode(), maxlen=STREAM_MAX_ENTRIES, approximate=True)
        # Without a life of its own: on a busy machine it would end between two beats.
        pipeline.set(self._keys.heartbeat(name), replica.beat.encode())
        pipeline.sadd(self._keys.replicas, name)
        pipeline.exists(self._keys.snapshot_wanted(name))
        stream_id, _, _, wanted = await pipeline.execute()
        replica.last_id = stream_id.decode()
        if wanted:
            await self._snapshot(redis, replica)

    async def _snapshot(self, redis: Any, replica: _Replica) -> None:
        name, claimed = replica.beat.replica, (len(replica.held), replica.root)
        snapshot = Snapshot(_EPOCH, replica.beat.seq, replica.last_id, pack_hashes(replica.held), claimed)
        await redis.set(self._keys.snapshot(name), snapshot.encode())
        await redis.delete(self._keys.snapshot_wanted(name))


def _made(number: int, url: str, text: ModelText, warm: "array[int]", seed: int) -> _Replica:
    rng = Random(f"{seed}/{number}")
    held = warm + array("Q", rng.randbytes(8 * (BLOCKS - len(warm))))
    beat = Heartbeat(
        replica=f"r{number:02}",
        url=url,
        state=ReplicaState.READY,
        model=MODEL,
        hash_version=HASH_VERSION,
        block_size=BLOCK_SIZE,
        max_context=MAX_CONTEXT,
        epoch=_EPOCH,
        cost=COST,
        **fingerprints(text),
    )
    return _Replica(beat, held, len(warm), xor_root(held), rng=rng)
