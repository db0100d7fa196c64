"""Two models behind one gateway: each request goes by its model, and to nobody else's replicas."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.app import make_app
from gateway.config import ConfigError, GatewayConfig
from gateway.keys import POOLS
from gateway.served import ServedModel
from gateway.settings import load
from replica.protocol.canary import fingerprints
from replica.protocol.records import Keys
from replica.protocol.text import ModelText
from tests.gateway.fakes import (
    FakeReplica,
    Publisher,
    Stack,
    answers,
    chat_body,
    eventually,
    heartbeat,
    redis_client,
    serving_lean,
    write_model,
)
from tests.gateway.stack import error_of
from tests.gateway.test_keys import ALICE, bearer, write_keys


@pytest.fixture
def config(tmp_path: Path, redis_url: str) -> GatewayConfig:
    big, small = write_model(tmp_path / "big"), write_model(tmp_path / "small", add_prefix_space=True)
    models = (ServedModel(big, "big", "fleet-big", ("gpt-big",)), ServedModel(small, "small", "fleet-small"))
    return GatewayConfig(model=big, redis_url=redis_url, models=models)


@asynccontextmanager
async def two(config: GatewayConfig, *running: str) -> AsyncIterator[Stack]:
    async with AsyncExitStack() as stack:
        texts = [ModelText.load(served.folder, served.name) for served in config.served]
        app = make_app(config, texts)
        url = await stack.enter_async_context(serving_lean(app))
        redis = await stack.enter_async_context(redis_client(config.redis_url))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        for model in running:
            pool = app[POOLS].of(model)
            replica = await stack.enter_async_context(FakeReplica(f"of-{model}", answers).serving())
            beat = heartbeat(replica.name, url=replica.url, **fingerprints(pool.text))
            publisher = Publisher(redis, beat, Keys(pool.served.fleet))
            await stack.enter_async_context(publisher.serving())
            await eventually(lambda pool=pool: len(pool.index.replicas()) == 1)  # type: ignore[misc]
        yield Stack(url, app, redis, http)


async def test_requests_go_by_model(config: GatewayConfig) -> None:
    async with two(config, "big", "small") as stack:
        for asked, served in (("big", "big"), ("gpt-big", "big"), ("small", "small")):
            response = await stack.chat(model=asked)
            assert (response.status, response.headers["x-ryokan-replica"]) == (200, f"of-{served}")
            said = await (await stack.http.get(f"{stack.url}/route/explain/{response.headers['x-request-id']}")).json()
            assert (said["model"], [row["replica"] for row in said["candidates"]]) == (served, [f"of-{served}"])
        response = await stack.chat(model="none")
        assert (response.status, (await error_of(response))["code"]) == (404, "model_not_found")
        big, small = stack.app[POOLS]
        assert (big.index.replicas(), small.index.replicas()) == (("of-big",), ("of-small",))
        listed = await (await stack.http.get(f"{stack.url}/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["big", "small"]
        tokens: dict[str, Any] = {}
        for model in ("big", "small"):
            body = {"model": model, "prompt": "the lift"}
            tokens[model] = (await (await stack.http.post(f"{stack.url}/tokenize", json=body)).json())["tokens"]
        assert tokens["big"] != tokens["small"]
        changed = await stack.http.post(f"{stack.url}/admin/policy?model=small", json={"policy": "round_robin"})
        assert changed.status == 200
        assert (big.router.policy.name, small.router.policy.name) == ("ttft", "round_robin")
        assert {row["model"] for row in await (await stack.http.get(f"{stack.url}/replicas")).json()} == {
            "big",
            "small",
        }
        dry = await stack.http.post(f"{stack.url}/route/dry-run", json=chat_body(model="small"))
        assert (await dry.json())["replica"] == "of-small"
        assert (await stack.http.get(f"{stack.url}/metrics")).status == 200


async def test_one_without_replicas_fails_alone(config: GatewayConfig) -> None:
    config = replace(config, timeouts=replace(config.timeouts, queue_s=0.2))
    async with two(config, "big") as stack:
        assert (await stack.chat(model="big")).status == 200
        assert (await stack.chat(model="small")).status == 503
        for query, status in (("", 200), ("?model=big", 200), ("?model=small", 503), ("?model=x", 404)):
            assert (await stack.http.get(f"{stack.url}/ready{query}")).status == status


async def test_a_key_for_one_model(config: GatewayConfig, tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.toml", alice='models = ["big"]\n')
    async with two(replace(config, keys_file=keys), "big", "small") as stack:
        for model, status in (("big", 200), ("gpt-big", 200), ("small", 404)):
            body = chat_body(model=model)
            response = await stack.http.post(f"{stack.url}/v1/chat/completions", json=body, headers=bearer(ALICE))
            assert response.status == status, model
        listed = await (await stack.http.get(f"{stack.url}/v1/models", headers=bearer(ALICE))).json()
        assert [model["id"] for model in listed["data"]] == ["big"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('model = "m"\n[models.a]\nmodel = "m"', "model"),
        ('[models.a]\nmodel = "m"\nfleat = "x"', "models.a.fleat: there is no such setting"),
        ('[models.a]\nmodel = "m"\nfleet = "x y"', "models.a.fleet"),
        ('[models.a]\nmodel = "m"\n[models.b]\nmodel = "m"\naliases = ["a"]', "models.b: 'a' is a name of 'a' already"),
        ('[models.a]\nmodel = "m"\nfleet = "f"\n[models.b]\nmodel = "m"\nfleet = "f"', "models.b.fleet"),
        ('[models.a]\nfleet = "f"', "models"),
    ],
)
def test_settings_errors_name_the_field(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(f'redis_url = "redis://h:1"\n{text}\n')
    with pytest.raises(ConfigError, match=said):
        load(path, {})
