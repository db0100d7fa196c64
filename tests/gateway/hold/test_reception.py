"""The gateway with requests that wait in it: real sockets, a real Valkey, replicas that say they are busy."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.config import GatewayConfig, Timeouts
from gateway.keys import POOLS, TRACES
from replica.protocol.records import CostModel, Load
from tests.gateway.fakes import (
    Behaviour,
    FakeReplica,
    Publisher,
    Stack,
    answers,
    chat_body,
    eventually,
    gateway,
    publisher_for,
    resets,
    stalls,
)

COST = CostModel(c0=0.01, c_lin=0.01, c_att=0.0, c_dec=0.0, max_step_tokens=512)
"""A full step takes 5 s: 1,000 tokens ahead are enough to wait for."""

BUSY = Load(waiting=4, pending_tokens=3000)


@pytest.fixture
def config(model_folder: Path, redis_url: str) -> GatewayConfig:
    timeouts = Timeouts(connect_s=1, first_byte_s=60, idle_s=5, queue_s=1, grace_s=5)
    return GatewayConfig(model=model_folder, redis_url=redis_url, timeouts=timeouts)


class Fleet(Stack):
    replicas: Sequence[FakeReplica]
    publishers: Sequence[Publisher]

    @property
    def held(self) -> int:
        return len(self.app[POOLS].first.dispatcher.reception.desk.room)

    def say(self, which: int, load: Load) -> None:
        """From its next heartbeat on."""
        self.publishers[which].beat_record = replace(self.publishers[which].beat_record, load=load)

    def ask(self, text: str = "Is there a ramp?", timeout: str | None = None, **fields: Any) -> Any:
        sent = {} if timeout is None else {"x-request-timeout": timeout}
        body = chat_body(text, max_tokens=4, **fields)
        return asyncio.create_task(self._ask(body, sent))

    async def _ask(self, body: dict[str, Any], sent: dict[str, str]) -> tuple[aiohttp.ClientResponse, Any]:
        async with self.http.post(f"{self.url}/v1/chat/completions", json=body, headers=sent) as response:
            return response, await response.json()

    async def sent_at(self, asked: Any) -> float:
        """When the gateway let it go, by its clock. NOTE: two that go at once may reach the replica in either order."""
        response, _ = await asked
        assert response.status == 200
        trace = self.app[TRACES].get(response.headers["x-request-id"])
        assert trace is not None
        routed = trace.last_at("routed")
        assert routed is not None
        return trace.received_at + routed

    async def metric(self, name: str) -> float:
        text = await (await self.http.get(f"{self.url}/metrics")).text()
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"ryokan_gateway_{name}"))


@asynccontextmanager
async def fleet(config: GatewayConfig, *behaviours: Behaviour, load: Load = BUSY) -> AsyncIterator[Fleet]:
    """A gateway and replicas r1, r2, … that say they have so much to do."""
    async with AsyncExitStack() as stack:
        base = await stack.enter_async_context(gateway(config))
        result = Fleet(base.url, base.app, base.redis, base.http)
        result.replicas, result.publishers = [], []
        for behaviour in behaviours:
            await add(stack, result, config, behaviour, load)
        await eventually(lambda: len(base.app[POOLS].first.index.replicas()) == len(behaviours))
        yield result


async def add(stack: AsyncExitStack, to: Fleet, config: GatewayConfig, behaviour: Behaviour, load: Load) -> None:
    replica = FakeReplica(f"r{len(to.replicas) + 1}", behaviour)
    await stack.enter_async_context(replica.serving())
    publisher = publisher_for(to.redis, replica, config.model, cost=COST, load=load)
    await stack.enter_async_context(publisher.serving())
    to.replicas, to.publishers = [*to.replicas, replica], [*to.publishers, publisher]


async def test_held_then_served(config: GatewayConfig) -> None:
    async with fleet(config, answers) as stack:
        task = stack.ask()
        await eventually(lambda: stack.held == 1)
        assert stack.replicas[0].requests == []
        assert await stack.metric("held_requests") == 1
        assert await stack.metric("held_tokens") > 0
        stack.say(0, Load())
        response, _ = await task
        assert response.status == 200
        assert stack.held == 0
        explained = await stack.http.get(f"{stack.url}/route/explain/{response.headers['x-request-id']}")
        assert (await explained.json())["held_s"] > 0
        trace = await stack.http.get(f"{stack.url}/trace/{response.headers['x-request-id']}")
        events = [event["event"] for event in (await trace.json())["events"]]
        assert events.index("held") < events.index("routed") < events.index("dispatched")
        assert await stack.metric("hold_seconds_count") == 1


async def test_what_is_not_held_says_so(config: GatewayConfig) -> None:
    async with fleet(config, answers, load=Load()) as stack:
        response, _ = await stack.ask()
        explained = await stack.http.get(f"{stack.url}/route/explain/{response.headers['x-request-id']}")
        assert (await explained.json())["held_s"] is None


async def test_a_deadline_that_passes_while_held(config: GatewayConfig) -> None:
    """The replica is predicted to be done in time, and isn't."""
    async with fleet(config, answers) as stack:
        quick = replace(COST, c_lin=0.0005)
        stack.publishers[0].beat_record = replace(stack.publishers[0].beat_record, cost=quick)
        await eventually(lambda: stack.app[POOLS].first.fleet.heartbeat("r1").cost == quick)
        response, body = await stack.ask(timeout="3")
        assert response.status == 504
        assert body["error"]["code"] == "deadline_passed"
        assert stack.replicas[0].requests == []
        assert stack.held == 0


async def test_a_deadline_out_of_reach_is_refused_at_once(config: GatewayConfig) -> None:
    async with fleet(config, answers) as stack:
        response, body = await stack.ask(timeout="3")
        assert response.status == 503
        assert body["error"]["code"] == "deadline_out_of_reach"
        assert 1 <= int(response.headers["Retry-After"]) <= 60
        assert stack.replicas[0].requests == []
        assert await stack.metric('refused_requests_total{reason="deadline_out_of_reach"}') == 1


async def test_a_deadline_bounds_the_first_byte_as_well(config: GatewayConfig) -> None:
    async with fleet(config, stalls, load=Load()) as stack:
        response, body = await stack.ask(timeout="1.2")
        assert response.status == 504
        assert body["error"]["code"] == "deadline_passed"
        await eventually(lambda: stack.replicas[0].live == 0)
        assert stack.replicas[0].aborted == 1


@pytest.mark.parametrize("value", ["0", "nan", "soon"])
async def test_a_bad_timeout_is_a_400(config: GatewayConfig, value: str) -> None:
    async with fleet(config, answers, load=Load()) as stack:
        response, body = await stack.ask(timeout=value)
        assert response.status == 400
        assert body["error"]["param"] == "x-request-timeout"


async def test_a_full_queue_is_a_429(config: GatewayConfig) -> None:
    async with fleet(replace(config, max_queued_tokens=3000), answers) as stack:
        response, body = await stack.ask("long " * 200)
        assert response.status == 429
        assert body["error"]["code"] == "queue_full"
        assert 1 <= int(response.headers["Retry-After"]) <= 60
        stack.say(0, Load())
        await eventually(lambda: not stack.app[POOLS].first.fleet.heartbeat("r1").load.pending_tokens)
        response, _ = await stack.ask("long " * 200)
        assert response.status == 200


async def test_the_urgent_go_first(config: GatewayConfig) -> None:
    async with fleet(config, stalls) as stack:
        later = stack.ask("for later " * 60, priority=3)
        await eventually(lambda: stack.held == 1)
        urgent = stack.ask("it is urgent " * 60, priority=-3)
        await eventually(lambda: stack.held == 2)
        stack.say(0, Load(waiting=1, pending_tokens=400))
        await eventually(lambda: len(stack.replicas[0].requests) == 2)
        stack.replicas[0].gate.set()
        assert await stack.sent_at(urgent) < await stack.sent_at(later)


async def test_a_client_that_leaves_while_held_leaves_nothing(config: GatewayConfig) -> None:
    async with fleet(config, answers) as stack:
        tasks = [stack.ask() for _ in range(5)]
        await eventually(lambda: stack.held == 5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await eventually(lambda: stack.held == 0)
        desk = stack.app[POOLS].first.dispatcher.reception.desk
        assert desk.shares.tenants == desk.room.tokens == 0
        assert await stack.metric("held_requests") == 0
        stack.say(0, Load())
        response, _ = await stack.ask()
        assert response.status == 200
        assert len(stack.replicas[0].requests) == 1


async def test_a_replica_that_arrives_serves_what_is_held(config: GatewayConfig) -> None:
    async with fleet(config, answers) as stack, AsyncExitStack() as more:
        tasks = [stack.ask(f"question {number}") for number in range(3)]
        await eventually(lambda: stack.held == 3)
        await add(more, stack, config, answers, Load())
        assert [(await task)[0].headers["x-ryokan-replica"] for task in tasks] == ["r2"] * 3


async def test_held_ones_outlive_the_replica_that_they_wait_for(config: GatewayConfig) -> None:
    async with fleet(config, answers, answers) as stack:
        stack.say(1, replace(BUSY, pending_tokens=5000))
        await eventually(lambda: stack.app[POOLS].first.fleet.heartbeat("r2").load.pending_tokens == 5000)
        tasks = [stack.ask(f"question {number}") for number in range(3)]
        await eventually(lambda: stack.held == 3)
        stack.publishers[0]._stopped.set()
        await stack.redis.delete(stack.publishers[0].keys.heartbeat("r1"))
        stack.say(1, Load())
        assert [(await task)[0].headers["x-ryokan-replica"] for task in tasks] == ["r2"] * 3


async def test_where_all_replicas_go_the_held_are_told(config: GatewayConfig) -> None:
    async with fleet(config, answers) as stack:
        task = stack.ask()
        await eventually(lambda: stack.held == 1)
        stack.publishers[0]._stopped.set()
        await stack.redis.delete(stack.publishers[0].keys.heartbeat("r1"))
        response, body = await task
        assert response.status == 503
        assert body["error"]["code"] == "no_replica"
        assert stack.held == 0


async def test_a_retry_never_waits_for_a_replica_that_was_tried(config: GatewayConfig) -> None:
    async with fleet(config, resets, answers) as stack:
        stack.say(0, Load())
        await eventually(lambda: not stack.app[POOLS].first.fleet.heartbeat("r1").load.pending_tokens)
        task = stack.ask()
        await eventually(lambda: len(stack.replicas[0].requests) == 1)
        await eventually(lambda: stack.held == 1)
        stack.say(1, Load())
        response, _ = await task
        assert response.headers["x-ryokan-replica"] == "r2"
        assert len(stack.replicas[0].requests) == 1


async def test_what_is_held_when_the_gateway_drains_is_still_served(config: GatewayConfig) -> None:
    async with AsyncExitStack() as outer:
        stack = await outer.enter_async_context(fleet(config, answers))
        task = stack.ask()
        await eventually(lambda: stack.held == 1)
        draining = asyncio.create_task(stack.app.shutdown())
        await asyncio.sleep(0.05)
        stack.say(0, Load())
        response, _ = await task
        assert response.status == 200
        await draining
