"""A fleet as the gateway would know it, with nobody behind it: what a decision is made of, without the network."""

import time
from array import array
from collections import deque
from random import Random

from gateway.fleet import Beat, Fleet, Lease
from gateway.identity import Identity
from gateway.index.factory import make_index
from gateway.router import Router
from gateway.routing.base import RouteRequest
from gateway.routing.registry import make_policy
from replica.protocol.hashing import BLOCK_SIZE, HASH_VERSION
from replica.protocol.records import CostModel, Heartbeat, Load, ReplicaState, Snapshot

SHARED_BLOCKS = 12
"""Of a system prompt of 200 tokens, which every replica holds."""
OWN_BLOCKS = 200
PROMPT_TOKENS = 1025
OUTPUT_TOKENS = 150
PROMPT_BLOCKS = PROMPT_TOKENS // BLOCK_SIZE
GAP_S = 0.001
"""Between requests, on the fleet's own clock."""

_IDENTITY = Identity("m", "t")
_EPOCH = "e"


class Rig:
    def __init__(self, replicas: int) -> None:
        rng = self._rng = Random(replicas)
        self.replicas = replicas
        self._shared = [rng.getrandbits(64) for _ in range(SHARED_BLOCKS)]
        self._fleet, self._index, self._now = Fleet(_IDENTITY), make_index(), 0.0
        names = [f"r{number}" for number in range(replicas)]
        self._fleet.update({name: Beat(_heartbeat(name, rng)) for name in names}, 0.0)
        for name in names:
            own = (rng.getrandbits(64) for _ in range(OWN_BLOCKS))
            self._index.load(name, Snapshot(_EPOCH, 0, "0-0", (*self._shared, *own)))
        self._routers: dict[str, Router] = {}

    def decide(self, policy: str, times: int) -> tuple[list[float], list[float]]:
        """Microseconds that each decision took, by the clock and of this thread. One request a replica is in flight;
        policies keep what they remember from call to call."""
        router = self._routers.setdefault(policy, Router(self._fleet, self._index, make_policy(policy)))
        leases = deque[Lease]()
        passed, computed = [], []
        for _ in range(times):
            self._now += GAP_S
            own = (self._rng.getrandbits(64) for _ in range(PROMPT_BLOCKS - SHARED_BLOCKS))
            request = RouteRequest(PROMPT_TOKENS, array("Q", (*self._shared, *own)))
            cpu, clock = time.thread_time_ns(), time.perf_counter_ns()
            decision = router.route(request, PROMPT_TOKENS + OUTPUT_TOKENS, set(), self._now)
            clock, cpu = time.perf_counter_ns() - clock, time.thread_time_ns() - cpu
            passed.append(clock / 1000)
            computed.append(cpu / 1000)
            assert decision is not None
            leases.append(router.take(request, decision, self._now))
            if len(leases) > self.replicas:
                leases.popleft().release(self._now)
        for lease in leases:
            lease.release(self._now)
        return passed, computed


def _heartbeat(replica: str, rng: Random) -> Heartbeat:
    free = rng.randrange(1000)
    return Heartbeat(
        replica=replica,
        url="http://127.0.0.1:1",
        state=ReplicaState.READY,
        model="m",
        model_fingerprint=_IDENTITY.model_fingerprint,
        tokenizer_fingerprint=_IDENTITY.tokenizer_fingerprint,
        hash_version=HASH_VERSION,
        block_size=BLOCK_SIZE,
        max_context=4096,
        epoch=_EPOCH,
        cost=CostModel(0.005, 2e-4, 1e-8, 1e-4, 512),
        load=Load(
            pending_tokens=rng.choice((0, rng.randrange(5000))),
            waiting=rng.randrange(4),
            decoding=rng.randrange(30),
            free_blocks=free,
            evictable_blocks=rng.randrange(1001 - free),
            total_blocks=1000,
        ),
    )
