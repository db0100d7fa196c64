"""One seed, one history: a fleet at work, faults, then peace; and what must be true then.

`python -m tests.simulation.world 17` runs seed 17 alone and tells its story; `... 0 20000` runs a range.
"""

import asyncio
import logging
import sys
from collections import Counter
from random import Random

from gateway.backlog import INTENT_TTL_S
from replica.digest import MAX_DELTA_BLOCKS
from replica.protocol.records import HEARTBEAT_TTL_S
from tests.simulation.checker import History, Violation
from tests.simulation.client import Network
from tests.simulation.faults import FAULTS
from tests.simulation.loop import SimLoop
from tests.simulation.parties import SimGateway, SimReplica
from tests.simulation.server import Server
from tests.simulation.tree import prompt

PEACE_S = 2.0
"""After the last fault and the last change everything must be equal within this."""
TWIN_PEACE_S = 4.0
"""Of two processes with one id the one that stays is believed when it has beaten on alone for a while
(gateway/records_gate.py), and then once more."""
FLOW_S = 0.5
STORY = 60


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = Random(seed)
        self.loop = SimLoop()
        self.history = History()
        server = Server(self.loop.time, rng, stream_max=rng.choice([8, 40, 300, 20_000]))
        self.network = Network(server, rng)
        self.copies = [server.copy()]
        """Redis as it was, a second apart."""
        self.faults_end = rng.uniform(5.0, 13.0)
        self.story: list[str] = []
        busy_s = rng.choice([0.04, 0.15, 0.6])
        self.replicas = [
            SimReplica(f"r{n}", self.loop, self.network, self.history, busy_s) for n in range(rng.randrange(1, 5))
        ]
        self.twins: list[SimReplica] = []
        """Further processes with a replica's id."""
        self.gateways: list[SimGateway] = []
        self.later: list[tuple[float, str]] = []

    def tell(self, what: str) -> None:
        self.story.append(f"{self.loop.time():8.3f}  {what}")

    async def run(self) -> None:
        """Raises Violation as soon as there is one."""
        checks = self.loop.start("checker", self._check_always())
        history = self.loop.start("history", self._history())
        await asyncio.wait([checks, history], return_when=asyncio.FIRST_COMPLETED)
        if checks.done():
            checks.result()
        history.result()

    async def _history(self) -> None:
        rng = self.rng
        for replica in self.replicas:
            replica.max_delta_blocks = rng.choice([4, MAX_DELTA_BLOCKS, MAX_DELTA_BLOCKS])
            replica.start(careful=False)
        route_s = rng.choice([0.02, 0.2, 2.0])
        for number in range(rng.randrange(1, 4)):
            self.gateways.append(SimGateway(f"g{number}", self.loop, self.network, self.history, route_s))
        copies = self.loop.start("copies", self._keep_copies())
        kinds = rng.sample(sorted(FAULTS), rng.randrange(1, len(FAULTS) + 1))
        pause_s = rng.choice([0.1, 0.3, 0.8])
        await asyncio.sleep(rng.uniform(0, 1.5))
        while self.loop.time() < self.faults_end:
            kind = rng.choice(kinds)
            self.tell(kind)
            FAULTS[kind](self)
            await asyncio.sleep(rng.expovariate(1 / pause_s))
        copies.cancel()
        await self._peace()

    async def _keep_copies(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self.copies = [*self.copies[-3:], self.network.server.copy()]

    async def _check_always(self) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / 0.15))
            for gateway in self.gateways:
                gateway.checker.query(prompt(self.rng))
                # Scans the whole index.
                if self.rng.random() < 0.3:
                    gateway.checker.check_all()
            self._check_nobody_crashed()

    def _check_nobody_crashed(self) -> None:
        for failure in self.loop.failures:
            raise Violation(str(failure)) from failure.get("exception")
        for gateway in self.gateways:
            gateway.raise_if_crashed()
        for replica in (*self.replicas, *self.twins):
            replica.raise_if_crashed()

    async def _peace(self) -> None:
        for replica in self.replicas:
            replica.quiet = True
        for gateway in self.gateways:
            gateway.quiet = self.rng.random() < 0.5
        self.tell("peace")
        while any(replica.starting for replica in self.replicas):
            await asyncio.sleep(0.05)
        joined = max(replica.joined_at for replica in self.replicas)
        peace_s = TWIN_PEACE_S if self.twins else PEACE_S
        await asyncio.sleep(max(self.loop.time(), joined) + peace_s - self.loop.time())
        self._check_all_equal()
        await self._check_deltas_flow()
        dead = [replica for replica in self.replicas if replica.digest is None]
        if dead:
            # Of a dead replica's heartbeat only its life's end is news.
            await asyncio.sleep(max(0.0, HEARTBEAT_TTL_S + 0.3))
        for gateway in self.gateways:
            gateway.check_size(len(self.replicas))
            for replica in dead:
                self._check_gone(gateway, replica)
        await self._check_nothing_stays_counted()
        self._check_nobody_crashed()

    async def _check_deltas_flow(self) -> None:
        """In peace a change is one delta, and nobody needs a snapshot for it."""
        before = [gateway.reasons.total() for gateway in self.gateways]
        for replica in self.replicas:
            if replica.digest is not None:
                replica.digest.max_delta_blocks = MAX_DELTA_BLOCKS
            replica.change()
        await asyncio.sleep(FLOW_S)
        self._check_all_equal()
        if [gateway.reasons.total() for gateway in self.gateways] != before:
            raise Violation("a change in peace has cost a repair")

    def _check_all_equal(self) -> None:
        for gateway in self.gateways:
            for replica in self.replicas:
                self._check_equal(gateway, replica)

    def _check_equal(self, gateway: SimGateway, replica: SimReplica) -> None:
        digest = replica.digest
        if digest is None:
            return
        here, there = gateway.index.position(replica.name), (digest.epoch, digest.seq)
        if here != there:
            raise Violation(f"{gateway.name} has {replica.name} at {here}, which is at {there}")
        if gateway.index.hashes_of(replica.name) != replica.tree.hashes():
            raise Violation(f"{gateway.name} and {replica.name} differ at {here}")
        if replica.name not in gateway.fleet.routable(self.loop.time()):
            raise Violation(f"{gateway.name} doesn't route to {replica.name}")

    async def _check_nothing_stays_counted(self) -> None:
        """Of intents, when nobody routes any more: also where it was lost that they were done."""
        for gateway in self.gateways:
            gateway.quiet = True
        await asyncio.sleep(INTENT_TTL_S + 2.0)
        for gateway in self.gateways:
            for replica, status in gateway.fleet.statuses(self.loop.time()).items():
                if status.queue_tokens:
                    raise Violation(f"{gateway.name} counts {status.queue_tokens} tokens at {replica}, which is idle")

    def _check_gone(self, gateway: SimGateway, replica: SimReplica) -> None:
        if gateway.index.position(replica.name) is not None or replica.name in gateway.fleet.present():
            raise Violation(f"{gateway.name} has {replica.name}, which is dead")


def run(seed: int) -> World:
    """Raises Violation with the seed and the story."""
    world = World(seed)
    try:
        world.loop.run_until_complete(world.loop.start("world", world.run()))
    except Violation as violation:
        story = "\n".join(world.story[-STORY:])
        raise Violation(f"seed {seed} at {world.loop.time():.3f} s: {violation}\n{story}") from violation
    finally:
        world.loop.discard()
    return world


def main(first: int, end: int) -> None:
    """For people."""
    logging.disable()
    reasons: Counter[str] = Counter()
    told: Counter[str] = Counter()
    failed: list[int] = []
    seconds = 0.0
    for seed in range(first, end):
        try:
            world = run(seed)
        except Violation as violation:
            failed.append(seed)
            print(violation, flush=True)
        else:
            seconds += world.loop.time()
            for gateway in world.gateways:
                reasons.update(gateway.reasons)
                told.update(gateway.told)
    print(
        f"{len(failed)} of {end - first} failed: {failed[:100]}; {seconds:.0f} s passed; {dict(reasons)}; {dict(told)}"
    )


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    main(numbers[0], numbers[1] if len(numbers) > 1 else numbers[0] + 1)
