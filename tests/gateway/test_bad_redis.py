"""Requests while Redis is slow, silent or gone: none fails, and what is known of caches is used on."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gateway.config import GatewayConfig
from gateway.index.prefix_index import EXPECT_TTL_S
from gateway.keys import POOLS
from loadtest.index_bench.tcp_proxy import Network, TcpProxy
from tests.gateway.fakes import FakeReplica, Publisher, Stack, answers, eventually, gateway, publisher_for, redis_client

HOTEL = "Is there a ramp at the hotel by the river? " * 10


@dataclass
class Lab:
    stack: Stack
    proxy: TcpProxy
    publishers: list[Publisher]

    async def cached(self, text: str) -> int:
        """Predicted; the request is answered."""
        async with await self.stack.chat(text) as response:
            assert response.status == 200, await response.text()
            await response.read()
            return int(response.headers["x-ryokan-cached-tokens"])

    async def metric(self, line: str) -> bool:
        async with self.stack.http.get(f"{self.stack.url}/metrics") as response:
            return line in await response.text()


@pytest.fixture
async def lab(model_folder: Path, redis_url: str) -> AsyncIterator[Lab]:
    async with _lab(GatewayConfig(model=model_folder, redis_url=redis_url, policy="ttft")) as made:
        yield made


@asynccontextmanager
async def _lab(config: GatewayConfig) -> AsyncIterator[Lab]:
    """Two replicas that publish to a good Redis, and a gateway that reads it through the proxy."""
    place = urlsplit(config.redis_url)
    assert place.hostname is not None and place.port is not None
    async with (
        TcpProxy(place.hostname, place.port).running() as proxy,
        gateway(replace(config, redis_url=f"redis://127.0.0.1:{proxy.port}")) as stack,
        redis_client(config.redis_url) as redis,
        FakeReplica("r1", answers).serving() as one,
        FakeReplica("r2", answers).serving() as two,
    ):
        publishers = [publisher_for(redis, replica, config.model) for replica in (one, two)]
        async with publishers[0].serving(), publishers[1].serving():
            await eventually(lambda: len(stack.app[POOLS].first.index.replicas()) == 2)
            yield Lab(stack, proxy, publishers)


@pytest.mark.parametrize("network", [Network.SLOW, Network.HOLE, Network.GONE])
async def test_no_request_fails_and_credit_goes_on(lab: Lab, network: Network) -> None:
    assert await lab.cached(HOTEL) == 0
    expected = await lab.cached(HOTEL)
    assert expected > 0
    lab.proxy.become(network)
    started = time.monotonic()
    longest, number = 0.0, 0
    # Long enough for a silent Redis to be given up, and for what was expected before to be forgotten if it were.
    while time.monotonic() < started + 1.5 * EXPECT_TTL_S:
        began = time.monotonic()
        await lab.cached(f"{number} {HOTEL}")
        longest, number = max(longest, time.monotonic() - began), number + 1
    print(network, number, "requests, the longest took", longest)
    assert number > 50
    assert await lab.cached("Another one. " + HOTEL) == 0
    assert await lab.cached("Another one. " + HOTEL) > 0
    if network is not Network.SLOW:
        assert await lab.metric("ryokan_gateway_redis_up 0.0")
        assert await lab.cached(HOTEL) == expected
        lab.proxy.become(Network.GOOD)
        await eventually(lambda: not lab.stack.app[POOLS].first.fleet.frozen)
    else:
        await lab.publishers[0].change([1])
        await eventually(lambda: lab.stack.app[POOLS].first.index.blocks("r1") == 1, 30)


async def test_a_replica_that_dies_meanwhile_costs_no_request(lab: Lab) -> None:
    lab.proxy.become(Network.GONE)
    await eventually(lambda: lab.stack.app[POOLS].first.fleet.frozen)
    dead = lab.stack.app[POOLS].first.fleet.heartbeat("r1")
    # Nobody listens there.
    lab.stack.app[POOLS].first.fleet._members["r1"].heartbeat = replace(dead, url="http://127.0.0.1:1")
    for number in range(20):
        await lab.cached(f"{number} {HOTEL}")
