"""What a gateway's memory does: with many streams open, with many quiet connections, after many distinct prompts."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from loadtest.gateway_bench.bindings import Job
from loadtest.gateway_bench.client import with_head
from loadtest.gateway_bench.cores import family, resident_mib
from loadtest.gateway_bench.errors import GatewayBenchError
from loadtest.gateway_bench.figures import Figures
from loadtest.gateway_bench.held_open import HeldOpen
from loadtest.gateway_bench.loads import body_of, distinct_bodies, prompt
from loadtest.gateway_bench.proxies import Proxy
from loadtest.gateway_bench.site import Bed

SPARE_DESCRIPTORS = 500
SCALE = 50_000
_PROMPT_BYTES = 4096
_BATCH = 5_000
_CONNECTIONS = 32
_LOAD_LIMIT_S = 600.0
_SLOW_GAP_S = 600.0
_QUIET_S = 1.0
"""For what is freed a little later."""
_AFTER_SHARE = 0.25
"""Of the distinct prompts, as many more: by then nothing may grow."""

Gateway = tuple[Proxy, int]
"""And its process."""


async def streams_memory(bed: Bed, gateway: Gateway, count: int, api_key: str | None) -> Figures:
    """GiB that SCALE slow streams would take, from `count`; and as many quiet connections."""
    proxy, pid = gateway
    await bed.control(gap_s=_SLOW_GAP_S, chunks=2)
    body = body_of(prompt(1024), stream=True).encode()
    stream = with_head(proxy.port, body, api_key)
    plain = f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{proxy.port}\r\n\r\n".encode()
    found = {"streams_measured": float(count)}
    for name, request, mark in (("idle", plain, b"HTTP/1.1 200"), ("streams", stream, b"@")):
        # A few first, so that what is made once isn't counted.
        async with HeldOpen(proxy.port, min(50, count), request, mark):
            pass
        before = await _resting(pid)
        async with HeldOpen(proxy.port, count, request, mark):
            mib = await _resting(pid) - before
        found[f"gib_per_50k_{name}"] = mib / 1024 * SCALE / count
    await bed.control()
    return found


async def distinct_memory(bed: Bed, gateway: Gateway, count: int, rng: Random, say: Callable[[str], None]) -> Figures:
    """MiB by which it grows over `count` distinct prompts of 4 KB, after it has served as many as it needs to be warm;
    and over a quarter more."""
    _, pid = gateway
    await bed.control()
    same = [body_of(prompt(_PROMPT_BYTES), stream=False)]
    await _send(bed, gateway, same, min(count, 4000))
    sizes = [await _resting(pid)]
    for target in (count, round(count * _AFTER_SHARE)):
        for start in range(0, target, _BATCH):
            batch = min(_BATCH, target - start)
            await _send(bed, gateway, distinct_bodies(batch, _PROMPT_BYTES, rng), batch)
            say(f"{start + batch}/{target} distinct prompts: {await _resting(pid) - sizes[0]:+.0f} MiB")
        sizes.append(await _resting(pid))
    return {
        "distinct_prompts_growth_mib": sizes[1] - sizes[0],
        "distinct_prompts_growth_after_mib": sizes[2] - sizes[1],
        "distinct_prompts_measured": float(count),
    }


async def _send(bed: Bed, gateway: Gateway, bodies: list[str], requests: int) -> None:
    job = Job(gateway[0].port, _CONNECTIONS, _LOAD_LIMIT_S, _LOAD_LIMIT_S, requests)
    done = await bed.load(job, bodies)
    if done.failed or done.answered != requests:
        raise GatewayBenchError(f"{gateway[0].name}: {done.answered} of {requests} answered, {done.failed} failed")


async def _resting(pid: int) -> float:
    await asyncio.sleep(_QUIET_S)
    return resident_mib(family(pid))


Measure = Callable[[Gateway], Awaitable[Figures]]
