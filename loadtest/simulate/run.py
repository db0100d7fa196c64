"""One run: a workload, a fleet of simulated replicas, and gateways in front of it, in virtual time."""

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from gateway.fleet import Beat
from gateway.intents.outbox import PERIOD_S
from loadtest.simulate.events import Events
from loadtest.simulate.gateway import POLL_S, Call, SimGateway, heartbeat
from loadtest.simulate.prompts import Request
from loadtest.simulate.replica import SimReplica, Told
from loadtest.simulate.workload import Workload
from replica.cache.manager import CacheManager, KVCache
from replica.config import Order
from replica.profiles import Profile
from replica.protocol.intents import Intents
from replica.protocol.records import HEARTBEAT_PERIOD_S, HEARTBEAT_TTL_S

MAX_ATTEMPTS = 5
"""As in gateway/dispatch.py."""

QUEUE_S = 30.0
"""A call waits so long for a replica, as the gateway does by default."""


@dataclass(frozen=True, slots=True)
class FleetShape:
    """Times in seconds."""

    profile: Profile
    """In real tokens."""
    profiles: tuple[Profile, ...] = ()
    """Of the replicas in turn, where they differ."""
    replicas: int = 8
    gateways: int = 1
    speeds: tuple[float, ...] = (1.0,)
    """Of the replicas in turn, relative to the profile."""
    failures: tuple[tuple[int, float], ...] = ()
    """Which replica dies, and when."""
    back_after: float = float("inf")
    """Until a replica that died is there again, with an empty cache."""
    digest_delay: float = 0.025
    intents_delay: float = 0.001
    """Until a gateway hears where another one has sent a request, once that is told. Measured between two processes
    over a Valkey, at 20 requests/s: median 0.9 ms, 90th percentile 2.5 ms."""
    latency: float = 0.001
    """Of each way between gateway and replica."""
    order: Order = Order.SHORTEST
    make_cache: Callable[[int], KVCache] = CacheManager


@dataclass(slots=True)
class Outcome:
    calls: list[Call]
    """In order of arrival."""
    replicas: list[SimReplica]
    ended_at: float = 0.0


@dataclass(slots=True)
class _Host:
    """A replica in its place in the fleet."""

    replica: SimReplica
    calls: dict[int, Call] = field(default_factory=dict)
    beat: Beat | None = None
    beat_at: float = 0.0
    beats: int = 0
    planned_at: float = float("inf")
    is_dead: bool = False


class Simulation:
    def __init__(self, workload: Workload, shape: FleetShape, policy: str, seed: int) -> None:
        self._workload = workload
        self._shape = shape
        self._events = Events()
        randomness = random.Random(seed)
        profiles = [profile.coarser(workload.stride) for profile in shape.profiles or (shape.profile,)]
        self._hosts: dict[str, _Host] = {}
        for number in range(shape.replicas):
            profile, speed = profiles[number % len(profiles)], shape.speeds[number % len(shape.speeds)]
            name = f"r{number:04d}"
            self._hosts[name] = _Host(self._replica(name, 1, profile.faster(speed)))
        self._gateways = [SimGateway(f"g{number}", policy) for number in range(shape.gateways)]
        self._followers: dict[int, list[Request]] = {}
        self._open = len(workload.requests)
        self._outcome = Outcome([], [])
        self._plan(randomness)

    def run(self) -> Outcome:
        # Of all that is made nothing is garbage but by its count of references, and to look for cycles in the caches
        # of 1,000 replicas takes longer than all the rest.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            self._events.run(lambda: self._open > 0)
        finally:
            if was_enabled:
                gc.enable()
        self._outcome.ended_at = self._events.now
        self._outcome.replicas = [host.replica for host in self._hosts.values()]
        return self._outcome

    def _replica(self, name: str, starts: int, profile: Profile) -> SimReplica:
        shape = self._shape
        return SimReplica(name, f"e{starts}", profile, self._workload.stride, shape.order, shape.make_cache)

    def _plan(self, randomness: random.Random) -> None:
        """All that happens of itself: heartbeats, polls, failures, and arrivals that wait for nobody."""
        at = self._events.at
        for host in self._hosts.values():
            self._beat(host)
            self._publish(host, even_if_empty=True)
            at(randomness.uniform(0, HEARTBEAT_PERIOD_S), self._beat_on, host, host.replica)
        for gateway in self._gateways:
            self._poll(gateway)
            at(randomness.uniform(0, POLL_S), self._poll_on, gateway)
            if len(self._gateways) > 1:
                gateway.outbox.wake = partial(self._plan_intents, gateway)
                gateway.intents_at = randomness.uniform(0, PERIOD_S)
                at(gateway.intents_at, self._send_intents, gateway, gateway.intents_at)
        for number, time in self._shape.failures:
            at(time, self._die, list(self._hosts.values())[number])
        for request in self._workload.requests:
            if request.after < 0:
                at(request.at_s, self._arrive, request)
            else:
                self._followers.setdefault(request.after, []).append(request)

    def _arrive(self, request: Request) -> None:
        now = self._events.now
        call = Call(request, self._gateways[len(self._outcome.calls) % len(self._gateways)], now)
        self._outcome.calls.append(call)
        self._send(call)

    def _send(self, call: Call) -> None:
        now = self._events.now
        if call.gateway.send(call, now):
            if call.lease is not None:
                self._events.at(now + self._shape.latency, self._deliver, call)
            self._release(call.gateway)
        elif now < call.at + QUEUE_S and call.attempts < MAX_ATTEMPTS:
            call.gateway.waiting.append(call)
        else:
            call.failed = True
            self._over(call)

    def _release(self, gateway: SimGateway) -> None:
        """Something has changed: who is held may go."""
        now = self._events.now
        while (call := gateway.next(now)) is not None:
            self._events.at(now + self._shape.latency, self._deliver, call)
        next_at = gateway.desk.next_at(now)
        if next_at < min(gateway.looks_at, now + POLL_S):
            gateway.looks_at = next_at
            self._events.at(next_at, self._look, gateway, next_at)

    def _look(self, gateway: SimGateway, planned_at: float) -> None:
        if planned_at == gateway.looks_at:
            gateway.looks_at = float("inf")
            self._release(gateway)

    def _deliver(self, call: Call) -> None:
        host = self._hosts[call.replica]
        if host.is_dead:
            self._events.at(self._events.now + self._shape.latency, self._lost, call)
            return
        host.calls[call.request.number] = call
        host.replica.add(call.request, self._events.now)
        self._look_at(host)

    def _wake(self, host: _Host, planned_at: float) -> None:
        if planned_at == host.planned_at and not host.is_dead:
            host.planned_at = float("inf")
            host.replica.advance(self._events.now)
            self._look_at(host)

    def _look_at(self, host: _Host) -> None:
        """Takes what a replica that was just advanced has to tell, and plans the next look."""
        self._tell(host, host.replica.take_told())
        self._publish(host)
        next_at = host.replica.next_at()
        if next_at < float("inf") and next_at != host.planned_at:
            host.planned_at = next_at
            self._events.at(max(next_at, self._events.now), self._wake, host, next_at)

    def _tell(self, host: _Host, told: Told) -> None:
        at = self._events.now + self._shape.latency
        for job in told.first:
            call = host.calls[job.request.number]
            call.delivered = job.sequence.num_cached
            self._events.at(at, self._first, call)
        for job in told.done:
            self._events.at(at, self._done, host.calls.pop(job.request.number))

    def _publish(self, host: _Host, even_if_empty: bool = False) -> None:
        delta = host.replica.take_delta(even_if_empty)
        if delta is not None:
            at = self._events.now + (0.0 if even_if_empty else self._shape.digest_delay)
            for gateway in self._gateways:
                gateway.will_hear(delta, at)

    def _first(self, call: Call) -> None:
        call.first_at = self._events.now
        call.gateway.first_token(call, self._events.now)
        self._release(call.gateway)

    def _done(self, call: Call) -> None:
        call.gateway.end(call, self._events.now)
        self._release(call.gateway)
        self._over(call)

    def _over(self, call: Call) -> None:
        now = self._events.now
        call.done_at = now
        self._open -= 1
        for request in self._followers.pop(call.request.number, ()):
            self._events.at(now + request.at_s, self._arrive, request)

    def _beat(self, host: _Host) -> None:
        now, replica = self._events.now, host.replica
        load = replica.load(now)
        host.beats += 1
        host.beat_at = now
        host.beat = Beat(
            heartbeat(
                replica=replica.name,
                epoch=replica.epoch,
                cost=replica.profile.cost,
                load=load,
                load_age_s=max(0.0, now - replica.step_began_at),
                order=self._shape.order,
                max_running=replica.profile.max_running,
                seq=replica.seq,
                beats=host.beats,
            )
        )

    def _beat_on(self, host: _Host, replica: SimReplica) -> None:
        if not host.is_dead and host.replica is replica:
            self._beat(host)
            self._look_at(host)
            self._events.at(self._events.now + HEARTBEAT_PERIOD_S, self._beat_on, host, replica)

    def _poll(self, gateway: SimGateway) -> None:
        now = self._events.now
        known_at, oldest = gateway.polled_at, now - HEARTBEAT_TTL_S
        alive = {name: host for name, host in self._hosts.items() if host.beat is not None and host.beat_at > oldest}
        # A heartbeat that it has read before tells it nothing, and there are many.
        beats = {
            name: Beat(host.beat.heartbeat, now - host.beat_at)
            for name, host in alive.items()
            if host.beat is not None and host.beat_at >= known_at
        }
        gateway.poll(beats, alive.keys(), now)

    def _poll_on(self, gateway: SimGateway) -> None:
        self._poll(gateway)
        for _ in range(len(gateway.waiting)):
            self._send(gateway.waiting.popleft())
        self._release(gateway)
        self._events.at(self._events.now + POLL_S, self._poll_on, gateway)

    def _plan_intents(self, gateway: SimGateway) -> None:
        """As gateway/intents/publisher.py: what there is to tell goes out at the outbox's own pace."""
        now = self._events.now
        due = max(now, gateway.outbox.next_due(now))
        if due < gateway.intents_at:
            gateway.intents_at = due
            self._events.at(due, self._send_intents, gateway, due)

    def _send_intents(self, gateway: SimGateway, planned_at: float) -> None:
        now = self._events.now
        if planned_at != gateway.intents_at:
            return
        gateway.intents_at = float("inf")
        intents = gateway.outbox.take(now)
        if intents is not None:
            for other in self._gateways:
                if other is not gateway:
                    self._events.at(now + self._shape.intents_delay, self._hear, other, intents)
        self._plan_intents(gateway)

    def _hear(self, gateway: SimGateway, intents: Intents) -> None:
        gateway.heard(intents, self._events.now)
        self._release(gateway)

    def _die(self, host: _Host) -> None:
        """What it was about to say is never heard; its clients see the connection break."""
        host.is_dead = True
        for call in host.calls.values():
            self._events.at(self._events.now + self._shape.latency, self._lost, call)
        host.calls.clear()
        if self._shape.back_after < float("inf"):
            self._events.at(self._events.now + self._shape.back_after, self._come_back, host)

    def _come_back(self, host: _Host) -> None:
        """With an epoch of its own; what the place has computed so far still counts."""
        old = host.replica
        new = host.replica = self._replica(old.name, int(old.epoch[1:]) + 1, old.profile)
        new.computed_tokens, new.busy_s, new.preemptions = old.computed_tokens, old.busy_s, old.preemptions
        host.is_dead, host.planned_at, host.beats = False, float("inf"), 0
        self._publish(host, even_if_empty=True)
        self._beat_on(host, new)

    def _lost(self, call: Call) -> None:
        """Tried elsewhere, as long as the client has seen nothing."""
        call.gateway.lost(call, self._events.now)
        self._release(call.gateway)
        if call.first_at is None and call.attempts < MAX_ATTEMPTS:
            self._send(call)
        else:
            call.failed = True
            self._over(call)
