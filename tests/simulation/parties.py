"""Replicas and gateways as they are in life, but for the network: publisher, reader, index, fleet and both wires."""

import asyncio
from collections import Counter
from typing import Any

import orjson

from gateway.fleet import Fleet
from gateway.index.factory import make_index
from gateway.index.reader import IndexReader
from gateway.wire import Entry, StreamId
from gateway.wire import Wire as GatewayWire
from replica.digest import MAX_DELTA_BLOCKS
from replica.protocol.records import Heartbeat, Keys
from replica.protocol.redis_link import RedisLink
from replica.protocol.redis_url import parse_redis_url
from replica.publisher import IdTaken, Publisher, RedisUnreachable, check_id_is_free
from replica.wire import Wire as ReplicaWire
from tests.gateway.fakes import IDENTITY, heartbeat
from tests.simulation.checker import Checker, History, RecordedDigest, Violation
from tests.simulation.client import Client, Network
from tests.simulation.loop import SimLoop
from tests.simulation.tree import Tree

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
    """Tells the checker which epochs the gateway is shown."""

    def __init__(self, network: Network, checker: Checker) -> None:
        super().__init__(URL, KEYS)
        self._link = SimLink(network)
        self._checker = checker

    async def next_entries(self, after: StreamId, wait_s: float) -> list[Entry]:
        return self._seen(await super().next_entries(after, wait_s))

    async def heartbeats(self, names: Any) -> dict[str, tuple[bytes, float]]:
        found = await super().heartbeats(names)
        for name, (data, _) in found.items():
            self._checker.see(name, orjson.loads(data)["epoch"])
        return found

    def _seen(self, entries: list[Entry]) -> list[Entry]:
        for _, fields in entries:
            if b"epoch" in fields:
                self._checker.see(fields[b"replica"].decode(), fields[b"epoch"].decode())
        return entries


class SimReplica:
    def __init__(self, name: str, loop: SimLoop, network: Network, history: History, busy_s: float) -> None:
        self.name = name
        self._loop = loop
        self._network = network
        self._history = history
        self._rng = network.rng
        self._busy_s = busy_s
        self._lives = 0
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

    def start(self, careful: bool) -> None:
        """A process. A careful one asks first whether its id is free."""
        if not self._tasks:
            self.starting = True
            self._tasks = [self._loop.start(self.name, self._live(careful))]

    def _connect(self) -> SimReplicaWire:
        return SimReplicaWire(self._network)

    async def _live(self, careful: bool) -> None:
        while careful:
            try:
                await check_id_is_free(self._connect, self.name, "here")
                break
            except (IdTaken, RedisUnreachable):
                await asyncio.sleep(0.3)
        self._lives += 1
        self.tree = Tree(self._rng.choice([10, 40, 120]))
        self.digest = RecordedDigest.of(self.name, f"{self.name}-{self._lives}", self._history)
        self.digest.max_delta_blocks = self.max_delta_blocks
        beat = heartbeat(self.name)
        fields = {field: getattr(beat, field) for field in Heartbeat.__dataclass_fields__}
        self._publisher = Publisher(
            self._connect, self.digest, lambda epoch: Heartbeat(**(fields | {"epoch": epoch})), self._rng.random
        )
        self._tasks.append(self._loop.start(self.name, self._publisher.run()))
        self.starting = False
        self.joined_at = self._loop.time()
        await self._work()

    async def _work(self) -> None:
        while not self.quiet:
            self.change()
            await asyncio.sleep(self._rng.expovariate(1 / self._busy_s))

    def keep_busy(self) -> None:
        self.quiet = False
        self._tasks.append(self._loop.start(self.name, self._work()))

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
    def __init__(self, name: str, loop: SimLoop, network: Network, history: History) -> None:
        self.name = name
        self._loop = loop
        self._network = network
        self._history = history
        self._task: asyncio.Task[Any] | None = None
        self.reasons: Counter[str] = Counter()
        self.restart()

    def restart(self) -> None:
        """Another process, which knows nothing."""
        if self._task is not None:
            self._task.cancel()
        self.index = make_index()
        self.fleet = Fleet(IDENTITY)
        self.checker = checker = Checker(self.name, self._history, self.index)
        self.reader = IndexReader(
            lambda: SimGatewayWire(self._network, checker),
            self.index,
            self.fleet,
            self,
            on_fleet=lambda: None,
            clock=self._loop.time,
            wall_clock=self._network.server.clock,
            jitter=self._network.rng.random,
        )
        self._task = self._loop.start(self.name, self.reader.run())

    def raise_if_crashed(self) -> None:
        if self._task is not None:
            _raise_if_crashed(self._task)

    def check_size(self, replicas: int) -> None:
        """What the gateway keeps is bounded by what there is."""
        assert len(self.reader.follower) <= replicas
        assert len(self.reader.pulses) <= replicas

    def resync(self, reason: str) -> None:
        self.reasons[reason] += 1

    def bad_record(self, reason: str) -> None:
        # A failover brings old ones back.
        assert reason == "replay", reason

    def digest_lag(self, seconds: float) -> None:
        assert seconds >= 0

    def redis_up(self, up: bool) -> None:
        pass


def _raise_if_crashed(task: "asyncio.Task[Any]") -> None:
    if task.done() and not task.cancelled() and (error := task.exception()) is not None:
        raise Violation(f"{task.get_name()} has crashed: {error!r}") from error
