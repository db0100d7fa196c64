"""The real thing from the outside: `ryokan up` with the real model, the official client, replicas that come and go."""

import asyncio
import json
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from loadtest.workload import travel_workload
from replica.model.source import DEFAULT_MODEL
from replica.protocol.text import ModelText
from tests.processes import Process

pytestmark = pytest.mark.model

KV_GIB = "0.3"
QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]


@dataclass(frozen=True)
class Fleet:
    process: Process
    url: str
    redis_url: str


@pytest.fixture(scope="module")
def fleet(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    log = tmp_path_factory.mktemp("fleet") / "log"
    process = Process(["deploy.cli", "up", "--replicas", "2", "--port", "0", "--kv-memory-gib", KV_GIB], log)
    url = process.wait_for(r"gateway +(http\S+)")
    yield Fleet(process, url, process.wait_for(r"Redis +(\S+)"))
    process.signal(signal.SIGTERM)
    assert process.wait() == 0


@pytest.fixture
async def http(fleet: Fleet) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(fleet.url) as session:
        yield session


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def replicas(http: aiohttp.ClientSession) -> dict[str, Any]:
    """Those that requests may go to."""
    async with http.get("/replicas") as response:
        return {row["id"]: row for row in await response.json() if row["state"] == "ready"}


async def until(check: Any, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not await check():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.02)


async def reset_caches(http: aiohttp.ClientSession) -> None:
    for row in (await replicas(http)).values():
        async with http.post(f"{row['url']}/cache/reset") as response:
            assert response.status == 200

    async def empty() -> bool:
        rows = (await replicas(http)).values()
        return all(row["synced"] and row["indexed_blocks"] == 0 for row in rows)

    await until(empty, 30)


def test_the_printed_curl_line_works(fleet: Fleet) -> None:
    line = re.search(r"( curl .*?\}\]\}')", fleet.process.said, re.DOTALL)
    assert line is not None
    answer = subprocess.run(["bash", "-c", line.group(1)], capture_output=True, text=True, check=True).stdout
    assert '"object":"chat.completion"' in answer


async def test_the_official_client(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [DEFAULT_MODEL]
    answer = await client.chat.completions.create(
        model=DEFAULT_MODEL, messages=QUESTION, temperature=0, max_tokens=20, top_p=0.9, seed=1, stop=["\n"]
    )
    assert answer.choices[0].message.content
    assert "\n" not in answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 20
    completion = await client.completions.create(
        model=DEFAULT_MODEL, prompt="The capital of Italy is", temperature=0, max_tokens=1
    )
    assert completion.choices[0].text == " Rome"
    assert completion.choices[0].finish_reason == "length"


async def test_streams_with_the_official_client(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model=DEFAULT_MODEL, messages=QUESTION, temperature=0, max_tokens=30)
    stream = await client.chat.completions.create(
        model=DEFAULT_MODEL,
        messages=QUESTION,
        temperature=0,
        max_tokens=30,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    plain = await client.completions.create(model=DEFAULT_MODEL, prompt="One, two,", max_tokens=5, stream=True)
    assert len([chunk async for chunk in plain]) >= 2


async def test_errors_reach_the_official_client(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="other"):
        await client.chat.completions.create(model="other", messages=QUESTION)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        await client.chat.completions.create(model=DEFAULT_MODEL, messages=QUESTION, temperature=9)
    with pytest.raises(openai.BadRequestError, match="100000"):
        await client.chat.completions.create(model=DEFAULT_MODEL, messages=QUESTION, max_tokens=100_000, stream=True)


async def test_a_repeated_prompt_goes_where_its_blocks_are(
    http: aiohttp.ClientSession, client: openai.AsyncOpenAI
) -> None:
    await reset_caches(http)
    messages: Any = [{"role": "system", "content": "Answer briefly. " * 40}, *QUESTION]
    seen = []
    prompt_tokens = 0
    for _ in range(4):
        raw = await client.chat.completions.with_raw_response.create(
            model=DEFAULT_MODEL, messages=messages, max_tokens=4, temperature=0
        )
        usage = raw.parse().usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        prompt_tokens = usage.prompt_tokens
        predicted = int(raw.headers["x-ryokan-cached-tokens"])
        assert raw.headers["x-ryokan-policy"] == "ttft"
        seen.append((raw.headers["x-ryokan-replica"], predicted, usage.prompt_tokens_details.cached_tokens))
    assert len({replica for replica, _, _ in seen}) == 1
    whole_blocks = (prompt_tokens - 1) // 16 * 16
    assert [delivered for _, _, delivered in seen] == [0, whole_blocks, whole_blocks, whole_blocks]
    assert [predicted for _, predicted, _ in seen] == [delivered for _, _, delivered in seen]


async def test_first_turns_at_once_spread_and_stay_together(
    http: aiohttp.ClientSession, client: openai.AsyncOpenAI, model_text: ModelText, fleet: Fleet, tmp_path: Path
) -> None:
    """On four cold replicas, whose speeds differ by how they happen to share cores, at times several-fold:
    none computes nearly all of it alone, and most of what is shared is computed once."""
    more = [Process(_replica_command(fleet, f"burst-{n}"), tmp_path / f"log-{n}") for n in range(2)]
    try:
        for process in more:
            process.wait_for(r"(ready) on")
        await until(lambda: _count_is(http, 4), 30)
        await reset_caches(http)
        workload = travel_workload(model_text, seed=3, agents=20, cities=4, turns=1, output_tokens=1)
        computed = dict.fromkeys(await replicas(http), 0)

        async def ask(conversation: Any) -> None:
            raw = await client.chat.completions.with_raw_response.create(
                model=DEFAULT_MODEL, messages=conversation.messages(), max_tokens=1, temperature=0
            )
            usage = raw.parse().usage
            assert usage is not None
            assert usage.prompt_tokens == 1025
            assert usage.prompt_tokens_details is not None
            cached = usage.prompt_tokens_details.cached_tokens or 0
            computed[raw.headers["x-ryokan-replica"]] += usage.prompt_tokens - cached

        await asyncio.gather(*(ask(conversation) for conversation in workload.conversations))
        assert max(computed.values()) < 0.9 * sum(computed.values()), computed
        # 4 cities and one system prompt: 3,410 shared tokens, and 20 questions of up to 41 tokens with their block.
        assert sum(computed.values()) < 0.5 * 20 * 1025, computed
    finally:
        codes = [process.stop() for process in more]
    assert codes == [0, 0]


async def _count_is(http: aiohttp.ClientSession, count: int) -> bool:
    return len(await replicas(http)) == count


def _replica_command(fleet: Fleet, name: str) -> list[str]:
    return ["deploy.cli", "replica", "--redis-url", fleet.redis_url, "--id", name, "--kv-memory-gib", KV_GIB]


async def test_index_equals_caches_also_in_a_gateway_that_starts_late(
    fleet: Fleet, http: aiohttp.ClientSession, client: openai.AsyncOpenAI, tmp_path: Path
) -> None:
    for n in range(6):
        await client.completions.create(model=DEFAULT_MODEL, prompt=f"{n} " * 150, max_tokens=20)
    late = Process(["deploy.cli", "gateway", "--redis-url", fleet.redis_url, "--port", "0"], tmp_path / "log")
    try:
        async with aiohttp.ClientSession(late.wait_for(r"ready on (http\S+)")) as late_http:
            for gateway in (http, late_http):
                await until(lambda gateway=gateway: _index_equals_caches(gateway), 30)
            held = [row["indexed_blocks"] for row in (await replicas(late_http)).values()]
            assert sum(held) >= 6 * 15
    finally:
        assert late.stop() == 0


async def _index_equals_caches(http: aiohttp.ClientSession) -> bool:
    """By count, against each idle replica's own metrics; that the sets are equal is what the XOR root checks."""
    rows = (await replicas(http)).values()
    for row in rows:
        async with http.get(f"{row['url']}/metrics") as response:
            metrics = dict(
                line.rsplit(" ", 1) for line in (await response.text()).splitlines() if not line.startswith("#")
            )
        held = float(metrics["ryokan_replica_blocks_total"]) - float(metrics["ryokan_replica_blocks_free"])
        if not row["synced"] or row["indexed_blocks"] != held:
            return False
    # A gateway that has just started may know of none yet.
    return bool(rows)


async def test_a_replica_joins_by_hand_dies_and_another_drains(
    fleet: Fleet, http: aiohttp.ClientSession, client: openai.AsyncOpenAI, tmp_path: Path
) -> None:
    await _set_policy(http, "round_robin")
    victim = Process(_replica_command(fleet, "victim"), tmp_path / "log")
    try:
        victim.wait_for(r"(ready) on")
        joined = time.monotonic()
        answered_by: set[str] = set()
        while "victim" not in answered_by:
            assert time.monotonic() - joined < 60
            answered_by |= {await _answering_replica(client)}

        requests = [asyncio.create_task(_answering_replica(client, max_tokens=30)) for _ in range(24)]
        await asyncio.sleep(0.05)
        victim.signal(signal.SIGKILL)
        results = await asyncio.gather(*requests)
        # Non-streamed answers begin with their last token: none had begun, so each was given by another replica.
        assert len(results) == 24
        await until(lambda: _is_gone(http, "victim"), 60)
        assert "victim" not in {await _answering_replica(client) for _ in range(4)}
    finally:
        victim.wait()
        await _set_policy(http, "ttft")

    leaver = Process(_replica_command(fleet, "leaver"), tmp_path / "log2")
    try:
        leaver.wait_for(r"(ready) on")
        await until(lambda: _is_routable(http, "leaver"), 60)
        url = (await replicas(http))["leaver"]["url"]
        async with http.post(
            f"{url}/v1/completions", json={"model": DEFAULT_MODEL, "prompt": "x", "max_tokens": 200, "ignore_eos": True}
            | {"stream": True},
        ) as response:  # fmt: skip
            leaver.signal(signal.SIGINT)
            await until(lambda: _is_gone(http, "leaver"), 60)
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        assert leaver.wait() == 0
    finally:
        leaver.stop()


async def _set_policy(http: aiohttp.ClientSession, name: str) -> None:
    async with http.post("/admin/policy", json={"policy": name}) as response:
        assert response.status == 200


async def _answering_replica(client: openai.AsyncOpenAI, max_tokens: int = 1) -> str:
    raw = await client.chat.completions.with_raw_response.create(
        model=DEFAULT_MODEL, messages=QUESTION, max_tokens=max_tokens
    )
    return str(raw.headers["x-ryokan-replica"])


async def _is_gone(http: aiohttp.ClientSession, name: str) -> bool:
    return name not in await replicas(http)


async def _is_routable(http: aiohttp.ClientSession, name: str) -> bool:
    return name in await replicas(http)


async def test_every_decision_is_explained(http: aiohttp.ClientSession, client: openai.AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(model=DEFAULT_MODEL, messages=QUESTION, max_tokens=1)
    async with http.get(f"/route/explain/{raw.headers['x-request-id']}") as response:
        assert response.status == 200
        explained = await response.text()
    assert all(replica in explained for replica in await replicas(http))
    assert "queue_s" in explained


async def test_answers_follow_a_schema_and_carry_logprobs(client: openai.AsyncOpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "people": {"type": "integer", "minimum": 0, "maximum": 999},
        },
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    arguments: Any = {"model": DEFAULT_MODEL, "messages": QUESTION, "max_tokens": 80, "seed": 1, "n": 2}
    arguments |= {"response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}}
    whole = await client.chat.completions.create(**arguments, logprobs=True, top_logprobs=2)
    for choice in whole.choices:
        assert choice.finish_reason == "stop"
        value = json.loads(choice.message.content or "")
        assert isinstance(value["city"], str) and isinstance(value["people"], int)
        assert choice.logprobs is not None and choice.logprobs.content is not None
        data = b"".join(bytes(item.bytes or []) for item in choice.logprobs.content)
        assert data.decode() == choice.message.content
    texts = ["", ""]
    async for chunk in await client.chat.completions.create(**arguments, stream=True):
        for part in chunk.choices:
            texts[part.index] += part.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]


async def test_tools_are_refused_where_the_template_knows_none(client: openai.AsyncOpenAI) -> None:
    tools: Any = [{"type": "function", "function": {"name": "f"}}]
    with pytest.raises(openai.BadRequestError, match="tools"):
        await client.chat.completions.create(model=DEFAULT_MODEL, messages=QUESTION, tools=tools)
