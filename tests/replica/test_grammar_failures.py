"""A grammar that becomes too much on the way: the server in this process, on a real engine."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from replica.admission import QueueLimits
from replica.cache.manager import CacheEvents, CacheManager
from replica.grammar import GrammarCompiler, GrammarSpec
from replica.metrics import ReplicaMetrics
from replica.protocol.text import ModelText
from replica.sequence import ConstraintError, TokenConstraint
from replica.server import make_app
from replica.serving import Serving
from replica.trace import TraceLog
from replica.worker import EngineWorker
from tests.engines import make_engine

BODY = {"model": "tiny", "prompt": "x", "regex": "a+", "max_tokens": 50}


class FailsAfter(GrammarCompiler):
    """Allows every token, and gives up at the third."""

    def compile(self, spec: GrammarSpec) -> TokenConstraint:
        return _Constraint()


class _Constraint:
    is_finished = False

    def __init__(self) -> None:
        self._accepted = 0

    def bitmask(self) -> bytes:
        return b"\xfc" + b"\xff" * 37

    def accept(self, token: int) -> None:
        self._accepted += 1
        if self._accepted == 3:
            raise ConstraintError("too complex")


class Nobody:
    def cache_changed(self, events: CacheEvents) -> None: ...
    def cache_replaced(self) -> None: ...


@pytest.fixture
async def serving(tiny_folder: Path, tiny_text: ModelText) -> AsyncIterator[Serving]:
    worker = EngineWorker(
        make_engine(tiny_folder),
        lambda: CacheManager(64),
        Nobody(),
        lambda step: None,
        asyncio.get_running_loop(),
        time.monotonic,
    )
    serving = Serving(tiny_text, worker, ReplicaMetrics(), TraceLog(time.monotonic), "r", 512, QueueLimits(100))
    serving.grammars = FailsAfter(tiny_text)
    worker.start()
    yield serving
    await worker.stop()


@pytest.fixture
async def http(serving: Serving) -> AsyncIterator[aiohttp.ClientSession]:
    runner = web.AppRunner(make_app(serving), handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{site.port}") as session:
        yield session
    await runner.cleanup()


async def test_a_whole_answer_becomes_a_400(http: aiohttp.ClientSession, serving: Serving) -> None:
    async with http.post("/v1/completions", json=BODY | {"n": 2}) as response:
        assert response.status == 400
        assert (await response.json())["error"]["code"] == "grammar_failed"
    await serving.worker.wait_idle()
    async with http.post("/cache/reset") as response:
        assert response.status == 200


async def test_a_stream_ends_in_an_error_event(http: aiohttp.ClientSession, serving: Serving) -> None:
    async with http.post("/v1/completions", json=BODY | {"stream": True}) as response:
        text = await response.text()
    assert "grammar_failed" in text
    # The first three tokens may all be there before the answer begins: then it is a 400.
    assert response.status == 400 or text.endswith("}\n\ndata: [DONE]\n\n")
    assert '"finish_reason":"' not in text
    await serving.worker.wait_idle()
