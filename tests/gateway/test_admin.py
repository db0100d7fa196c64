from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.config import GatewayConfig
from gateway.keys import POOLS
from tests.gateway.fakes import Stack, eventually, gateway
from tests.gateway.stack import error_of

KEY = "0123456789abcdef"


@pytest.fixture
def config(model_folder: Path, redis_url: str) -> GatewayConfig:
    return GatewayConfig(model=model_folder, redis_url=redis_url, policy="round_robin")


async def ask(stack: Stack, body: Any, status: int = 200, **headers: str) -> Any:
    response = await stack.http.post(f"{stack.url}/admin/policy", json=body, headers=headers)
    assert response.status == status, await response.text()
    return await response.json() if status == 200 else await error_of(response)


async def test_policy_and_shadow_one_by_one_and_together(config: GatewayConfig) -> None:
    async with gateway(config) as stack:
        state = await ask(stack, {"policy": "ttft"})
        assert state == {"policy": "ttft", "previous": "round_robin", "shadow": None}
        state = await ask(stack, {"shadow": "least_tokens"})
        assert state == {"policy": "ttft", "previous": "ttft", "shadow": "least_tokens"}
        state = await ask(stack, {"policy": "round_robin", "shadow": None})
        assert state == {"policy": "round_robin", "previous": "ttft", "shadow": None}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "policy"),
        ({"policy": None}, "policy"),
        ({"policy": "nonsense"}, "policy"),
        ({"policy": "ttft", "shadow": "nonsense"}, "shadow"),
        ({"policy": "ttft", "shadow": 3}, "shadow"),
        ({"policy": "ttft", "else": 1}, "policy"),
    ],
)
async def test_what_is_wrong_changes_nothing(config: GatewayConfig, body: Any, param: str) -> None:
    async with gateway(config) as stack:
        assert (await ask(stack, body, 400))["param"] == param
        assert stack.app[POOLS].first.router.policy.name == "round_robin"


async def test_with_a_key_it_must_be_shown(config: GatewayConfig) -> None:
    async with gateway(replace(config, admin_key=KEY)) as stack:
        assert (await ask(stack, {"policy": "ttft"}, 401))["code"] == "invalid_api_key"
        assert (await ask(stack, {"policy": "ttft"}, 401, Authorization="Bearer x"))["code"] == "invalid_api_key"
        assert (await ask(stack, {"policy": "ttft"}, Authorization=f"Bearer {KEY}"))["policy"] == "ttft"


async def test_the_policy_file_rules_from_the_start_and_as_it_changes(config: GatewayConfig, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('policy = "least_tokens"\n')
    async with gateway(replace(config, policy_file=file)) as stack:
        assert stack.app[POOLS].first.router.policy.name == "least_tokens"
        file.write_text('policy = "ttft"\nshadow = "round_robin"\n')
        await eventually(lambda: stack.app[POOLS].first.router.policy.name == "ttft")
        table = await (await stack.http.get(f"{stack.url}/route/shadow")).json()
        assert (table["policy"], table["shadow"], table["requests"]) == ("ttft", "round_robin", 0)
