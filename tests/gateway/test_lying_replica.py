"""Replicas whose digest and cache disagree, through a whole gateway: what is predicted, and what comes of it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.config import GatewayConfig
from gateway.keys import POOLS
from replica.protocol import headers
from replica.protocol.hashing import block_hashes, namespace_hash
from replica.protocol.text import ModelText
from tests.gateway.fakes import FakeReplica, Publisher, Stack, eventually, gateway, publisher_for

TEXT = "Is there a ramp at the hotel by the river? " * 20


@dataclass
class Lab:
    """One replica, whose digest and whose cache are what a test says."""

    stack: Stack
    publisher: Publisher
    replica: FakeReplica
    text: ModelText
    delivered: int = 0
    in_comment: bool = False
    """Told at the stream's end, as adopted engines do."""
    future: float = 1e6

    async def answer(self, replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        told = {} if self.in_comment else {headers.DELIVERED_TOKENS: str(self.delivered)}
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"} | told)
        await response.prepare(request)
        await response.write(b'data: {"choices": []}\n\n')
        comment = headers.DELIVERED_COMMENT + b"%d\n" % self.delivered if self.in_comment else b""
        await response.write(comment + b"data: [DONE]\n\n")
        return response

    async def ask(self) -> dict[str, Any]:
        """The decision, explained."""
        async with await self.stack.chat(TEXT, stream=True) as response:
            assert response.status == 200
            assert (await response.read()) == b'data: {"choices": []}\n\ndata: [DONE]\n\n'
            request_id = response.headers["x-request-id"]
        async with self.stack.http.get(f"{self.stack.url}/route/explain/{request_id}") as response:
            value: dict[str, Any] = await response.json()
            return value

    async def credit(self) -> float:
        """Without what is expected of the requests before."""
        self.forget_expected()
        [row] = (await self.ask())["candidates"]
        return float(row["cached_tokens"])

    def forget_expected(self) -> None:
        self.future += 1e6
        self.stack.app[POOLS].first.index.expire(self.future)

    async def until(self, check: Callable[[float], bool]) -> int:
        """How many requests until the credit is such."""
        for count in range(1, 21):
            if check(await self.credit()):
                return count
        raise AssertionError("not within 20 requests")

    async def row(self) -> dict[str, Any]:
        async with self.stack.http.get(f"{self.stack.url}/replicas") as response:
            [row] = await response.json()
            return dict(row)

    async def hold(self, count: int | None = None) -> int:
        """The digest says that the cache has so many blocks of the prompt, or all; how many tokens that makes."""
        await self.ask()
        prompt = self.replica.requests[-1]["prompt_token_ids"]
        space = namespace_hash(model=self.text.model_fingerprint, tokenizer=self.text.tokenizer_fingerprint)
        hashes = block_hashes(prompt[:-1], space)[:count]
        await self.publisher.change(hashes)
        index = self.stack.app[POOLS].first.index
        await eventually(lambda: index.position("r1") is not None and index.blocks("r1") == len(hashes))
        return 16 * len(hashes)


@pytest.fixture
async def lab(model_folder: Path, redis_url: str) -> AsyncIterator[Lab]:
    async with _lab(GatewayConfig(model=model_folder, redis_url=redis_url, policy="ttft")) as made:
        yield made


@asynccontextmanager
async def _lab(config: GatewayConfig) -> AsyncIterator[Lab]:
    async def behave(replica: FakeReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await made.answer(replica, request, body)

    async with gateway(config) as stack, FakeReplica("r1", behave).serving() as replica:
        publisher = publisher_for(stack.redis, replica, config.model)
        made = Lab(stack, publisher, replica, ModelText.load(config.model))
        async with publisher.serving():
            await eventually(lambda: stack.app[POOLS].first.index.position("r1") is not None)
            yield made


@pytest.mark.parametrize("in_comment", [False, True])
async def test_a_cache_that_gives_less_than_its_digest_promises(lab: Lab, in_comment: bool) -> None:
    lab.in_comment = in_comment
    held = await lab.hold()
    lab.delivered = held
    for _ in range(20):
        assert await lab.credit() == held
    lab.delivered = 0
    lied = await lab.until(lambda credit: credit <= held / 2)
    assert (await lab.row())["trust"] < 0.5
    for _ in range(20):
        await lab.ask()
    lab.delivered = held
    recovered = await lab.until(lambda credit: credit >= 0.9 * held)
    print("requests until half the credit is gone", lied, "and until nine tenths are back", recovered)
    async with lab.stack.http.get(f"{lab.stack.url}/metrics") as response:
        page = await response.text()
    assert 'ryokan_gateway_trust{replica="r1"} 0.9' in page
    assert 'mispredicted_cached_tokens_total{kind="promised"}' in page


@pytest.mark.parametrize("in_comment", [False, True])
async def test_a_cache_that_gives_more_than_its_digest_tells(lab: Lab, in_comment: bool) -> None:
    lab.in_comment = in_comment
    held = await lab.hold(4)
    possible = (len(lab.replica.requests[-1]["prompt_token_ids"]) - 1) // 16 * 16

    lab.delivered = held
    assert await lab.credit() == held
    lab.delivered = possible
    behind = await lab.until(lambda credit: credit >= held + (possible - held) / 2)
    for _ in range(20):
        assert await lab.credit() <= possible
    lab.delivered = held
    caught_up = await lab.until(lambda credit: credit <= held + (possible - held) / 2)
    print("requests until half of the rest is credited", behind, "and until it isn't any more", caught_up)


async def test_an_impossible_claim_says_nothing(lab: Lab) -> None:
    held = await lab.hold()
    lab.delivered = 10**9
    explained = await lab.ask()
    assert explained["delivered_cached_tokens"] is None
    assert explained["predicted_held_tokens"] == held
    row = await lab.row()
    assert (row["trust"], row["unpromised"]) == (1.0, 0.0)


async def test_what_the_gateway_expected_in_vain_is_not_held_against_the_replica(lab: Lab) -> None:
    for _ in range(10):
        await lab.ask()
    explained = await lab.ask()
    assert explained["predicted_cached_tokens"] > 0
    assert explained["predicted_held_tokens"] == explained["delivered_cached_tokens"] == 0
    assert (await lab.row())["trust"] == 1.0
