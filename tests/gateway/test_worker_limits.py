"""Limits of keys where several workers serve: they are of all together. Real processes."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web

from tests.gateway.fakes import chat_body, serving
from tests.gateway.test_keys import ALICE, bearer, write_keys
from tests.gateway.test_probes import OpenAIServer
from tests.processes import Process

WORKERS = 3
LIMIT = 8
CONNECTIONS = 16
"""New ones, which the kernel deals out to all workers."""


class Site:
    def __init__(self, url: str, process: Process) -> None:
        self.url, self.process = url, process

    @property
    def workers(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(child) for child in children.split()]

    async def ask(self) -> int:
        """On a connection of its own. 0: it was cut off."""
        try:
            async with (
                aiohttp.ClientSession(headers=bearer(ALICE)) as http,
                http.post(f"{self.url}/v1/chat/completions", json=chat_body()) as answer,
            ):
                await answer.read()
                return answer.status
        except aiohttp.ClientError:
            return 0


@asynccontextmanager
async def site(folder: Path, model: Path, server: OpenAIServer, limit: str) -> AsyncIterator[Site]:
    keys = write_keys(folder / "keys.toml", f"[tenants.alice]\n{limit}\n")
    async with serving(server.app()) as upstream:
        flags = ["--tokenizer", str(model), "--served-model-name", "tiny", "--upstream", upstream, "--port", "0"]
        flags += ["--workers", str(WORKERS), "--keys-file", str(keys), "--probe-interval", "0.1"]
        process = Process(["gateway", *flags], folder / "log")
        try:
            yield Site(await asyncio.to_thread(process.wait_for, r"gateway ready on (http\S+)"), process)
        finally:
            await asyncio.to_thread(process.stop)


async def full(at: Site, server: OpenAIServer) -> "list[asyncio.Task[int]]":
    """Asks on new connections until all are refused; those that were let in, answered or not."""
    let_in: list[asyncio.Task[int]] = []
    async with asyncio.timeout(60):
        refused = 0
        while refused < CONNECTIONS:
            asked, task = len(server.requests), asyncio.create_task(at.ask())
            while not task.done() and len(server.requests) == asked:
                await asyncio.sleep(0.01)
            if task.done() and task.result() == 429:
                refused += 1
                continue
            refused = 0
            let_in.append(task)
            # For workers to hear of it.
            await asyncio.sleep(0.1)
    return let_in


async def test_a_minute_s_worth_is_for_all_workers_together(model_folder: Path, tmp_path: Path) -> None:
    began, server = time.monotonic(), OpenAIServer()
    async with site(tmp_path, model_folder, server, "requests_per_minute = 30") as made:
        let_in = await full(made, server)
        refilled = (time.monotonic() - began) / 2
        assert {await task for task in let_in} == {200}
        # Each by itself would let in 90; one that is slow to hear lets in a few too many.
        assert 30 <= len(let_in) < 45 + refilled


async def test_what_runs_is_counted_by_all_and_of_a_worker_that_dies_no_more(
    model_folder: Path, tmp_path: Path
) -> None:
    server, gate = OpenAIServer(), asyncio.Event()

    async def waits(request: web.Request) -> web.StreamResponse:
        await gate.wait()
        return web.json_response({"object": "chat.completion", "choices": []})

    server.answer = waits
    async with site(tmp_path, model_folder, server, f"concurrent_requests = {LIMIT}") as made:
        running = await full(made, server)
        assert LIMIT <= len(running) < 2 * LIMIT
        for worker in made.workers:
            os.kill(worker, signal.SIGKILL)
            await asyncio.sleep(0.5)
            if any(task.done() for task in running):
                break
        left = [task for task in running if not task.done()]
        assert len(left) < len(running)
        left += await full(made, server)
        assert LIMIT <= len(left) < 2 * LIMIT
        gate.set()
        assert {await task for task in left} == {200}
