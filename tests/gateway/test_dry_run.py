"""Asked about a real fleet, without touching it."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.config import GatewayConfig
from gateway.keys import POOLS, TRACES
from gateway.routing.round_robin import RoundRobin
from tests.gateway.fakes import Stack, answers, chat_body, gateway
from tests.gateway.stack import error_of, fleet

LONG = "context " * 40


@pytest.fixture
def config(model_folder: Path, redis_url: str) -> GatewayConfig:
    return GatewayConfig(model=model_folder, redis_url=redis_url, policy="ttft")


async def dry(stack: Stack, body: Any, status: int = 200, **query: str) -> Any:
    response = await stack.http.post(f"{stack.url}/route/dry-run", json=body, params=query)
    assert response.status == status, await response.text()
    return await response.json() if status == 200 else await error_of(response)


async def test_it_says_what_the_request_itself_then_gets(config: GatewayConfig) -> None:
    async with fleet(config, answers, answers, answers) as stack:
        cold = await dry(stack, chat_body(LONG))
        assert (cold["reason"], cold["policy"], cold["dry_run"]) == ("cold", "ttft", True)
        first = await stack.chat(LONG)
        assert first.headers["x-ryokan-replica"] == cold["replica"]
        assert first.headers["x-ryokan-reason"] == "cold"
        assert float(first.headers["x-ryokan-predicted-ttft"]) == cold["predicted_ttft_s"] > 0
        warm = await dry(stack, chat_body(LONG + "and a question"))
        assert (warm["replica"], warm["reason"]) == (cold["replica"], "hit")
        assert warm["predicted_cached_tokens"] >= 160
        assert len(warm["candidates"]) == 3


async def test_it_changes_nothing(config: GatewayConfig) -> None:
    async with fleet(replace(config, policy="round_robin"), answers, answers) as stack:
        before = await (await stack.http.get(f"{stack.url}/metrics")).text()
        choices = {(await dry(stack, chat_body(LONG)))["replica"] for _ in range(3)}
        assert len(choices) == 1
        assert not any(replica.requests for replica in stack.replicas)
        assert stack.app[POOLS].first.index._num_expected() == 0
        assert len(stack.app[TRACES]) == 0
        assert all(status.queue_tokens == 0 for status in stack.app[POOLS].first.fleet.statuses(0).values())
        after = await (await stack.http.get(f"{stack.url}/metrics")).text()
        counted = [line for line in after.splitlines() if "ryokan" in line and "tokenise" in line]
        assert counted == [line for line in before.splitlines() if "ryokan" in line and "tokenise" in line]
        assert (await stack.chat()).headers["x-ryokan-replica"] in choices


async def test_another_policy_can_be_asked(config: GatewayConfig) -> None:
    async with fleet(replace(config, shadow_policy="round_robin"), answers, answers) as stack:
        assert (await dry(stack, chat_body(), policy="least_tokens"))["policy"] == "least_tokens"
        shadow = stack.app[POOLS].first.shadow.policy
        assert isinstance(shadow, RoundRobin)
        seen = set()
        for turn in ("r1", "r2"):
            shadow._last = turn
            seen.add((await dry(stack, chat_body(), policy="round_robin"))["replica"])
        assert seen == {"r1", "r2"}
        assert stack.app[POOLS].first.router.policy.name == "ttft"
        error = await dry(stack, chat_body(), 400, policy="nonsense")
        assert error["param"] == "policy" and "there are" in error["message"]


async def test_the_endpoint_is_told_or_seen(config: GatewayConfig) -> None:
    completion = {"model": "tiny", "prompt": [1, 2, 3]}
    async with fleet(config, answers) as stack:
        assert (await dry(stack, completion))["prompt_tokens"] == 3
        assert (await dry(stack, completion, endpoint="completion"))["reason"] == "only"
        assert (await dry(stack, completion, 400, endpoint="chat"))["param"]
        assert (await dry(stack, completion, 400, endpoint="other"))["param"] == "endpoint"
        assert (await dry(stack, {"model": "tiny"}, 400))["param"] == "messages"
        assert (await dry(stack, [], 400))["message"]
        assert (await dry(stack, chat_body(model="other"), 404))["code"] == "model_not_found"
        assert (await dry(stack, chat_body(max_tokens=10**6), 400))["code"] == "context_length_exceeded"


async def test_without_a_replica_it_doesn_t_wait(config: GatewayConfig) -> None:
    async with gateway(config) as stack, asyncio.timeout(3):
        assert (await dry(stack, chat_body(), 503))["code"] == "no_replica"


async def test_the_shadow_decides_along_and_moves_nothing(config: GatewayConfig) -> None:
    async with fleet(replace(config, shadow_policy="round_robin"), answers, answers) as stack:
        replies = [await stack.chat(LONG) for _ in range(6)]
        assert len({reply.headers["x-ryokan-replica"] for reply in replies}) == 1
        table = await (await stack.http.get(f"{stack.url}/route/shadow")).json()
        assert (table["policy"], table["shadow"], table["requests"], table["disagreements"]) == (
            "ttft",
            "round_robin",
            6,
            3,
        )
        assert table["disagreement_rate"] == 0.5
        live, shadow = table["means"]
        assert table["shadow_ttft_difference_s"] == pytest.approx(
            shadow["predicted_ttft_s"] - live["predicted_ttft_s"], abs=2e-6
        )
        assert live["predicted_cached_tokens"] > shadow["predicted_cached_tokens"]
        exposition = await (await stack.http.get(f"{stack.url}/metrics")).text()
        labels = 'policy="ttft",same="no",shadow="round_robin"'
        assert f"ryokan_gateway_shadow_decisions_total{{{labels}}} 3.0" in exposition
        explained = await stack.http.get(f"{stack.url}/route/explain/{replies[-1].headers['x-request-id']}")
        said = (await explained.json())["shadow"]
        assert said["policy"] == "round_robin"
        assert said["same"] is (said["replica"] == replies[-1].headers["x-ryokan-replica"])
