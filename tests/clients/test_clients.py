"""Clients that people use, each through a chat, a stream, a tool call, an error and an abort: a real gateway with a
replica of the tiny model."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.processes import Process, eventually
from tests.tool_model import TIME

MODEL = "tiny"
MESSAGES: Any = [{"role": "user", "content": "hello"}]
COMMON: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 12}
CHOICE: Any = {"type": "function", "function": {"name": "time"}}
JS = Path(__file__).parent / "js"
MIN_NODE = 20


@pytest.fixture(scope="module")
def url(tool_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    command = ["deploy.cli", "up", "--model", str(tool_folder), "--replicas", "1", "--port", "0"]
    process = Process([*command, "--kv-memory-gib", "0.05"], tmp_path_factory.mktemp("fleet") / "log")
    yield process.wait_for(r"gateway +(http\S+)")
    assert process.stop() == 0


@pytest.fixture
def sync_client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def expected(sync_client: openai.OpenAI) -> str:
    """The greedy answer, which every client must get."""
    return sync_client.chat.completions.create(**COMMON).choices[0].message.content or ""


def in_flight(url: str) -> float:
    page = curl(f"{url}/metrics")
    [line] = [line for line in page.splitlines() if line.startswith("ryokan_gateway_requests_in_flight ")]
    return float(line.split()[1])


def curl(*arguments: str, timeout_s: float = 120) -> str:
    done = subprocess.run(
        ["curl", "--silent", "--show-error", "--no-buffer", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=True,
    )
    return done.stdout


def test_the_synchronous_client(sync_client: openai.OpenAI, url: str, expected: str) -> None:
    chat = sync_client.chat.completions
    assert expected
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chat.create(**COMMON, stream=True)) == expected
    called = chat.create(**(COMMON | {"max_tokens": 100}), tools=[TIME], tool_choice=CHOICE)  # type: ignore[list-item]
    [call] = called.choices[0].message.tool_calls or []
    assert call.type == "function" and call.function.name == "time"
    with pytest.raises(openai.NotFoundError, match="nobody") as error:
        chat.create(**(COMMON | {"model": "nobody"}))
    assert error.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="context") as refused:
        chat.create(**(COMMON | {"max_tokens": 100_000}), stream=True)
    assert refused.value.code == "context_length_exceeded"
    with chat.create(**(COMMON | {"max_tokens": 400}), stream=True) as stream:
        next(iter(stream))
    eventually(lambda: in_flight(url) == 0)
    assert [model.id for model in sync_client.models.list()] == [MODEL]


async def test_the_asynchronous_client(client: openai.AsyncOpenAI, url: str, expected: str) -> None:
    stream = await client.chat.completions.create(**COMMON, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == expected
    async with client.chat.completions.with_streaming_response.create(
        **(COMMON | {"max_tokens": 400}), stream=True
    ) as response:
        async for _ in response.iter_lines():
            break
    await asyncio.to_thread(eventually, lambda: in_flight(url) == 0)


async def test_langchain(url: str, expected: str) -> None:
    langchain = pytest.importorskip("langchain_openai")
    model = langchain.ChatOpenAI(
        base_url=f"{url}/v1", api_key="none", model=MODEL, temperature=0, max_tokens=12, max_retries=0
    )
    assert model.invoke("hello").content == expected
    assert "".join([part.content async for part in model.astream("hello")]) == expected
    bound = model.bind_tools([TIME], tool_choice="time")
    [call] = bound.invoke("hello", max_tokens=100).tool_calls
    assert call["name"] == "time"
    with pytest.raises(openai.BadRequestError, match="context"):
        model.invoke("hello", max_tokens=100_000)
    await model.root_async_client.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl(url: str, expected: str, tmp_path: Path) -> None:
    chat, kind = f"{url}/v1/chat/completions", ("-H", "content-type: application/json")
    whole = json.loads(curl(chat, *kind, "-d", json.dumps(COMMON)))
    assert whole["choices"][0]["message"]["content"] == expected
    body = tmp_path / "body.json"
    # Over 1 KiB curl waits for "100 Continue" before it sends the body.
    body.write_text(json.dumps(COMMON | {"stream": True, "metadata": {"padding": "x" * 500_000}}))
    lines = curl(chat, *kind, "-H", "expect: 100-continue", "--data-binary", f"@{body}").splitlines()
    assert lines[-2:] == ["data: [DONE]", ""]
    deltas = [json.loads(line.removeprefix("data: "))["choices"][0]["delta"] for line in lines[:-2] if line]
    assert "".join(delta.get("content") or "" for delta in deltas) == expected
    answer = curl(chat, "-d", json.dumps(COMMON), "-w", "%{http_code}")
    assert answer.endswith("400") and json.loads(answer[:-3])["error"]["message"].startswith("content-type")
    with pytest.raises(subprocess.CalledProcessError) as timeout:
        curl(chat, *kind, "-d", json.dumps(COMMON | {"max_tokens": 400, "stream": True}), "--max-time", "0.1")
    assert timeout.value.returncode == 28
    eventually(lambda: in_flight(url) == 0)
    assert curl("--head", f"{url}/v1/models").startswith("HTTP/1.1 200")


def js_modules() -> Path:
    """Where the JavaScript client is installed, as the lock file says: in the user's cache, once."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("there is no node")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.lstrip("v").split(".")[0]) < MIN_NODE:
        pytest.skip(f"node {version.strip()} is too old")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ryokan" / "test-clients" / "js"
    cache.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", "chat.mjs"):
        shutil.copy(JS / name, cache / name)
    if not (cache / "node_modules" / "openai").is_dir():
        done = subprocess.run([npm, "ci", "--no-audit", "--no-fund"], cwd=cache, capture_output=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"npm can't install the client: {done.stderr.decode(errors='replace')[-300:]}")
    return cache


def test_the_javascript_client(url: str, expected: str) -> None:
    folder = js_modules()
    done = subprocess.run(
        ["node", "chat.mjs", url, MODEL], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["whole"] == found["streamed"] == expected and found["usage"] == 12
    assert found["call"] == "time" and found["models"] == [MODEL]
    assert (found["error"]["kind"], found["error"]["status"]) == ("NotFoundError", 404)
    assert found["error"]["code"] == "model_not_found" and "nobody" in found["error"]["message"]
    assert found["before_abort"] >= 3
    eventually(lambda: in_flight(url) == 0)
