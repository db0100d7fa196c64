"""What a repair costs, and that nothing grows: the same simulation with one fault at a time."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from gateway.index.follower import FORGET_S
from tests.simulation.checker import History
from tests.simulation.client import Network
from tests.simulation.loop import SimLoop
from tests.simulation.parties import KEYS, SimGateway, SimReplica
from tests.simulation.server import Mischief, Server
from tests.simulation.world import TWIN_PEACE_S


class Fleet:
    """Replicas and gateways at peace, and equal."""

    def __init__(self, loop: SimLoop, replicas: int, gateways: int) -> None:
        rng = Random(1)
        self.loop = loop
        self.history = History()
        self.network = Network(Server(loop.time, rng, stream_max=20_000), rng)
        self.replicas = [self.replica(f"r{number}") for number in range(replicas)]
        self.gateways = [SimGateway(f"g{number}", loop, self.network, self.history) for number in range(gateways)]

    def replica(self, name: str) -> SimReplica:
        replica = SimReplica(name, self.loop, self.network, self.history, busy_s=0.1)
        replica.start(careful=False)
        return replica

    async def settle(self) -> None:
        await asyncio.sleep(2.0)
        for replica in self.replicas:
            replica.quiet = True
        await asyncio.sleep(1.0)
        self.network.server.calls.clear()
        for gateway in self.gateways:
            gateway.reasons.clear()

    def calls(self, name: str) -> int:
        return self.network.server.calls.get(name, 0)

    def equal(self) -> bool:
        return all(
            replica.digest is not None
            and gateway.index.position(replica.name) == (replica.digest.epoch, replica.digest.seq)
            and gateway.index.hashes_of(replica.name) == replica.tree.hashes()
            for gateway in self.gateways
            for replica in self.replicas
        )


def simulate(story: Callable[[SimLoop], Coroutine[Any, Any, None]]) -> None:
    loop = SimLoop()
    try:
        loop.run_until_complete(loop.start("story", story(loop)))
    finally:
        loop.discard()


def test_a_lost_delta_costs_one_snapshot_of_one_replica() -> None:
    async def story(loop: SimLoop) -> None:
        fleet = Fleet(loop, replicas=4, gateways=1)
        await fleet.settle()
        fleet.network.server.mischief = Mischief(drop=1.0)
        fleet.replicas[0].change()
        await asyncio.sleep(0.1)
        fleet.network.server.mischief = Mischief()
        await asyncio.sleep(2.0)
        assert fleet.equal()
        assert fleet.gateways[0].reasons == {"gap": 1}
        assert fleet.calls("strlen snapshot") == 1
        assert fleet.calls("set snapshot") == 1

    simulate(story)


def test_a_spoilt_delta_or_snapshot_costs_one_snapshot_more_and_gives_no_credit() -> None:
    async def story(loop: SimLoop) -> None:
        fleet = Fleet(loop, replicas=4, gateways=1)
        await fleet.settle()
        fleet.network.server.corrupt = 1.0
        fleet.replicas[0].change()
        await asyncio.sleep(0.1)
        for _ in range(20):
            await asyncio.sleep(0.1)
            assert fleet.gateways[0].index.position("r0") is None
        fleet.network.server.corrupt = 0.0
        spoilt = fleet.calls("set snapshot")
        await asyncio.sleep(2.0)
        assert fleet.equal()
        # The delta, and then every snapshot that was asked for.
        assert fleet.gateways[0].reasons.keys() == {"root"}
        assert fleet.gateways[0].bad == fleet.gateways[0].reasons
        assert 1 + spoilt >= fleet.gateways[0].reasons["root"] > 1
        assert fleet.calls("set snapshot") == spoilt + 1

    simulate(story)


def test_of_two_processes_with_one_id_the_one_that_stays_is_believed() -> None:
    async def story(loop: SimLoop) -> None:
        fleet = Fleet(loop, replicas=2, gateways=2)
        await fleet.settle()
        [one, _] = fleet.replicas
        other = one.twin()
        other.start(careful=False)
        for _ in range(50):
            await asyncio.sleep(0.1)
            one.change()
            for gateway in fleet.gateways:
                gateway.checker.check_all()
        other.kill()
        await asyncio.sleep(TWIN_PEACE_S)
        assert fleet.equal()

    simulate(story)


def test_a_lost_connection_costs_no_snapshot_where_nothing_else_was_lost() -> None:
    async def story(loop: SimLoop) -> None:
        fleet = Fleet(loop, replicas=4, gateways=2)
        await fleet.settle()
        fleet.network.kill_all()
        await asyncio.sleep(2.0)
        assert fleet.equal()
        assert fleet.calls("strlen snapshot") == 0
        # The publishers can't know what has become of their last delta.
        assert fleet.calls("set snapshot") == 4

    simulate(story)


def test_a_gateway_that_joins_loads_each_snapshot_once() -> None:
    async def story(loop: SimLoop) -> None:
        fleet = Fleet(loop, replicas=20, gateways=1)
        await fleet.settle()
        for replica in fleet.replicas:
            replica.change()
        fleet.gateways.append(SimGateway("late", loop, fleet.network, fleet.history))
        await asyncio.sleep(1.0)
        assert fleet.equal()
        assert fleet.gateways[1].reasons == {"join": 20}
        assert fleet.calls("strlen snapshot") == 20
        assert fleet.calls("set wanted") == 0

    simulate(story)


def test_a_wiped_redis_is_whole_again_without_repairs() -> None:
    async def story(loop: SimLoop) -> None:
        fleet = Fleet(loop, replicas=4, gateways=2)
        await fleet.settle()
        fleet.network.server.wipe()
        await asyncio.sleep(2.0)
        assert fleet.equal()
        assert fleet.calls("strlen snapshot") == 0
        assert fleet.network.server.srandmember(KEYS.replicas, 100) == [b"r0", b"r1", b"r2", b"r3"]

    simulate(story)


def test_replicas_that_come_and_go_leave_nothing_behind() -> None:
    async def story(loop: SimLoop) -> None:
        fleet = Fleet(loop, replicas=1, gateways=1)
        await fleet.settle()
        [gateway] = fleet.gateways
        most = 0
        for number in range(150):
            replica = fleet.replica(f"brief{number}")
            await asyncio.sleep(1.5)
            replica.kill() if number % 2 else replica.leave()
            most = max(most, len(gateway.reader.follower), len(gateway.reader.pulses), len(gateway.index.replicas()))
        # A minute's worth of them, and those whose heartbeats run out.
        assert 10 < most < FORGET_S / 1.5 + 6
        await asyncio.sleep(FORGET_S + 5)
        assert (len(gateway.reader.follower), len(gateway.reader.pulses)) == (1, 1)
        assert gateway.fleet.present() == ("r0",)
        assert fleet.equal()

    simulate(story)


def test_a_redis_that_takes_a_second_for_each_reply_puts_no_replica_out_of_rotation() -> None:
    async def story(loop: SimLoop) -> None:
        fleet = Fleet(loop, replicas=3, gateways=1)
        await fleet.settle()
        for replica in fleet.replicas:
            replica.keep_busy()
        fleet.network.slow_s = 1.0
        gateway = fleet.gateways[0]
        for _ in range(600):
            await asyncio.sleep(0.1)
            assert gateway.fleet.routable(loop.time()) == ("r0", "r1", "r2")
            gateway.checker.check_all()

    simulate(story)
