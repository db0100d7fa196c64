"""Replicas and gateways as they are in life, but for the network: publisher, reader, index, fleet and both wires."""

import asyncio
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from typing import Any

from gateway.fleet import Fleet, Lease
from gateway.index.factory import make_index
from gateway.index.follower import Follower
from gateway.index.prefix_index import Applied, PrefixIndex
from gateway.index.reader import IndexReader
from gateway.intents.outbox import Outbox
from gateway.intents.publisher import IntentPublisher
from gateway.router import Router
from gateway.routing.base import RouteRequest
from gateway.routing.round_robin import RoundRobin
from gateway.wire import Wire as GatewayWire
from replica.digest import MAX_DELTA_BLOCKS
from replica.protocol.intents import Intents
from replica.protocol.records import Delta, Heartbeat, Keys
from replica.protocol.redis_link import RedisLink
from replica.protocol.redis_url import parse_redis_url
from replica.publisher import IdTaken, Publisher, RedisUnreachable, check_id_is_free
from replica.wire import Wire as ReplicaWire
from tests.gateway.fakes import IDENTITY, heartbeat
from tests.simulation.checker import Checker, History, RecordedDigest, Violation
from tests.simulation.client import Client, Network
from tests.simulation.loop import SimLoop
from tests.simulation.tree import Tree, prompt

KEYS = Keys("sim")


URL = parse_redis_url("redis://simulated")


class SimLink(RedisLink):
    def __init__(self, network: Network) -> None:
        super().__init__(URL, KEYS.stream, 1.0)
        self.redis = Client(network)

    async def __aenter__(self) -> "SimLink":
        try:
            await self.redis.initialize()
            await self.redis.ping()
        except BaseException:
            await self.redis.aclose()
            raise
        return self


class SimReplicaWire(ReplicaWire):
    def __init__(self, network: Network) -> None:
        super().__init__(URL, KEYS)
        self._link = SimLink(network)


class SimGatewayWire(GatewayWire):
    def __init__(self, network: Network, clock: Callable[[], float]) -> None:
        super().__init__(URL, KEYS, clock=clock)
        self._link = SimLink(network)


class SimFollower(Follower):
    """Tells the checker which epochs the gateway has been shown, as it comes to them: what it has read and waits its
    turn it doesn't know yet."""

    def __init__(self, index: PrefixIndex, resync: Callable[[str], None], checker: Checker) -> None:
        super().__init__(index, resync)
        self._checker = checker

    def heard(self, heartbeats: Mapping[str, Heartbeat], now: float) -> None:
        for name, beat in heartbeats.items():
            self._checker.see(name, beat.epoch)
        super().heard(heartbeats, now)

    def take(self, delta: Delta, now: float) -> Generator[None, None, Applied | None]:
        self._checker.see(delta.replica, delta.epoch)
        return (yield from super().take(delta, now))


class SimReplica:
    def __init__(self, name: str, loop: SimLoop, network: Network, history: History, busy_s: float) -> None:
        self.name = self.party = name
        self._loop = loop
        self._network = network
        self._history = history
        self._rng = network.rng
        self._busy_s = busy_s
        self.has_twin = self.retired = False
        self._tasks: list[asyncio.Task[Any]] = []
        self._publisher: Publisher | None = None
        self.digest: RecordedDigest | None = None
        """Of the process that lives now and has joined."""
        self.max_delta_blocks = MAX_DELTA_BLOCKS
        self.starting = False
        self.died_at = 0.0
        self.joined_at = 0.0
        self.quiet = False
        self.tree = Tree(1)

    def twin(self) -> "SimReplica":
        """Another process with the same id."""
        other = SimReplica(self.name, self._loop, self._network, self._history, self._busy_s)
        other.party += "'" if self.party == self.name else ""
        self.has_twin = other.has_twin = True
        self._history.twinned.add(self.name)
        return other

    def start(self, careful: bool) -> None:
        """A process. A careful one asks first whether its id is free."""
        if not self._tasks and not self.retired:
            self.starting = True
            self._tasks = [self._loop.start(self.party, self._live(careful))]

    def retire(self, end: Callable[["SimReplica"], None]) -> None:
        """It ends, if it lives, and never starts again."""
        self.retired = True
        (SimReplica.kill if self.starting else end)(self)

    def _connect(self) -> SimReplicaWire:
        return SimReplicaWire(self._network)

    async def _live(self, careful: bool) -> None:
        while careful:
            try:
                await check_id_is_free(self._connect, self.name, "here")
                break
            except (IdTaken, RedisUnreachable):
                await asyncio.sleep(0.3)
        self.tree = Tree(self._rng.choice([10, 40, 120]))
        self.digest = RecordedDigest.of(self.name, f"{self.name}-{self._history.number(self.name)}", self._history)
        self.digest.max_delta_blocks = self.max_delta_blocks
        beat = heartbeat(self.name)
        fields = {field: getattr(beat, field) for field in Heartbeat.__dataclass_fields__}
        self._publisher = Publisher(
            self._connect, self.digest, lambda epoch: Heartbeat(**(fields | {"epoch": epoch})), self._rng.random
        )
        self._tasks.append(self._loop.start(self.party, self._publisher.run()))
        self.starting = False
        self.joined_at = self._loop.time()
        await self._work()

    async def _work(self) -> None:
        while not self.quiet:
            self.change()
            await asyncio.sleep(self._rng.expovariate(1 / self._busy_s))

    def keep_busy(self) -> None:
        self.quiet = False
        self._tasks.append(self._loop.start(self.party, self._work()))

    def change(self) -> None:
        if self._publisher is not None:
            self._publisher.cache_changed(self.tree.change(self._rng))

    def reset(self) -> None:
        """The cache begins anew, in the same process."""
        if self._publisher is not None:
            self.tree = Tree(40)
            self._publisher.cache_replaced()

    def kill(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._end()

    def leave(self) -> None:
        """Leaves the fleet by itself; its process is gone when that is done."""
        if self._publisher is None:
            return
        self._tasks[0].cancel()
        self._publisher.stop()
        self._end()

    def raise_if_crashed(self) -> None:
        for task in self._tasks:
            _raise_if_crashed(task)

    def _end(self) -> None:
        self._tasks = []
        self._publisher = self.digest = None
        self.starting = False
        self.died_at = self._loop.time()


class SimGateway:
    def __init__(
        self, name: str, loop: SimLoop, network: Network, history: History, route_s: float | None = None
    ) -> None:
        """`route_s`: mean time between two requests, if there are any."""
        self.name = name
        self._loop = loop
        self._network = network
        self._history = history
        self._tasks: list[asyncio.Task[Any]] = []
        self._lives = 0
        self._route_s = route_s
        self.quiet = False
        """Routes nothing more."""
        self.reasons: Counter[str] = Counter()
        self.told: Counter[str] = Counter()
        """Intents: sent, heard, or dropped for a reason."""
        self.bad: Counter[str] = Counter()
        self.restart()

    def restart(self) -> None:
        """Another process, which knows nothing."""
        for task in self._tasks:
            task.cancel()
        self._lives += 1
        self.index = make_index()
        self.fleet = Fleet(IDENTITY)
        outbox = Outbox(f"{self.name}.{self._lives}", self.intents_dropped)
        self.router = Router(self.fleet, self.index, RoundRobin(), outbox)
        self.checker = checker = Checker(self.name, self._history, self.index)
        self.reader = IndexReader(
            lambda: SimGatewayWire(self._network, self._loop.time),
            self.index,
            self.fleet,
            self,
            on_fleet=lambda: None,
            clock=self._loop.time,
            wall_clock=self._network.server.clock,
            jitter=self._network.rng.random,
            on_intents=self._hear,
        )
        self.reader.follower = SimFollower(self.index, self.resync, checker)
        publisher = IntentPublisher(
            lambda: SimGatewayWire(self._network, self._loop.time),
            outbox,
            self,
            clock=self._loop.time,
            jitter=self._network.rng.random,
        )
        works = [self.reader.run(), publisher.run()] + ([self._work(self._route_s)] if self._route_s else [])
        self._tasks = [self._loop.start(self.name, work) for work in works]

    async def _work(self, route_s: float) -> None:
        """Requests that nobody computes: what counts of them is what this gateway and others believe."""
        rng = self._network.rng
        while not self.quiet:
            hashes = prompt(rng)
            request = RouteRequest(16 * len(hashes) + 1, hashes)
            decision = self.router.route(request, request.tokens, frozenset(), self._loop.time())
            if decision is not None:
                lease = self.router.take(request, decision, self._loop.time())
                self._loop.call_later(rng.choice([0.005, 0.1, 1.0]), self._end, lease)
            await asyncio.sleep(rng.expovariate(1 / route_s))

    def _end(self, lease: Lease) -> None:
        lease.release(self._loop.time())

    def _hear(self, intents: Intents, now: float) -> None:
        self.told["heard"] += self.router.heard(intents, now)

    def raise_if_crashed(self) -> None:
        for task in self._tasks:
            _raise_if_crashed(task)

    def intents_sent(self, intents: int) -> None:
        self.told["sent"] += intents

    def intents_dropped(self, reason: str, intents: int) -> None:
        self.told[reason] += intents

    def check_size(self, replicas: int) -> None:
        """What the gateway keeps is bounded by what there is."""
        assert len(self.reader.follower) <= replicas
        assert len(self.reader.pulses) <= replicas

    def resync(self, reason: str) -> None:
        self.reasons[reason] += 1

    def bad_record(self, reason: str) -> None:
        self.bad[reason] += 1
        # A failover brings old ones back.
        assert reason in ("replay", "root"), reason

    def digest_lag(self, seconds: float) -> None:
        assert seconds >= 0

    def redis_up(self, up: bool) -> None:
        pass


def _raise_if_crashed(task: "asyncio.Task[Any]") -> None:
    if task.done() and not task.cancelled() and (error := task.exception()) is not None:
        raise Violation(f"{task.get_name()} has crashed: {error!r}") from error
