"""Streaming OpenAI clients that measure each request, and the two ways to load a server with conversations.

Closed loop: each agent sends its next request when the last is answered. Open loop: conversations arrive at a rate,
whatever the server does, and are timed from the moment they were due, so that a slow server can't hide its queue.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar

import aiohttp
import orjson

from loadtest.sse import EventParser
from loadtest.workload import Conversation, Message
from replica.protocol import headers

OnAnswer = Callable[["RequestRecord"], None]


@dataclass(slots=True)
class RequestRecord:
    """One request as the client saw it; times are seconds of the client's clock."""

    messages: Sequence[Message]
    agent: int = -1
    turn: int = 0
    due_s: float = 0.0
    """When the request should have been sent: in a closed loop, when it was."""
    sent_s: float = 0.0
    first_token_s: float | None = None
    """The first chunk with text in it; empty and role-only chunks don't count."""
    chunk_times_s: list[float] = field(default_factory=list)
    end_s: float = 0.0
    text: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that the engine took from its cache, as `usage` says."""
    predicted_tokens: int | None = None
    """The same, as the gateway expected when it routed."""
    replica: str = ""
    policy: str = ""
    request_id: str = ""
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.due_s

    @property
    def itl_s(self) -> float | None:
        """Mean time between tokens. A chunk may hold several tokens, so their number is the server's count."""
        if self.first_token_s is None or self.output_tokens < 2:
            return None
        return (self.end_s - self.first_token_s) / (self.output_tokens - 1)


class _StreamError(Exception):
    """The answer is no complete stream of a chat completion."""


class StreamClient:
    """Sends greedy requests of fixed output length to one server. Errors end up in the record, never as exceptions."""

    path: ClassVar[str]

    def __init__(
        self,
        session: aiohttp.ClientSession,
        base_url: str,
        model: str,
        timeout_s: float = 300.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._session = session
        self._url = f"{base_url.rstrip('/')}{self.path}"
        self._model = model
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout_s, sock_read=timeout_s)
        self._clock = clock

    def now(self) -> float:
        return self._clock()

    async def _post(
        self,
        record: RequestRecord,
        fields: Mapping[str, Any],
        output_tokens: int,
        extra_headers: Mapping[str, str] | None = None,
        due_s: float | None = None,
    ) -> RequestRecord:
        body = orjson.dumps(
            {
                "model": self._model,
                **fields,
                "max_tokens": output_tokens,
                # Not `ignore_eos`: special tokens within an answer have no text, so the next turn's prompt would part
                # from the answer's KV blocks where they stood.
                "min_tokens": output_tokens,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        record.sent_s = self._clock()
        record.due_s = record.sent_s if due_s is None else due_s
        request_headers = {"content-type": "application/json", **(extra_headers or {})}
        try:
            async with self._session.post(
                self._url, data=body, headers=request_headers, timeout=self._timeout
            ) as response:
                await self._read(response, record)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, _StreamError) as error:
            record.error = str(error) or type(error).__name__
        record.end_s = self._clock()
        return record

    async def _read(self, response: aiohttp.ClientResponse, record: RequestRecord) -> None:
        record.request_id = response.headers.get(headers.REQUEST_ID, "")
        record.replica = response.headers.get(headers.REPLICA, "")
        record.policy = response.headers.get(headers.POLICY, "")
        predicted = response.headers.get(headers.CACHED_TOKENS)
        record.predicted_tokens = None if predicted is None else int(predicted)
        if response.status != 200:
            raise _StreamError(f"HTTP {response.status}: {error_message(await response.read())}")
        parser = EventParser()
        texts: list[str] = []
        usage_seen = False
        try:
            async for data in response.content.iter_any():
                now = self._clock()
                for event in parser.feed(data):
                    if event == "[DONE]":
                        _check_complete(record, usage_seen)
                        return
                    usage_seen |= _take_event(event, record, texts, now)
        finally:
            record.text = "".join(texts)
        raise _StreamError("the stream ended without [DONE]")


class ChatClient(StreamClient):
    path = "/v1/chat/completions"

    async def send(
        self,
        messages: Sequence[Message],
        output_tokens: int,
        extra_headers: Mapping[str, str] | None = None,
        due_s: float | None = None,
    ) -> RequestRecord:
        fields = {"messages": list(messages)}
        return await self._post(RequestRecord(messages), fields, output_tokens, extra_headers, due_s)


class CompletionClient(StreamClient):
    path = "/v1/completions"

    async def send(
        self,
        prompt: str | Sequence[int],
        output_tokens: int,
        extra_headers: Mapping[str, str] | None = None,
        due_s: float | None = None,
    ) -> RequestRecord:
        """`prompt`: text, or token ids."""
        fields = {"prompt": prompt if isinstance(prompt, str) else list(prompt)}
        return await self._post(RequestRecord(()), fields, output_tokens, extra_headers, due_s)


def _take_event(event: str, record: RequestRecord, texts: list[str], now: float) -> bool:
    """Returns whether the chunk brought the usage. Raises _StreamError for an error event and for no chunk at all."""
    try:
        chunk = orjson.loads(event)
        if chunk.get("error"):
            raise _StreamError(f"error event: {_message_of(chunk)}")
        for choice in chunk.get("choices") or ():
            text = choice["text"] if "text" in choice else (choice.get("delta") or {}).get("content")
            if text:
                texts.append(text)
                record.chunk_times_s.append(now)
                if record.first_token_s is None:
                    record.first_token_s = now
        usage = chunk.get("usage")
        if not usage:
            return False
        record.prompt_tokens = int(usage["prompt_tokens"])
        record.output_tokens = int(usage["completion_tokens"])
        record.cached_tokens = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
        return True
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _StreamError(f"an event is no completion chunk: {event[:80]}") from error


def _check_complete(record: RequestRecord, usage_seen: bool) -> None:
    if record.first_token_s is None:
        raise _StreamError("the stream held no text")
    if not usage_seen:
        raise _StreamError("the stream held no usage")


def error_message(body: bytes) -> str:
    """The message of an OpenAI error body, or the body's beginning where it is none."""
    try:
        return _message_of(orjson.loads(body))
    except orjson.JSONDecodeError:
        return body[:200].decode(errors="replace")


def _message_of(value: Any) -> str:
    error = value.get("error") if isinstance(value, dict) else value
    return str(error.get("message", error) if isinstance(error, dict) else error)


async def run_conversations(
    client: ChatClient,
    conversations: Sequence[Conversation],
    output_tokens: int,
    concurrency: int | None = None,
    ramp_s: float = 0.0,
    on_answer: OnAnswer | None = None,
) -> list[RequestRecord]:
    """Closed loop: `concurrency` agents (default: one a conversation), started together or evenly over `ramp_s`."""
    agents = min(concurrency or len(conversations), len(conversations))
    records: list[RequestRecord] = []

    async def agent(number: int) -> None:
        await asyncio.sleep(ramp_s * number / agents)
        for conversation in conversations[number::agents]:
            await _converse(client, conversation, output_tokens, None, records, on_answer)

    await _all_of([agent(number) for number in range(agents)])
    return records


async def run_open_loop(
    client: ChatClient,
    conversations: Sequence[Conversation],
    output_tokens: int,
    rate_per_s: float,
    seed: int,
    on_answer: OnAnswer | None = None,
    think_s: float = 0.0,
) -> list[RequestRecord]:
    """Open loop: first turns arrive as a Poisson process; later turns follow their answers at once, or after a time
    that is exponential with mean `think_s`."""
    rng = Random(seed)
    start_s = client.now()
    records: list[RequestRecord] = []

    async def arrival(conversation: Conversation, due_s: float, pauses_s: Sequence[float]) -> None:
        await asyncio.sleep(max(0.0, due_s - client.now()))
        await _converse(client, conversation, output_tokens, due_s, records, on_answer, pauses_s)

    arrivals = []
    due_s = start_s
    for conversation in conversations:
        due_s += rng.expovariate(rate_per_s)
        pauses_s = [rng.expovariate(1 / think_s) for _ in conversation.follow_ups] if think_s else ()
        arrivals.append(arrival(conversation, due_s, pauses_s))
    await _all_of(arrivals)
    return records


async def _converse(
    client: ChatClient,
    conversation: Conversation,
    output_tokens: int,
    due_s: float | None,
    records: list[RequestRecord],
    on_answer: OnAnswer | None,
    pauses_s: Sequence[float] = (),
) -> None:
    """All turns, with the server's real answers; a failed turn ends the conversation."""
    answers: list[str] = []
    for turn in range(conversation.turns):
        if turn and pauses_s:
            await asyncio.sleep(pauses_s[turn - 1])
        record = await client.send(conversation.messages(answers), output_tokens, due_s=due_s if turn == 0 else None)
        record.agent, record.turn = conversation.agent, turn
        records.append(record)
        if on_answer is not None:
            on_answer(record)
        if not record.ok:
            return
        answers.append(record.text)


async def _all_of(agents: Sequence[Any]) -> None:
    async with asyncio.TaskGroup() as group:
        for agent in agents:
            group.create_task(agent)
