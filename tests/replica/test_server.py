"""A replica process that serves alone, on the tiny model, over real HTTP."""

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from tests.processes import Process, run_command
from tests.tiny_model import CONTEXT, VOCAB

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "temperature": 0, "ignore_eos": True}


def arguments(folder: Path, *more: str) -> list[str]:
    return ["replica", "--model", str(folder), "--served-model-name", "tiny", "--kv-memory-gib", "0.05", *more]


@pytest.fixture(scope="module")
def url(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process = Process(arguments(tiny_folder), tmp_path_factory.mktemp("replica") / "log")
    yield process.wait_for(r"ready on (http\S+)")
    assert process.stop() == 0


async def post(http: aiohttp.ClientSession, path: str, body: Any, **headers: str) -> tuple[int, Any, Any]:
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    async with http.post(path, data=data, headers=headers) as response:
        return response.status, orjson.loads(await response.read()), response.headers


async def stream_events(http: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> list[Any]:
    async with http.post(path, json=body | {"stream": True}) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        events = (await response.read()).decode().strip().split("\n\n")
    assert events.pop() == "data: [DONE]"
    return [orjson.loads(event.removeprefix("data: ")) for event in events]


async def test_stream_and_whole_answer_agree(http: aiohttp.ClientSession) -> None:
    body = CHAT | {"max_tokens": 40}
    status, whole, _ = await post(http, "/v1/chat/completions", body)
    assert status == 200
    chunks = await stream_events(http, "/v1/chat/completions", body | {"stream_options": {"include_usage": True}})
    deltas = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert "".join(choice["delta"].get("content", "") for choice in deltas) == whole["choices"][0]["message"]["content"]
    assert [choice["finish_reason"] for choice in deltas if choice["finish_reason"]] == ["length"]
    assert deltas[0]["delta"]["role"] == "assistant"
    assert len({(chunk["id"], chunk["model"], chunk["created"]) for chunk in chunks}) == 1
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 40


async def test_usage_comes_only_when_asked_for(http: aiohttp.ClientSession) -> None:
    chunks = await stream_events(http, "/v1/completions", {"model": "tiny", "prompt": "ab", "max_tokens": 3})
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


async def test_cached_tokens_are_what_the_engine_reused(http: aiohttp.ClientSession) -> None:
    prompt = {"model": "tiny", "prompt": "x" * 100, "max_tokens": 1}
    _, _, _ = await post(http, "/cache/reset", b"")
    for cached in (0, 96):
        _, body, headers = await post(http, "/v1/completions", prompt)
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
        assert headers["x-ryokan-delivered-tokens"] == str(cached)
    assert (await post(http, "/cache/reset", b""))[0] == 200
    _, body, _ = await post(http, "/v1/completions", prompt)
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_token_ids_are_taken_as_they_are(http: aiohttp.ClientSession) -> None:
    text = {"model": "tiny", "prompt": "hello", "max_tokens": 8, "temperature": 0}
    ids = {"model": "tiny", "prompt_token_ids": None, "max_tokens": 8, "temperature": 0}
    _, by_text, _ = await post(http, "/v1/completions", text)
    _, by_list, _ = await post(http, "/v1/completions", text | {"prompt": by_text_ids("hello")})
    _, by_gateway, _ = await post(http, "/v1/completions", ids | {"prompt_token_ids": by_text_ids("hello")})
    assert by_text["choices"] == by_list["choices"] == by_gateway["choices"]


def by_text_ids(text: str) -> list[int]:
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [2 + alphabet.index(character) for character in text]


async def test_a_stop_string_never_reaches_the_client(http: aiohttp.ClientSession) -> None:
    body = CHAT | {"max_tokens": 60}
    _, whole, _ = await post(http, "/v1/chat/completions", body)
    text = whole["choices"][0]["message"]["content"]
    stop = text[5:8]
    chunks = await stream_events(http, "/v1/chat/completions", body | {"stop": stop})
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == text[: text.index(stop)]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_a_seed_repeats_an_answer(http: aiohttp.ClientSession) -> None:
    body = CHAT | {"temperature": 1.0, "max_tokens": 30, "seed": 11}
    answers = [(await post(http, "/v1/chat/completions", body))[1]["choices"] for _ in range(2)]
    other = (await post(http, "/v1/chat/completions", body | {"seed": 12}))[1]["choices"]
    assert answers[0] == answers[1] != other


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/chat/completions", b"{", 400, "invalid_json"),
        ("/v1/chat/completions", {"model": "tiny", "messages": []}, 400, "invalid_value"),
        ("/v1/chat/completions", CHAT | {"model": "other"}, 404, "model_not_found"),
        ("/v1/chat/completions", CHAT | {"max_tokens": CONTEXT}, 400, "context_length_exceeded"),
        ("/v1/completions", {"model": "tiny", "prompt": [VOCAB]}, 400, "invalid_value"),
        ("/v1/completions", {"model": "tiny", "prompt": [-1]}, 400, "invalid_value"),
        ("/v1/completions", {"model": "tiny", "prompt_token_ids": []}, 400, "invalid_value"),
        ("/v1/completions", {"model": "tiny", "prompt": "x" * 600}, 400, "context_length_exceeded"),
        ("/nowhere", b"", 404, None),
        ("/v1/models", b"", 405, None),
    ],
)
async def test_errors_have_openai_s_shape_also_before_a_stream(
    http: aiohttp.ClientSession, path: str, body: Any, status: int, code: str | None
) -> None:
    variants = [body, body | {"stream": True}] if isinstance(body, dict) else [body]
    for variant in variants:
        got, answer, _ = await post(http, path, variant)
        assert (got, answer["error"]["code"]) == (status, code)
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert answer["error"]["message"]


async def running(http: aiohttp.ClientSession) -> float:
    async with http.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(
        float(line.split()[1])
        for line in lines
        if line.startswith(("ryokan_replica_num_requests_running ", "ryokan_replica_num_requests_waiting "))
    )


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_is_aborted(http: aiohttp.ClientSession, streamed: bool) -> None:
    # On the tiny model 480 tokens take about a second, so many at once are still running when the client leaves.
    bodies = [CHAT | {"max_tokens": 480, "stream": streamed, "seed": n} for n in range(16)]

    async def ask(body: dict[str, Any]) -> None:
        async with http.post("/v1/chat/completions", json=body) as response:
            await response.read()

    tasks = [asyncio.create_task(ask(body)) for body in bodies]
    for _ in range(500):
        if await running(http) == 16:
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail("the requests never ran side by side")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with asyncio.timeout(5):
        while await running(http):
            await asyncio.sleep(0.02)
    assert (await post(http, "/cache/reset", b""))[0] == 200


async def test_a_timeline_is_kept_when_asked_for(http: aiohttp.ClientSession) -> None:
    await post(http, "/cache/reset", b"")
    body = {"model": "tiny", "prompt": "y" * 50, "max_tokens": 5, "ignore_eos": True}
    await post(http, "/v1/completions", body, **{"x-request-id": "traced-1", "x-ryokan-trace": "1"})
    async with http.get("/trace/traced-1") as response:
        trace = await response.json()
    events = trace["events"]
    assert [event["event"] for event in events] == ["queued", "scheduled", "prefill", "first_token", "done"]
    assert [event["at_s"] for event in events] == sorted(event["at_s"] for event in events)
    assert (events[2]["cached_tokens"], events[2]["computed_tokens"]) == (0, 50)
    # The last token sampled is never fed back, so it has no entry.
    assert [entries for _, entries in trace["kv"]] == [50, 51, 52, 53, 54]
    async with http.get("/trace/unknown") as response:
        assert response.status == 404


async def test_models_and_health(http: aiohttp.ClientSession) -> None:
    async with http.get("/v1/models") as response:
        models = await response.json()
    assert [(model["id"], model["max_model_len"]) for model in models["data"]] == [("tiny", CONTEXT)]
    for path in ("/health", "/ready"):
        async with http.get(path) as response:
            assert response.status == 200


async def test_draining_refuses_new_requests_and_finishes_old_ones(tiny_folder: Path, tmp_path: Path) -> None:
    process = Process(arguments(tiny_folder), tmp_path / "log")
    async with aiohttp.ClientSession(process.wait_for(r"ready on (http\S+)")) as http:
        body = CHAT | {"max_tokens": 400, "stream": True}
        async with http.post("/v1/chat/completions", json=body) as response:
            process.signal(signal.SIGINT)
            async with asyncio.timeout(5):
                while (await http.get("/ready")).status != 503:
                    await asyncio.sleep(0.01)
            status, answer, headers = await post(http, "/v1/chat/completions", CHAT)
            assert (status, answer["error"]["code"]) == (503, "replica_unavailable")
            assert headers["retry-after"]
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
    assert process.wait() == 0


def test_a_taken_port_ends_with_one_line(tiny_folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = run_command(*arguments(tiny_folder, "--port", str(port)))
    assert ended.returncode == 1
    assert ended.stderr.strip() == f"ryokan replica: cannot listen on 127.0.0.1:{port}: Address already in use"


def test_a_port_that_is_taken_while_weights_load_ends_with_one_line(tiny_folder: Path) -> None:
    with socket.socket() as rival:
        rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rival.bind(("127.0.0.1", 0))
        timer = threading.Timer(1.0, rival.listen)
        timer.start()
        ended = run_command(*arguments(tiny_folder, "--port", str(rival.getsockname()[1])))
        timer.join()
    assert ended.returncode == 1
    assert ended.stderr.count("cannot listen on") == len(ended.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--redis-url", "redis://127.0.0.1:1"], "Redis at redis://127.0.0.1:1"),
        (["--redis-url", "nonsense"], "redis_url"),
        (["--weights", "int3"], "weights"),
        (["--kv", "fp16"], "kv"),
        (["--kv-memory-gib", "0.000001"], "kv_memory"),
        (["--model", "/no/such/folder"], "/no/such/folder"),
    ],
)
def test_bad_settings_end_with_one_line(tiny_folder: Path, more: list[str], said: str) -> None:
    ended = run_command(*arguments(tiny_folder, *more))
    assert ended.returncode == 1
    assert len(ended.stderr.strip().splitlines()) == 1
    assert said in ended.stderr
