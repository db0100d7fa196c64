"""The client against a real HTTP server that answers by script."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from loadtest.client import ChatClient, RequestRecord, run_conversations, run_open_loop
from loadtest.workload import Conversation

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
MESSAGES = [{"role": "user", "content": "hi"}]
CONVERSATIONS = [Conversation(agent, "Lisbon", "rules", f"notes {agent}", ("and?",)) for agent in range(4)]


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[ChatClient]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        yield ChatClient(session, str(server.make_url("")), "m", timeout_s=5)


def event(text: str | None = None, **fields: object) -> bytes:
    choices = [] if text is None else [{"index": 0, "delta": {"content": text}}]
    return b"data: " + orjson.dumps({"choices": choices, **fields}) + b"\n\n"


USAGE = {"prompt_tokens": 40, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 32}}
ANSWER = event("") + event("Grüße") + event(", two") + event(None, usage=USAGE) + b"data: [DONE]\n\n"
BAD_CHUNKS = (
    b"{broken",
    b"3",
    b'{"choices": [null]}',
    b'{"usage": {"prompt_tokens": 4}}',
    b'{"choices": [{"delta": 1}]}',
)
HEADERS = {"x-ryokan-replica": "r1", "x-ryokan-cached-tokens": "16", "x-request-id": "id-7"}


def stream(*pieces: bytes, pause_s: float = 0.0, cut: bool = False) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=HEADERS | {"content-type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(pause_s)
        if cut:
            assert request.transport is not None
            request.transport.abort()
        return response

    return handler


async def test_an_answer_in_single_bytes_is_measured() -> None:
    async with served(stream(*(ANSWER[i : i + 1] for i in range(len(ANSWER))))) as client:
        record = await client.send(MESSAGES, 3)
    assert record.error is None and record.text == "Grüße, two"
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (40, 3, 32)
    assert (record.replica, record.predicted_tokens, record.request_id) == ("r1", 16, "id-7")
    assert record.first_token_s is not None and len(record.chunk_times_s) == 2
    assert record.sent_s < record.first_token_s <= record.chunk_times_s[1] <= record.end_s
    assert record.itl_s == (record.end_s - record.first_token_s) / 2


async def test_an_empty_chunk_is_no_first_token() -> None:
    async with served(
        stream(event(""), event("a"), event(None, usage=USAGE), b"data: [DONE]\n\n", pause_s=0.2)
    ) as client:
        record = await client.send(MESSAGES, 3)
    assert record.ttft_s is not None and record.ttft_s > 0.15


async def test_the_request_forces_length_and_greed_and_carries_headers() -> None:
    seen: list[tuple[dict[str, object], str | None]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append((await request.json(), request.headers.get("x-ryokan-trace")))
        return await stream(ANSWER)(request)

    async with served(handler) as client:
        await client.send(MESSAGES, 9, {"x-ryokan-trace": "1"})
    body, trace = seen[0]
    assert trace == "1"
    assert body == {
        "model": "m",
        "messages": MESSAGES,
        "max_tokens": 9,
        "min_tokens": 9,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (stream(event("a"), b'data: {"error": {"message": "replica lost"}}\n\ndata: [DONE]\n\n'), "replica lost"),
        (stream(event("a")), r"without \[DONE\]"),
        (stream(event("a"), pause_s=0.05, cut=True), "."),
        (stream(event(None, usage=USAGE) + b"data: [DONE]\n\n"), "no text"),
        (stream(event("a") + b"data: [DONE]\n\n"), "no usage"),
        *((stream(b"data: " + bad + b"\n\n"), "no completion chunk") for bad in BAD_CHUNKS),
    ],
)
async def test_broken_answers_are_kept_as_errors(handler: Handler, message: str) -> None:
    async with served(handler) as client:
        record = await client.send(MESSAGES, 3)
    assert record.error is not None and re.search(message, record.error), record.error


async def test_a_refusal_is_kept_with_status_and_reason() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "queue full"}}, status=429)

    async with served(handler) as client:
        record = await client.send(MESSAGES, 3)
    assert record.error == "HTTP 429: queue full"
    assert record.end_s > record.sent_s and record.first_token_s is None


async def test_an_unreachable_server_is_an_error_too() -> None:
    async with aiohttp.ClientSession() as session:
        record = await ChatClient(session, "http://127.0.0.1:9", "m").send(MESSAGES, 3)
    assert record.error is not None and "127.0.0.1" in record.error


class Counting:
    """Answers all, and knows how many requests were in flight at most."""

    def __init__(self, fail: int | None = None) -> None:
        self.bodies: list[dict[str, object]] = []
        self.running = self.most = 0
        self._fail = fail

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        if len(self.bodies) - 1 == self._fail:
            return web.json_response({"error": {"message": "no"}}, status=500)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.05)
        self.running -= 1
        return await stream(ANSWER)(request)


async def test_a_closed_loop_starts_all_agents_and_sends_real_answers_back() -> None:
    server = Counting()
    answers: list[RequestRecord] = []
    async with served(server.handle) as client:
        records = await run_conversations(client, CONVERSATIONS, 3, on_answer=answers.append)
    assert server.most == 4
    assert sorted((r.agent, r.turn) for r in records) == [(a, t) for a in range(4) for t in range(2)]
    assert answers == records and all(r.ok for r in records)
    second = next(r for r in records if r.agent == 2 and r.turn == 1)
    assert second.messages == CONVERSATIONS[2].messages(["Grüße, two"])


async def test_concurrency_bounds_the_agents() -> None:
    server = Counting()
    async with served(server.handle) as client:
        records = await run_conversations(client, CONVERSATIONS, 3, concurrency=1)
    assert server.most == 1 and len(records) == 8


async def test_a_ramp_spreads_the_starts() -> None:
    async with served(Counting().handle) as client:
        records = await run_conversations(client, CONVERSATIONS, 3, ramp_s=0.8)
    starts = [next(r.sent_s for r in records if r.agent == a and r.turn == 0) for a in range(4)]
    assert starts[3] - starts[0] > 0.5


async def test_a_failed_turn_ends_its_conversation_only() -> None:
    async with served(Counting(fail=0).handle) as client:
        records = await run_conversations(client, CONVERSATIONS, 3)
    assert len(records) == 7 and sum(not r.ok for r in records) == 1


async def test_an_open_loop_arrives_by_seed_and_is_timed_from_when_it_was_due() -> None:
    async def dues() -> list[float]:
        async with served(Counting().handle) as client:
            records = await run_open_loop(client, CONVERSATIONS, 3, rate_per_s=50, seed=4)
        assert len(records) == 8
        first = sorted((r for r in records if r.turn == 0), key=lambda r: r.agent)
        assert all(r.due_s <= r.sent_s for r in records)
        assert all(r.ttft_s == r.first_token_s - r.due_s for r in records if r.first_token_s is not None)
        return [r.due_s - first[0].due_s for r in first]

    assert await dues() == pytest.approx(await dues(), abs=1e-6)


async def test_an_open_loop_may_pause_before_later_turns() -> None:
    async with served(Counting().handle) as client:
        records = await run_open_loop(client, CONVERSATIONS, 3, rate_per_s=1000, seed=4, think_s=0.3)
    first = {record.agent: record for record in records if record.turn == 0}
    pauses = [record.sent_s - first[record.agent].end_s for record in records if record.turn == 1]
    assert len(pauses) == 4 and sum(pauses) > 0.3 and len({round(pause, 3) for pause in pauses}) > 1
