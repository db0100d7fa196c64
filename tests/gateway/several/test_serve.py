"""Several prompts in one request, where replicas and clients misbehave, and what operators see of them."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from gateway.app import make_app
from gateway.config import GatewayConfig, Timeouts
from gateway.keys import BUDGET, GATE, POOLS
from gateway.relay import KEEP_ALIVE
from gateway.several import serve
from replica.protocol import headers
from replica.protocol.text import ModelText
from tests.gateway import fakes
from tests.gateway.fakes import Behaviour, FakeReplica, answers_status, eventually, open_stream
from tests.gateway.stack import Fleet, error_of, fleet
from tests.gateway.test_keys import ALICE, bearer, write_keys

DONE = b"data: [DONE]\n\n"
TENANT = "[tenants.alice]\n"


@pytest.fixture(params=["lean", "aiohttp"], autouse=True)
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(fakes, "SERVER", request.param)
    return str(request.param)


@pytest.fixture
def config(model_folder: Path, redis_url: str) -> GatewayConfig:
    timeouts = Timeouts(connect_s=1, first_byte_s=5, idle_s=5, queue_s=5, grace_s=2, keep_alive_s=0.4)
    return GatewayConfig(model=model_folder, redis_url=redis_url, timeouts=timeouts, policy="round_robin")


def first_token(body: dict[str, Any]) -> int:
    return int(body["prompt_token_ids"][0])


def chunk(request: web.Request, text: str) -> bytes:
    name = request.headers[headers.REQUEST_ID]
    choice = {"index": 0, "text": text, "finish_reason": None}
    return (
        b"data: " + orjson.dumps({"id": f"cmpl-{name}", "created": 1, "model": "tiny", "choices": [choice]}) + b"\n\n"
    )


async def completes(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """With the prompt's first token."""
    if body.get("stream"):
        response = await open_stream(request, delivered=16)
        await response.write(chunk(request, str(first_token(body))) + DONE)
        return response
    choice = {"index": 0, "text": str(first_token(body)), "finish_reason": "stop"}
    usage = {"prompt_tokens": len(body["prompt_token_ids"]), "completion_tokens": 2}
    value = {"id": f"cmpl-{request.headers[headers.REQUEST_ID]}", "choices": [choice], "usage": usage}
    return web.json_response(value, headers={headers.DELIVERED_TOKENS: "16"})


def of_prompt(prompt: int, special: Behaviour, other: Behaviour = completes) -> Behaviour:
    """`special` for the prompt that begins with this token."""

    async def behave(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await (special if first_token(body) == prompt else other)(replica, request, body)

    return behave


async def waits(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    await replica.gate.wait()
    return await completes(replica, request, body)


async def begins(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = await open_stream(request)
    await response.write(chunk(request, "begun"))
    await replica.gate.wait()
    await response.write(DONE)
    return response


async def breaks(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = await open_stream(request)
    await response.write(chunk(request, "begun"))
    await asyncio.sleep(0.05)
    assert request.transport is not None
    request.transport.abort()
    return response


async def post(stack: Fleet, *prompts: int, name: str = "R", key: str = ALICE, **fields: Any) -> aiohttp.ClientResponse:
    body = {"model": "tiny", "prompt": [[prompt] * 20 for prompt in prompts], **fields}
    given = {headers.REQUEST_ID: name} | bearer(key)
    return await stack.http.post(f"{stack.url}/v1/completions", json=body, headers=given)


def texts(data: bytes) -> list[tuple[int, str]]:
    assert data.endswith(DONE)
    chunks = [orjson.loads(each.removeprefix(b"data: ")) for each in data.removesuffix(DONE).split(b"\n\n") if each]
    assert all(chunk["id"] == "cmpl-R" for chunk in chunks)
    return sorted((choice["index"], choice["text"]) for chunk in chunks for choice in chunk["choices"])


def nothing_left(stack: Fleet) -> Callable[[], bool]:
    def check() -> bool:
        statuses = stack.app[POOLS].first.fleet.statuses(0).values()
        return all(status.leases == 0 for status in statuses) and stack.app[BUDGET].live == 0

    return check


async def test_each_prompt_goes_its_own_way_and_the_client_sees_one_answer(config: GatewayConfig) -> None:
    async with fleet(config, completes, completes) as stack:
        response = await post(stack, 5, 6, 7)
        answer = await response.json()
        assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [(0, "5"), (1, "6"), (2, "7")]
        assert (answer["id"], answer["usage"]) == ("cmpl-R", {"prompt_tokens": 60, "completion_tokens": 6})
        assert sorted(len(replica.requests) for replica in stack.replicas) == [1, 2]
        assert response.headers[headers.REQUEST_ID] == "R"
        assert sorted(response.headers[headers.REPLICA].split(", ")) == ["r1", "r2"]
        assert response.headers[headers.DELIVERED_TOKENS] == "48"
        response = await post(stack, 5, 6, 7, stream=True)
        assert texts(await response.read()) == [(0, "5"), (1, "6"), (2, "7")]
        assert response.headers[headers.POLICY] == "round_robin"
        assert nothing_left(stack)()
        sent = [request for replica in stack.replicas for request in replica.requests]
        assert all("prompt" not in request for request in sent)


async def test_an_upstream_gets_each_as_text(model_folder: Path) -> None:
    seen: list[Any] = []

    async def well(request: web.Request) -> web.Response:
        return web.Response()

    async def generate(request: web.Request) -> web.Response:
        seen.append((await request.json())["prompt"])
        return web.json_response({"id": "theirs", "choices": [{"index": 0, "text": seen[-1].upper()}]})

    theirs = web.Application()
    theirs.router.add_get("/health", well)
    theirs.router.add_post("/v1/completions", generate)
    async with fakes.serving(theirs) as upstream:
        config = GatewayConfig(model_folder, upstreams=(upstream,), probe_interval_s=0.05)
        app = make_app(config, [ModelText.load(model_folder, "tiny")])
        async with fakes.SERVERS[fakes.SERVER](app) as url, aiohttp.ClientSession() as http:
            await eventually(lambda: bool(app[POOLS].first.fleet.routable(asyncio.get_running_loop().time())))
            response = await http.post(f"{url}/v1/completions", json={"model": "tiny", "prompt": ["a", "b"]})
            answer = await response.json()
            assert [choice["text"] for choice in answer["choices"]] == ["A", "B"]
            assert sorted(seen) == ["a", "b"] and answer["id"] == "theirs" and "usage" not in answer


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (["a"] * 129, "a request may have 128 choices"),
        (["a", ""], "must be a non-empty string"),
        ([[1], [999_999]], "prompt[1]: token id 999999 is outside the vocabulary"),
        ([[1], [1] * 5000], "prompt[1]: the model's context is 4096 tokens"),
    ],
)
async def test_what_is_wrong_with_one_is_told_before_any_is_sent(config: GatewayConfig, prompt: Any, said: str) -> None:
    async with fleet(config, completes) as stack:
        body = {"model": "tiny", "prompt": prompt}
        response = await stack.http.post(f"{stack.url}/v1/completions", json=body)
        assert response.status == 400 and said in (await error_of(response))["message"]
        assert stack.replicas[0].requests == []


async def test_all_together_are_bounded(config: GatewayConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "MAX_TOKENS", 50)
    async with fleet(config, completes) as stack:
        assert (await post(stack, 1, 2)).status == 200
        response = await post(stack, 1, 2, 3)
        assert "all prompts together may have 50 tokens" in (await error_of(response))["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_of_one_before_anything_was_sent_is_that_of_all(config: GatewayConfig, stream: bool) -> None:
    async with fleet(config, of_prompt(6, answers_status(400), waits)) as stack:
        response = await post(stack, 5, 6, 7, stream=stream)
        assert (response.status, (await error_of(response))["message"]) == (400, "fake 400")
        assert response.headers[headers.REQUEST_ID] == "R"
        await eventually(nothing_left(stack))
        await eventually(lambda: stack.replicas[0].live == 0)
    async with fleet(config, of_prompt(6, answers_status(500), waits)) as stack:
        response = await post(stack, 5, 6, 7, stream=stream)
        assert (response.status, (await error_of(response))["code"]) == (502, "replica_failed")
        assert response.headers[headers.REQUEST_ID] == "R"
        await eventually(nothing_left(stack))


async def test_an_error_of_one_afterwards_is_an_event(config: GatewayConfig) -> None:
    late = asyncio.Event()

    async def fails_late(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await late.wait()
        return await answers_status(400)(replica, request, body)

    async with fleet(config, of_prompt(6, fails_late, begins)) as stack:
        response = await post(stack, 5, 6, 7, stream=True)
        data = await response.content.readuntil(b"\n\n")
        late.set()
        data += await response.read()
        assert response.status == 200 and data.endswith(DONE) and data.count(DONE) == 1
        assert b'"message":"fake 400"' in data and data.count(b'"error"') == 1
        await eventually(nothing_left(stack))
        await eventually(lambda: stack.replicas[0].aborted == 2)


async def test_one_that_breaks_off_ends_all_with_one_event(config: GatewayConfig) -> None:
    async with fleet(config, of_prompt(6, breaks, begins)) as stack:
        response = await post(stack, 5, 6, 7, stream=True)
        data = await response.read()
        assert response.status == 200 and data.endswith(DONE) and data.count(DONE) == 1
        *chunks, error = data.removesuffix(DONE).split(b"\n\n")[:-1]
        assert orjson.loads(error.removeprefix(b"data: "))["error"]["code"] == "replica_died"
        assert len(chunks) == 3 and all(b'"begun"' in each for each in chunks)
        await eventually(nothing_left(stack))
        async with stack.http.get(f"{stack.url}/metrics") as page:
            assert "ryokan_gateway_broken_streams_total 1.0" in await page.text()


async def test_one_that_fails_early_is_tried_elsewhere(config: GatewayConfig) -> None:
    async with fleet(replace(config, retry_budget=1.0), answers_status(500), completes) as stack:
        response = await post(stack, 5, 6, 7, 8)
        assert [choice["text"] for choice in (await response.json())["choices"]] == ["5", "6", "7", "8"]
        assert response.headers[headers.REPLICA] == "r2"
        assert len(stack.replicas[0].requests) > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_all(config: GatewayConfig, stream: bool) -> None:
    async with fleet(config, begins if stream else waits, begins if stream else waits) as stack:
        task = asyncio.create_task(post(stack, 5, 6, 7, 8, stream=stream))
        await eventually(lambda: sum(replica.live for replica in stack.replicas) == 4)
        if stream:
            (await task).close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await eventually(lambda: sum(replica.aborted for replica in stack.replicas) == 4)
        await eventually(nothing_left(stack))


async def test_a_silent_stream_gets_comments(config: GatewayConfig) -> None:
    async with fleet(config, begins) as stack:
        response = await post(stack, 5, 6, 7, stream=True)
        data = b""
        while data.count(KEEP_ALIVE) < 2:
            data += await response.content.readany()
        stack.replicas[0].gate.set()
        data += await response.read()
        assert texts(data.replace(KEEP_ALIVE, b"")) == [(0, "begun"), (1, "begun"), (2, "begun")]


async def test_a_slow_client_holds_up_all_replicas(config: GatewayConfig) -> None:
    """What it doesn't read isn't kept here."""
    written = 0

    async def floods(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal written
        response = await open_stream(request)
        for _ in range(600):
            await response.write(chunk(request, "x" * 60_000))
            written += 60_000
        await response.write(DONE)
        return response

    async with fleet(config, floods) as stack:
        response = await post(stack, 5, 6, stream=True)
        seen = -1
        while seen != written:
            seen = written
            await asyncio.sleep(0.5)
        assert seen < 600 * 2 * 60_000 / 2
        data = await response.read()
        assert data.count(b'"text"') == 1200 and data.endswith(DONE)


async def test_the_log_has_a_line_for_each_prompt_and_one_for_the_request(
    config: GatewayConfig, tmp_path: Path
) -> None:
    config = replace(config, access_log=str(tmp_path / "log"))
    async with fleet(config, completes) as stack:
        assert (await post(stack, 5, 6)).status == 200
        async with stack.http.get(f"{stack.url}/metrics") as page:
            [counted] = [
                line for line in (await page.text()).splitlines() if line.startswith("ryokan_gateway_requests_total{")
            ]
        assert counted.endswith(" 1.0")
    lines = {line["request_id"]: line for line in map(orjson.loads, (tmp_path / "log").read_bytes().splitlines())}
    told = {name: (line["status"], line.get("prompt_tokens"), line.get("replica")) for name, line in lines.items()}
    assert told["R-p0"] == told["R-p1"] == (200, 20, "r1")
    assert told["R"] == (200, None, None)


async def test_limits_count_each_prompt(config: GatewayConfig, tmp_path: Path) -> None:
    async def statuses(limit: str, *counts: int, **fields: Any) -> list[tuple[int, Any]]:
        keys = write_keys(tmp_path / "keys.toml", f"{TENANT}{limit}\n")
        found = []
        async with fleet(replace(config, keys_file=keys), completes) as stack:
            for count in counts:
                response = await post(stack, *range(1, count + 1), **fields)
                body = await response.json()
                found.append((response.status, body.get("error", {}).get("code")))
            assert stack.app[GATE].meter.running == 0
        return found

    assert await statuses("concurrent_requests = 3", 4, 3) == [(429, "concurrency_exceeded"), (200, None)]
    over = (429, "request_rate_exceeded")
    assert await statuses("requests_per_minute = 5", 3, 3, 2, 2) == [(200, None), over, (200, None), over]
    # Of a full bucket more may be taken than there is in it.
    assert await statuses("requests_per_minute = 5", 7, 1) == [(200, None), over]
    over = (429, "token_rate_exceeded")
    assert await statuses("tokens_per_minute = 90", 4, 1) == [(200, None), over]
    assert await statuses("tokens_per_minute = 90", 2, 3, 1) == [(200, None), over, (200, None)]


async def test_what_fails_costs_no_tokens(config: GatewayConfig, tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.toml", f"{TENANT}tokens_per_minute = 60\n")
    async with fleet(replace(config, keys_file=keys), of_prompt(6, answers_status(400))) as stack:
        for _ in range(4):
            assert (await post(stack, 5, 6)).status == 400
        assert (await post(stack, 5, 7)).status == 200


async def test_a_dry_run_is_of_one_prompt(config: GatewayConfig) -> None:
    async with fleet(config, completes) as stack:
        body = {"model": "tiny", "prompt": ["a", "b"]}
        response = await stack.http.post(f"{stack.url}/route/dry-run", json=body)
        assert (response.status, (await error_of(response))["param"]) == (400, "prompt")
