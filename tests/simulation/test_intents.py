"""What gateways tell each other, in virtual time: of the simulation's faults those that matter to it, one by one."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from gateway.backlog import INTENT_TTL_S
from gateway.fleet import Lease
from gateway.intents.outbox import FLEET_ENTRIES_PER_S, PERIOD_S
from gateway.routing.base import RouteRequest
from replica.protocol.intents import STREAM_MAX_ENTRIES
from tests.simulation.checker import History
from tests.simulation.client import Network
from tests.simulation.loop import SimLoop
from tests.simulation.parties import KEYS, SimGateway, SimReplica
from tests.simulation.server import OTHER_TYPE, Server
from tests.simulation.tree import prompt


class Fleet:
    def __init__(self, loop: SimLoop, gateways: int, route_s: float | None = None) -> None:
        self.rng = Random(1)
        self.loop = loop
        history = History()
        self.network = Network(Server(loop.time, self.rng, stream_max=20_000), self.rng)
        self.replica = SimReplica("r0", loop, self.network, history, busy_s=0.2)
        self.replica.start(careful=False)
        self.gateways = [SimGateway(f"g{n}", loop, self.network, history, route_s) for n in range(gateways)]

    def send(self, gateway: SimGateway) -> Lease:
        hashes = prompt(self.rng)
        request = RouteRequest(16 * len(hashes) + 1, hashes)
        decision = gateway.router.route(request, request.tokens, frozenset(), self.loop.time())
        assert decision is not None
        return gateway.router.take(request, decision, self.loop.time())

    def others_tokens(self, gateway: SimGateway) -> int:
        """Of other gateways' requests that aren't known to be done."""
        now = self.loop.time()
        known = gateway.fleet.candidates(gateway.fleet.open(now), {}, now).size_tokens.sum()
        return int(known) - gateway.fleet.statuses(now)["r0"].own_tokens


def simulate(story: Callable[[SimLoop], Coroutine[Any, Any, None]]) -> None:
    loop = SimLoop()
    try:
        loop.run_until_complete(loop.start("story", story(loop)))
    finally:
        loop.discard()


def test_what_is_told_is_known_within_milliseconds_and_so_is_its_end() -> None:
    async def story(loop: SimLoop) -> None:
        fleet = Fleet(loop, 2)
        one, other = fleet.gateways
        await asyncio.sleep(2.5)
        lags = []
        for _ in range(50):
            before = fleet.others_tokens(other)
            lease = fleet.send(one)
            began = loop.time()
            while fleet.others_tokens(other) == before and loop.time() < began + 0.4:
                await asyncio.sleep(0.001)
            lags.append(loop.time() - began)
            lease.release(loop.time())
            await asyncio.sleep(0.3)
            assert fleet.others_tokens(other) == 0
        # Of the simulated network each round trip takes 1 ms.
        assert sorted(lags)[25] < 0.004

    simulate(story)


def test_a_gateway_that_was_stopped_does_not_count_what_it_missed() -> None:
    async def story(loop: SimLoop) -> None:
        fleet = Fleet(loop, 2)
        one, other = fleet.gateways
        await asyncio.sleep(2.5)
        other.told.clear()
        loop.pause(other.name, 3.0)
        for _ in range(20):
            fleet.send(one)
            await asyncio.sleep(0.1)
        await asyncio.sleep(2.0)
        assert other.told["heard"] == 0
        fleet.send(one)
        await asyncio.sleep(0.1)
        assert other.told["heard"] == 1

    simulate(story)


def test_where_redis_is_lost_nothing_is_counted_for_ever() -> None:
    async def story(loop: SimLoop) -> None:
        fleet = Fleet(loop, 2)
        one, other = fleet.gateways
        await asyncio.sleep(2.5)
        fleet.send(one)
        await asyncio.sleep(0.05)
        assert fleet.others_tokens(other) > 0
        fleet.network.down = True
        fleet.network.kill_all()
        await asyncio.sleep(INTENT_TTL_S)
        assert fleet.others_tokens(other) == 0

    simulate(story)


def usurp(server: Server) -> None:
    server.values[KEYS.intents] = OTHER_TYPE


def set_back(server: Server) -> None:
    server.wipe(KEYS.intents)
    server.offset_s -= 3600.0


WAYS_TO_LOSE: dict[str, Callable[[Server], None]] = {
    "lost": lambda server: server.wipe(KEYS.intents),
    "wiped": lambda server: server.wipe(),
    "trimmed": lambda server: server.trim(KEYS.intents, 0),
    "another type": usurp,
    "begun anew, by a clock set back": set_back,
}


@pytest.mark.parametrize("way", WAYS_TO_LOSE)
def test_a_stream_that_is_lost_costs_no_more_than_what_was_in_it(way: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story(loop: SimLoop) -> None:
        fleet = Fleet(loop, 2)
        one, other = fleet.gateways
        server = fleet.network.server
        await asyncio.sleep(2.5)
        fleet.send(one).release(loop.time())
        other.reasons.clear()
        WAYS_TO_LOSE[way](server)
        await asyncio.sleep(3.0)
        # Digests have gone on.
        assert fleet.replica.digest is not None and fleet.replica.digest.seq > 10
        if way == "another type":
            assert len([r for r in caplog.records if "can't hear" in r.getMessage()]) == 2
            assert len([r for r in caplog.records if "can't tell" in r.getMessage()]) == 2
            server.wipe(KEYS.intents)
            await asyncio.sleep(3.0)
        assert other.reasons.keys() <= ({"wiped"} if way == "wiped" else set())
        assert other.index.hashes_of("r0") == fleet.replica.tree.hashes()
        other.told.clear()
        fleet.send(one)
        await asyncio.sleep(0.1)
        assert other.told["heard"] == 1
        assert not [record for record in caplog.records if "lost Redis" in record.getMessage()]

    simulate(story)


def test_however_much_is_routed_the_stream_s_entries_are_bounded_and_no_digest_is_lost() -> None:
    async def story(loop: SimLoop) -> None:
        fleet = Fleet(loop, 4, route_s=0.0005)
        await asyncio.sleep(3.0)
        for gateway in fleet.gateways:
            gateway.reasons.clear()
        server = fleet.network.server
        begun = server.values[KEYS.intents].added
        await asyncio.sleep(5.0)
        # One after another: each waits for its round trip.
        most = min(FLEET_ENTRIES_PER_S, 4 / PERIOD_S) * 5
        assert most / 4 < server.values[KEYS.intents].added - begun < most * 1.1
        assert len(server.values[KEYS.intents].entries) <= STREAM_MAX_ENTRIES * 1.25
        assert KEYS.intents in server.expires
        assert all(gateway.told["heard"] > 4000 and not gateway.reasons for gateway in fleet.gateways)
        # What is read in one go, and then heard, delays no digest.
        fleet.replica.quiet = True
        await asyncio.sleep(0.3)
        assert all(gateway.index.hashes_of("r0") == fleet.replica.tree.hashes() for gateway in fleet.gateways)

    simulate(story)
