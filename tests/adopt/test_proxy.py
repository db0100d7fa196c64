"""The proxy between a gateway and an OpenAI server, over real HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from adopt.adapter import Adapter, namespace_of
from adopt.config import AdoptConfig, Engine
from adopt.engine import EngineClient
from adopt.mirror import Mirror
from adopt.proxy import make_app
from adopt.stream import EventStream
from replica.protocol.hashing import pack_tokens
from replica.protocol.text import ModelText
from tests.adopt.fake_engine import FakeEngine
from tests.adopt.test_stream import until

PROMPT = list(range(50))


@dataclass
class Setup:
    adapter: Adapter
    engine: FakeEngine
    http: aiohttp.ClientSession

    async def post(self, path: str = "/v1/chat/completions", **fields: Any) -> aiohttp.ClientResponse:
        body = {"model": "tiny", "prompt_token_ids": PROMPT} | fields
        return await self.http.post(self.adapter.url + path, json=body, headers={"x-request-id": "abc"})

    async def whole(self, path: str = "/v1/chat/completions", **fields: Any) -> dict[str, Any]:
        async with await self.post(path, **fields) as response:
            assert response.status == 200, await response.text()
            value: dict[str, Any] = await response.json()
            return value

    async def events(self, path: str = "/v1/chat/completions", **fields: Any) -> list[dict[str, Any]]:
        async with await self.post(path, stream=True, **fields) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            *events, last = (await response.text()).removesuffix("\n\n").split("\n\n")
        assert last.endswith("data: [DONE]")
        return [orjson.loads(event.removeprefix("data: ")) for event in events]


@asynccontextmanager
async def proxy(engine: FakeEngine, text: ModelText, folder: Path, kind: Engine = Engine.VLLM) -> AsyncIterator[Setup]:
    async with engine.serving(), aiohttp.ClientSession() as session:
        config = AdoptConfig(kind, engine.url, "tcp://127.0.0.1:1", folder, "tiny", "redis://127.0.0.1:1", id="a1")
        client = EngineClient(session, kind, engine.url)
        mirror = Mirror(lambda salt: namespace_of(text, salt))
        stream = EventStream(config.kv_events, None, "", mirror, lambda changes: None)
        adapter = Adapter(config, text, session, client, mirror, stream, await client.served(), "")
        runner = web.AppRunner(make_app(adapter), handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        adapter.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield Setup(adapter, engine, session)
        finally:
            await runner.cleanup()


@pytest.fixture
def engine(tiny_text: ModelText) -> FakeEngine:
    return FakeEngine(tiny_text)


@pytest.fixture
async def setup(engine: FakeEngine, tiny_text: ModelText, tiny_folder: Path) -> AsyncIterator[Setup]:
    async with proxy(engine, tiny_text, tiny_folder) as setup:
        yield setup


async def test_a_chat(setup: Setup) -> None:
    async with await setup.post(max_tokens=5) as response:
        answer = await response.json()
        assert response.headers["x-ryokan-delivered-tokens"] == "0"
        assert response.headers["x-ryokan-replica"] == "a1"
        assert response.headers["x-request-id"] == "abc"
    assert answer.pop("created") > 0
    assert answer == {
        "id": "chatcmpl-abc",
        "object": "chat.completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello."},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 50,
            "completion_tokens": 3,
            "total_tokens": 53,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }
    [sent] = setup.engine.requests
    assert (sent["model"], sent["prompt"], sent["max_tokens"]) == ("served", PROMPT, 5)
    async with await setup.post() as response:
        assert response.headers["x-ryokan-delivered-tokens"] == "32"
    one, two = setup.engine.request_ids
    assert one.startswith("abc-")
    assert two.startswith("abc-")
    assert one != two


async def test_a_completion(setup: Setup) -> None:
    answer = await setup.whole("/v1/completions", logprobs=1, n=2)
    assert (answer["id"], answer["object"]) == ("cmpl-abc", "text_completion")
    assert [choice["text"] for choice in answer["choices"]] == ["Hello.", "Hello."]
    assert answer["choices"][1]["logprobs"]["tokens"] == ["Hel", "lo", "."]


async def test_a_chat_streamed(setup: Setup) -> None:
    events = await setup.events(n=2)
    assert {event["id"] for event in events} == {"chatcmpl-abc"}
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    for index in (0, 1):
        parts = [choice for event in events for choice in event["choices"] if choice["index"] == index]
        assert parts[0]["delta"] == {"role": "assistant", "content": "Hel"}
        assert [part["delta"].get("content") for part in parts] == ["Hel", "lo", "."]
        assert [part["finish_reason"] for part in parts] == [None, None, "stop"]
    assert not any("usage" in event for event in events)


async def test_usage_in_a_stream_where_the_client_asks(setup: Setup) -> None:
    await setup.whole()
    events = await setup.events(stream_options={"include_usage": True})
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 32}
    assert not any("usage" in event for event in events[:-1])
    options = {"include_usage": True, "continuous_usage_stats": True}
    assert all("usage" in event for event in await setup.events(stream_options=options))


async def test_a_stream_tells_delivered_tokens_at_its_end(setup: Setup) -> None:
    async with await setup.post(stream=True) as response:
        assert "x-ryokan-delivered-tokens" not in response.headers
        assert (await response.text()).endswith("\n\n: delivered-tokens=0\ndata: [DONE]\n\n")
    async with await setup.post(stream=True) as response:
        assert (await response.text()).endswith("\n\n: delivered-tokens=32\ndata: [DONE]\n\n")


async def test_a_completion_streamed(setup: Setup) -> None:
    events = await setup.events("/v1/completions", return_token_ids=True)
    assert "".join(event["choices"][0]["text"] for event in events) == "Hello."
    assert events[0]["choices"][0]["prompt_token_ids"] == PROMPT
    assert [event["choices"][0]["token_ids"] for event in events] == [[0], [1], [2]]


async def test_logprobs_of_a_chat(setup: Setup) -> None:
    answer = await setup.whole(logprobs=True, top_logprobs=2)
    first = answer["choices"][0]["logprobs"]["content"][0]
    assert first == {
        "token": "Hel",
        "logprob": -0.5,
        "bytes": [72, 101, 108],
        "top_logprobs": [
            {"token": "other", "logprob": -0.25, "bytes": list(b"other")},
            {"token": "Hel", "logprob": -0.5, "bytes": list(b"Hel")},
        ],
    }
    assert setup.engine.requests[0]["logprobs"] == 2
    assert (await setup.events(logprobs=True))[0]["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


async def test_the_engine_s_refusals_keep_their_status(setup: Setup) -> None:
    for refusal, message in (
        ((400, {"error": {"message": "too hot", "type": "x", "param": "temperature", "code": 400}}), "too hot"),
        ((429, {"object": "error", "message": "too many", "code": 429}), "too many"),
        ((500, "oops"), "oops"),
    ):
        setup.engine.refuses = refusal
        for stream in (False, True):
            async with await setup.post(stream=stream) as response:
                error = (await response.json())["error"]
                assert (response.status, error["message"]) == (refusal[0], message)
                assert set(error) == {"message", "type", "param", "code"}


async def test_failures_before_the_first_token_have_a_status(setup: Setup) -> None:
    setup.engine.dies_after = 0
    async with await setup.post(stream=True) as response:
        assert response.status == 502
    setup.engine.pieces = ()
    setup.engine.stream_error = {"message": "no such grammar", "code": 400}
    async with await setup.post(stream=True) as response:
        assert response.status == 400
        assert (await response.json())["error"]["message"] == "no such grammar"


async def test_an_error_in_a_stream_is_passed_on(setup: Setup) -> None:
    setup.engine.stream_error = {"message": "overheated", "code": 500}
    events = await setup.events()
    assert events[-1] == {"error": {"message": "overheated", "code": 500}}


async def test_a_stream_that_breaks_off_breaks_off(setup: Setup) -> None:
    setup.engine.dies_after = 2
    async with await setup.post(stream=True) as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    await until(lambda: not setup.adapter.traffic.requests)


async def test_a_client_that_leaves_ends_the_engine_s_work(setup: Setup) -> None:
    setup.engine.stalls = True
    for stream in (False, True):
        task = asyncio.create_task(setup.post(stream=stream))
        await until(lambda: setup.engine.requests)
        setup.engine.requests.clear()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await until(lambda: setup.engine.aborted == 2)
    assert not setup.adapter.traffic.requests


async def test_an_engine_that_is_gone(setup: Setup, tiny_text: ModelText) -> None:
    changes = []
    setup.adapter.state_changed = lambda: changes.append(setup.adapter.state)
    setup.adapter.engine.url = "http://127.0.0.1:1"
    async with await setup.post() as response:
        assert response.status == 503
    assert changes == ["draining"]
    for path, status in (("/health", 500), ("/ready", 503), ("/metrics", 503)):
        async with setup.http.get(setup.adapter.url + path) as response:
            assert response.status == status


async def test_draining(setup: Setup) -> None:
    async with setup.http.get(f"{setup.adapter.url}/ready") as response:
        assert response.status == 200
    async with setup.http.post(f"{setup.adapter.url}/drain") as response:
        assert await response.json() == {"state": "draining", "requests": 0}
    async with await setup.post() as response:
        assert response.status == 503


async def test_the_rest_of_a_replica_s_routes(setup: Setup) -> None:
    async with setup.http.get(f"{setup.adapter.url}/v1/models") as response:
        [model] = (await response.json())["data"]
        assert (model["id"], model["max_model_len"]) == ("tiny", setup.adapter.max_context)
    async with setup.http.get(f"{setup.adapter.url}/metrics") as response:
        assert "vllm:num_requests_running" in await response.text()
    async with setup.http.post(f"{setup.adapter.url}/cache/reset") as response:
        assert response.status == 200
    setup.engine.stalls = True
    async with setup.http.post(f"{setup.adapter.url}/cache/reset") as response:
        assert response.status == 409
    async with setup.http.get(f"{setup.adapter.url}/nothing") as response:
        assert (response.status, response.content_type) == (404, "application/json")


async def test_text_is_for_gateways_to_tokenise(setup: Setup) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
    async with setup.http.post(f"{setup.adapter.url}/v1/chat/completions", json=body) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "prompt_token_ids"


async def test_the_cost_of_prefill_is_learnt(setup: Setup) -> None:
    before = setup.adapter.fit.model
    await setup.events()
    assert setup.adapter.fit.model != before
    assert setup.adapter.traffic.pending_tokens == 0


async def test_an_engine_that_doesnt_report_cached_tokens(setup: Setup) -> None:
    setup.engine.reports_cached = False
    async with await setup.post() as response:
        assert "x-ryokan-delivered-tokens" not in response.headers
        assert "prompt_tokens_details" not in (await response.json())["usage"]
    setup.engine.reports_cached = True
    await setup.whole()
    setup.engine.reports_cached = False
    async with await setup.post() as response:
        assert response.headers["x-ryokan-delivered-tokens"] == "0"


async def test_a_stream_of_an_engine_that_doesnt_report_tells_nothing(setup: Setup) -> None:
    setup.engine.reports_cached = False
    async with await setup.post(stream=True) as response:
        assert (await response.text()).endswith("}\n\ndata: [DONE]\n\n")


async def test_what_is_pending_is_what_the_mirror_doesnt_have(setup: Setup) -> None:
    from adopt.events import Stored

    setup.adapter.mirror.apply([Stored((b"a",), None, pack_tokens(PROMPT[:32]), "", 1, None, True)])
    setup.engine.stalls = True
    task = asyncio.create_task(setup.post())
    await until(lambda: setup.engine.requests)
    load = setup.adapter.heartbeat("epoch").load
    assert (load.pending_tokens, load.waiting) == (18, 1)
    assert setup.adapter.heartbeat("epoch").reuse_tokens == 32
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: not setup.adapter.traffic.requests)


async def test_sglang_refuses_by_name_what_it_cant_do(
    engine: FakeEngine, tiny_text: ModelText, tiny_folder: Path
) -> None:
    async with proxy(engine, tiny_text, tiny_folder, Engine.SGLANG) as setup:
        async with await setup.post(cache_salt="x") as response:
            assert response.status == 400
            assert (await response.json())["error"]["param"] == "cache_salt"
        assert not engine.requests
