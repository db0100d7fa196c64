"""What a slow, silent or missing Redis costs requests: gateways side by side, each with a network of its own to one
Redis, and one replica that answers at once. They take requests in turns, so all see the same noise.
"""

import asyncio
import re
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from redis.asyncio import Redis

from loadtest.index_bench.tcp_proxy import Network, TcpProxy
from replica.protocol import headers
from replica.protocol.canary import fingerprints
from replica.protocol.hashing import BLOCK_SIZE, HASH_VERSION
from replica.protocol.records import (
    HEARTBEAT_PERIOD_S,
    HEARTBEAT_TTL_S,
    CostModel,
    Delta,
    Heartbeat,
    Keys,
    ReplicaState,
    Snapshot,
    xor_root,
)
from replica.protocol.text import ModelText

MODEL = "bench"
FLEET = "slow-redis"
EPOCH = "e"
REPLICA = "r0"
DELTA_BLOCKS = 64
DELTA_PERIOD_S = 0.05
START_LIMIT_S = 120.0
WORDS = "Is there a ramp at the hotel by the river, and how wide is the lift? " * 20


class GatewayFailed(Exception):
    """A gateway didn't start, or failed a request."""


async def measure_slow_redis(redis_url: str, model: Path, rounds: int, requests: int) -> dict[str, float]:
    """Milliseconds that the 99th percentile of requests takes longer; of each network `requests` a round. Raises
    GatewayFailed, also for a request that isn't answered."""
    place = urlsplit(redis_url)
    assert place.hostname is not None and place.port is not None
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(_replica_server())
        redis: Any = Redis.from_url(redis_url)
        stack.push_async_callback(redis.aclose)
        await stack.enter_async_context(_publishing(redis, model, url))
        proxies, gateways = {}, {}
        for network in Network:
            proxies[network] = await stack.enter_async_context(TcpProxy(place.hostname, place.port).running())
            gateways[network] = await stack.enter_async_context(_gateway(model, proxies[network].port))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await asyncio.gather(*(_until_ready(session, gateway) for gateway in gateways.values()))
        for gateway in gateways.values():
            await _request(session, gateway, 0)
        for network, proxy in proxies.items():
            proxy.become(network)
        found = [await _round(session, gateways, number, requests) for number in range(rounds)]
    return _figures(found)


def _figures(rounds: Sequence[dict[Network, float]]) -> dict[str, float]:
    """From the 99th percentiles of each round."""

    def added_ms(network: Network) -> float:
        return statistics.median(p99[network] - p99[Network.GOOD] for p99 in rounds) * 1e3

    return {
        "slow_redis_added_p99_ms": added_ms(Network.SLOW),
        "no_redis_added_p99_ms": max(added_ms(Network.HOLE), added_ms(Network.GONE)),
        "good_redis_p99_ms": statistics.median(p99[Network.GOOD] for p99 in rounds) * 1e3,
    }


async def _round(
    session: aiohttp.ClientSession, gateways: dict[Network, str], number: int, requests: int
) -> dict[Network, float]:
    seconds: dict[Network, list[float]] = {network: [] for network in gateways}
    rng = Random(number)
    for turn in range(requests):
        for network in rng.sample(list(gateways), len(gateways)):
            started = time.perf_counter()
            await _request(session, gateways[network], number * requests + turn)
            seconds[network].append(time.perf_counter() - started)
    return {network: statistics.quantiles(found, n=100)[98] for network, found in seconds.items()}


async def _request(session: aiohttp.ClientSession, gateway: str, number: int) -> None:
    body = {"model": MODEL, "prompt": f"{WORDS}Question {number}.", "max_tokens": 1}
    async with session.post(f"{gateway}/v1/completions", json=body) as response:
        if response.status != 200:
            raise GatewayFailed(f"a request was answered with {response.status}: {(await response.text())[:200]}")
        await response.read()


async def _until_ready(session: aiohttp.ClientSession, gateway: str) -> None:
    async with asyncio.timeout(START_LIMIT_S):
        while True:
            async with session.get(f"{gateway}/ready") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.05)


@asynccontextmanager
async def _gateway(model: Path, redis_port: int) -> AsyncIterator[str]:
    """A process of its own; its URL."""
    flags = {
        "--model": str(model),
        "--served-model-name": MODEL,
        "--redis-url": f"redis://127.0.0.1:{redis_port}",
        "--fleet": FLEET,
        "--port": "0",
        "--log-level": "error",
    }
    command = [sys.executable, "-u", "-m", "gateway", *(part for flag in flags.items() for part in flag)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield await _ready_url(process.stdout)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def _ready_url(output: asyncio.StreamReader) -> str:
    async with asyncio.timeout(START_LIMIT_S):
        while line := await output.readline():
            if found := re.search(rb"gateway ready on (http\S+)", line):
                return found.group(1).decode()
    raise GatewayFailed("a gateway didn't start; see above")


@asynccontextmanager
async def _replica_server() -> AsyncIterator[str]:
    """Answers at once."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        choice = {"index": 0, "text": "Yes.", "finish_reason": "stop"}
        value = {"object": "text_completion", "choices": [choice]}
        return web.json_response(value, headers={headers.DELIVERED_TOKENS: "0"})

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _publishing(redis: Any, model: Path, url: str) -> AsyncIterator[None]:
    """A replica's heartbeats and deltas, so that gateways have something to read."""
    keys = Keys(FLEET)
    beat = Heartbeat(
        replica=REPLICA,
        url=url,
        state=ReplicaState.READY,
        model=MODEL,
        **fingerprints(ModelText.load(model, MODEL)),
        hash_version=HASH_VERSION,
        block_size=BLOCK_SIZE,
        max_context=8192,
        epoch=EPOCH,
        cost=CostModel(0.005, 2e-4, 1e-8, 1e-4, 512),
    )
    await redis.set(keys.snapshot(REPLICA), Snapshot(EPOCH, 0, "0-0", ()).encode())
    await redis.sadd(keys.replicas, REPLICA)
    task = asyncio.create_task(_publish(redis, keys, beat))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _publish(redis: Any, keys: Keys, beat: Heartbeat) -> None:
    rng, seq = Random(1), 0
    last: tuple[int, ...] = ()
    each = round(HEARTBEAT_PERIOD_S / DELTA_PERIOD_S)
    while True:
        if seq % each == 0:
            record = replace(beat, seq=seq, beats=seq + 1)
            await redis.set(keys.heartbeat(REPLICA), record.encode(), px=round(HEARTBEAT_TTL_S * 1000))
        seq += 1
        added = tuple(rng.getrandbits(64) for _ in range(DELTA_BLOCKS))
        delta = Delta(REPLICA, EPOCH, seq, added, last, len(added), xor_root(added))
        await redis.xadd(keys.stream, delta.encode(), maxlen=10_000, approximate=True)
        last = added
        await asyncio.sleep(DELTA_PERIOD_S)
