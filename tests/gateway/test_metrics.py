"""The gateway's exposition: names, types and buckets, and that clients can't make it grow."""

import asyncio
import random
from pathlib import Path

import pytest

from gateway.config import GatewayConfig, Timeouts
from replica.protocol import buckets
from tests.gateway.fakes import Stack, answers
from tests.gateway.stack import fleet
from tests.metric_pages import Page, parse

ODD_REQUESTS = 10_000
CONNECTIONS = 20

HISTOGRAMS = {
    "time_to_first_token_seconds": buckets.TTFT,
    "e2e_request_latency_seconds": buckets.REQUEST,
    "request_queue_time_seconds": buckets.REQUEST,
    "request_time_per_output_token_seconds": buckets.ITL,
}
COUNTERS = ("requests", "prompt_tokens", "generation_tokens", "admission_rejections", "decisions", "retries")
GAUGES = ("replicas", "requests_in_flight", "redis_up", "trust", "index_blocks")


@pytest.fixture
def config(model_folder: Path, redis_url: str) -> GatewayConfig:
    return GatewayConfig(model=model_folder, redis_url=redis_url, timeouts=Timeouts(queue_s=2), policy="round_robin")


async def page(stack: Stack) -> Page:
    async with stack.http.get(f"{stack.url}/metrics") as response:
        assert response.content_type == "text/plain"
        return parse(await response.text())


async def test_names_types_and_buckets(config: GatewayConfig) -> None:
    async with fleet(config, answers) as stack:
        for stream in (True, False):
            await (await stack.chat(stream=stream)).read()
        found = await page(stack)
    for name, bounds in HISTOGRAMS.items():
        full = f"ryokan_gateway_{name}"
        assert found.types[full] == "histogram"
        # The fake's answers tell no tokens, so there is no time between them.
        assert name == "request_time_per_output_token_seconds" or found.buckets[full] == bounds, name
    assert all(found.types[f"ryokan_gateway_{name}"] == "counter" for name in COUNTERS)
    assert all(found.types[f"ryokan_gateway_{name}"] == "gauge" for name in GAUGES)
    assert {name.split("_")[0] for name in found.types} == {"ryokan"}


async def test_ten_thousand_odd_requests_add_no_series(config: GatewayConfig, seed: int) -> None:
    """Unknown paths, methods, models, tenants, sessions and ids: none becomes a label. The series that count what
    happens of itself, as the gateway's exchange with others, are there after the first few hundred."""
    numbers = random.Random(seed)
    async with fleet(config, answers) as stack:
        await (await stack.chat()).read()
        await send(stack, [data for _ in range(60) for data in samples(numbers)])
        await asyncio.sleep(0.5)
        await page(stack)
        before = await page(stack)
        each = ODD_REQUESTS // CONNECTIONS
        await asyncio.gather(
            *(send(stack, [numbers.choice(samples(numbers)) for _ in range(each)]) for _ in range(CONNECTIONS))
        )
        after = await page(stack)
    assert after.series - before.series == frozenset()
    assert "unmatched" in {value for _, labels in after.series for name, value in labels if name == "endpoint"}


def samples(numbers: random.Random) -> list[bytes]:
    """One of each kind, with a new oddity in it."""
    odd = f"{numbers.getrandbits(64):x}"
    extra = f"x-session-id: {odd}\r\nx-request-id: {odd}\r\nauthorization: Bearer {odd}\r\n".encode()
    chat = f'{{"model": "{odd}", "messages": [{{"role": "user", "content": "x"}}]}}'.encode()
    good = f'{{"model": "tiny", "user": "{odd}", "prompt": "{odd}"}}'.encode()
    return [
        request(b"GET", f"/{odd}".encode(), b"", extra),
        request(b"GET", f"/v1/models/{odd}".encode(), b"", extra),
        request(b"GET", f"/trace/{odd}?{odd}".encode(), b"", extra),
        request(b"POST", b"/v1/chat/completions", chat, extra),
        request(b"POST", f"/v1/{odd}".encode(), chat, extra),
        request(b"DELETE", b"/v1/chat/completions", b"", extra),
        request(b"POST", b"/v1/completions", good, extra),
        request(b"POST", b"/v1/completions", odd.encode(), extra),
    ]


def request(method: bytes, path: bytes, body: bytes, extra: bytes) -> bytes:
    about = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body) if body else b""
    return b"%s %s HTTP/1.1\r\nhost: x\r\n%s%s\r\n%s" % (method, path, extra, about, body)


async def send(stack: Stack, requests: list[bytes]) -> None:
    """Each after the answer of the one before, over as few connections as the gateway lets it."""
    host, _, port = stack.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for data in requests:
        if writer.is_closing():
            reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
        if b"connection: close" in head:
            writer.close()
            await writer.wait_closed()
    writer.close()
    await writer.wait_closed()
