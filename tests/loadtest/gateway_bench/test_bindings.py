"""The mock and the client against each other, and against others."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from loadtest.gateway_bench.bindings import Job, run_load
from loadtest.gateway_bench.client import with_head
from loadtest.gateway_bench.errors import GatewayBenchError
from loadtest.gateway_bench.held_open import HeldOpen
from loadtest.gateway_bench.loads import LOADS, body_of, prompt
from loadtest.peers.processes import Child, free_port


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    port = free_port()
    child = Child("mock", [sys.executable, "-m", "loadtest.gateway_bench.mock", str(port)], tmp_path / "log")
    try:
        async with asyncio.timeout(60):
            while True:
                child.check()
                try:
                    await control(port)
                    break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)
        yield port
    finally:
        child.stop()


async def control(port: int, flags: str = "") -> dict[str, int]:
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/control?{flags}") as answer:
        counters: dict[str, int] = await answer.json()
        return counters


def request(port: int, stream: bool) -> bytes:
    return with_head(port, body_of(prompt(1024), stream=stream).encode())


def test_prompts_have_the_size_they_should() -> None:
    assert {len(prompt(load.prompt_bytes)) for load in LOADS.values()} == {1024, 8192}


async def test_plain_requests_up_to_a_number(port: int) -> None:
    done = run_load(Job(port, 8, seconds=30, limit_s=30, requests=100), [request(port, stream=False)])
    assert (done.answered, done.failed, done.chunks, len(done.firsts_s)) == (100, 0, 0, 100)
    assert 0 < min(done.firsts_s) <= max(done.firsts_s) < done.seconds + 1
    assert (await control(port))["requests"] == 100


@pytest.mark.parametrize("gap_us", [0, 1000])
async def test_streams_for_a_time(port: int, gap_us: int) -> None:
    await control(port, f"gap_us={gap_us}&chunks=5")
    done = run_load(Job(port, 4, seconds=0.2, limit_s=20, stagger_s=0.001, chunks=5), [request(port, stream=True)])
    assert done.answered >= 4 and done.failed == 0
    assert done.chunks == 5 * done.answered
    assert await control(port) | {"connections": 0} == {
        "requests": done.answered,
        "streams": done.answered,
        "finished": done.answered,
        "cut": 0,
        "live": 0,
        "connections": 0,
    }


async def test_answers_that_are_not_as_they_should_be_have_failed(port: int) -> None:
    await control(port, "chunks=3")
    short = run_load(Job(port, 2, seconds=10, limit_s=10, requests=6, chunks=5), [request(port, stream=True)])
    assert (short.answered, short.failed) == (0, 6)
    refused = run_load(Job(port, 1, seconds=10, limit_s=10, requests=2), [with_head(port, b"no JSON")])
    assert (refused.answered, refused.failed) == (0, 2)
    await control(port, "gap_us=5000000")
    late = run_load(Job(port, 1, seconds=0.05, limit_s=0.2, requests=1, chunks=3), [request(port, stream=True)])
    assert (late.answered, late.failed) == (0, 1)


async def test_a_server_that_closes_is_a_failure() -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    job = Job(port, 1, seconds=10, limit_s=10, requests=3)
    done = await asyncio.to_thread(run_load, job, [request(port, stream=False)])
    assert (done.answered, done.failed) == (0, 3)
    server.close()
    with pytest.raises(GatewayBenchError, match="0 of 1"):
        async with HeldOpen(port, 1, request(port, stream=True), b"@"):
            pass


async def test_another_client_understands_the_mock(port: int) -> None:
    await control(port, "chunks=2&delivered=48")
    url = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession() as http:
        answer = await http.post(f"{url}/v1/chat/completions", data=body_of("Hello?", stream=False))
        assert (await answer.json())["choices"][0]["finish_reason"] == "stop"
        answer = await http.post(f"{url}/v1/chat/completions", data=body_of("Hello?", stream=True))
        assert answer.headers["x-ryokan-delivered-tokens"] == "48"
        text = await answer.text()
        assert text.count("@") == 2 and text.endswith("data: [DONE]\n\n")
        assert (await (await http.get(f"{url}/v1/models")).json())["data"][0]["id"] == "mock"
        assert (await http.get(f"{url}/nowhere")).status == 404


async def test_streams_are_held_open_and_then_closed(port: int) -> None:
    await control(port, "gap_us=60000000&chunks=2")
    async with HeldOpen(port, 20, request(port, stream=True), b"@"):
        assert (await control(port))["live"] == 20
    async with asyncio.timeout(10):
        while (await control(port))["live"]:
            await asyncio.sleep(0.02)
    assert (await control(port))["cut"] == 20
