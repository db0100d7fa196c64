"""A gateway in virtual time: the real router, fleet, index and policy, told of the replicas as late as in life."""

from array import array
from collections import deque
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from gateway.fleet import Beat, Fleet, Incarnation, Lease
from gateway.hold.desk import FrontDesk
from gateway.hold.guest import Guest, Terms
from gateway.identity import Identity
from gateway.index.factory import make_index
from gateway.intents.outbox import Outbox
from gateway.router import Router
from gateway.routing.base import RouteRequest
from gateway.routing.registry import make_policy
from gateway.trust import Prediction
from loadtest.simulate.prompts import Request
from replica.protocol.hashing import BLOCK_SIZE, HASH_VERSION
from replica.protocol.intents import Intents
from replica.protocol.records import Delta, Heartbeat, ReplicaState

MODEL = "simulated"
IDENTITY = Identity(MODEL, MODEL)
POLL_S = 0.25
"""As gateway/index/reader.py reads the heartbeats."""
_MAX_CONTEXT = 1 << 40
_SWEPT_AT_A_POLL = 64


@dataclass(slots=True, eq=False)
class Call:
    """A request on its way, from its arrival at the gateway to its end."""

    request: Request
    gateway: "SimGateway"
    at: float
    route: RouteRequest = field(init=False)
    guest: Guest | None = None
    replica: str = ""
    epoch: str = ""
    lease: Lease | None = None
    predicted: Prediction | None = None
    """Of the prompt tokens from its cache. The decision itself isn't kept: with 1,000 replicas it has 150 kB."""
    tried: set[Incarnation] = field(default_factory=set)
    held_s: float = 0.0
    attempts: int = 0
    first_at: float | None = None
    done_at: float | None = None
    failed: bool = False
    delivered: int = 0
    """Prompt tokens from the replica's cache."""

    def __post_init__(self) -> None:
        self.route = RouteRequest(self.request.tokens, array("Q", self.request.hashes))


class SimGateway:
    def __init__(self, name: str, policy: str) -> None:
        self.fleet = Fleet(IDENTITY)
        self.index = make_index()
        self.outbox = Outbox(name)
        self.router = Router(self.fleet, self.index, make_policy(policy), self.outbox)
        self.desk = FrontDesk(self.router)
        self.held: dict[Guest, Call] = {}
        self.looks_at = float("inf")
        """When somebody who is held is looked at next, if that is planned."""
        self.polled_at = float("-inf")
        self.waiting: deque[Call] = deque()
        """Calls that no replica may take now."""
        self.intents_at = float("inf")
        """When it is next to tell the others, if that is planned."""
        self._deltas: deque[tuple[float, Delta]] = deque()

    def heard(self, intents: Intents, now: float) -> None:
        """Where another gateway has sent requests."""
        self.router.heard(intents, now)

    def will_hear(self, delta: Delta, at: float) -> None:
        self._deltas.append((at, delta))

    def poll(self, beats: Mapping[str, Beat], alive: Set[str], now: float) -> None:
        """`beats`: heartbeats that are new since `polled_at`. `alive`: replicas that have one at all."""
        self.polled_at = now
        self._listen(now)
        self.fleet.update(beats, now, kept=alive)
        for replica in self.index.replicas():
            if replica not in alive:
                self.index.drop(replica)
        self.index.sweep(_SWEPT_AT_A_POLL)

    def send(self, call: Call, now: float) -> bool:
        """Routes the call and takes its lease, or holds it; False where no replica may take it."""
        self._listen(now)
        guest = call.guest = Guest(call.route, 0, Terms(call.request.tenant), call.tried)
        if not self.desk.arrive(guest, now):
            return False
        if guest.is_held:
            self.held[guest] = call
        else:
            self._go(call, now)
        return True

    def next(self, now: float) -> Call | None:
        """One that was held goes now."""
        self._listen(now)
        guest = self.desk.next(now)
        if guest is None:
            return None
        call = self.held.pop(guest)
        self._go(call, now)
        return call

    def _go(self, call: Call, now: float) -> None:
        assert call.guest is not None and call.guest.considered is not None
        decision, call.guest.considered = call.guest.considered.decision, None
        call.predicted = Prediction(
            possible=BLOCK_SIZE * min(len(call.route.hashes), (call.route.tokens - 1) // BLOCK_SIZE),
            expected=decision.cached_tokens,
            held=decision.held_tokens,
        )
        call.replica = decision.choice
        call.epoch = self.fleet.heartbeat(decision.choice).epoch
        call.lease = self.router.take(call.route, decision, now)
        call.attempts += 1

    def first_token(self, call: Call, now: float) -> None:
        assert call.lease is not None and call.predicted is not None and call.guest is not None
        self.desk.leave(call.guest, now)
        call.lease.first_token(now)
        self.fleet.succeeded(call.replica)
        self.fleet.observe((call.replica, call.epoch), call.route.tokens, call.predicted, call.delivered, now)

    def end(self, call: Call, now: float) -> None:
        assert call.lease is not None and call.guest is not None
        self.desk.leave(call.guest, now)
        call.lease.release(now)
        call.lease = None

    def lost(self, call: Call, now: float) -> None:
        """Its replica can't be reached, or has died over it."""
        self.end(call, now)
        self.fleet.trip(call.replica, now)
        call.tried.add((call.replica, call.epoch))

    def _listen(self, now: float) -> None:
        deltas = self._deltas
        while deltas and deltas[0][0] <= now:
            self.index.apply(deltas.popleft()[1])


def heartbeat(**of_the_replica: Any) -> Heartbeat:
    return Heartbeat(
        url="sim://",
        state=ReplicaState.READY,
        model=MODEL,
        model_fingerprint=MODEL,
        tokenizer_fingerprint=MODEL,
        hash_version=HASH_VERSION,
        block_size=BLOCK_SIZE,
        max_context=_MAX_CONTEXT,
        **of_the_replica,
    )
