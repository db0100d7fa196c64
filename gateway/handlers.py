"""The OpenAI endpoints that generate. `complete` is the path of a request, step by step."""

import re
import uuid
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web

from gateway.dispatch import Call, Routed
from gateway.errors import ModelNotFound, NoReplica, UnsupportedEncoding, UpstreamError, answer_for
from gateway.explain import decision_headers
from gateway.introspect import max_context, model_name
from gateway.keys import (
    BUDGET,
    CLOCK,
    DISPATCHER,
    LIFECYCLE,
    METRICS,
    RECORDER,
    TEXT,
    TOKENIZER,
    TRACE,
    TRACES,
)
from gateway.recording.answer import AnswerCount
from gateway.routing.base import RouteRequest
from gateway.sessions import session_name
from gateway.tokens import Prompt
from gateway.traces import Trace
from gateway.upstream import translated
from replica.protocol import headers, openai
from replica.protocol.checks import check_request
from replica.protocol.text import ModelText

PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
ENCODINGS = ("", "identity", "gzip", "deflate")
"""Content codings that the HTTP server decodes by itself."""

DONE = b"data: [DONE]\n\n"
HELD_BACK_MAX = 1 << 16

Parsed = openai.ChatRequest | openai.CompletionRequest


async def chat_completions(request: web.Request) -> web.StreamResponse:
    return await complete(request, openai.parse_chat)


async def completions(request: web.Request) -> web.StreamResponse:
    return await complete(request, openai.parse_completion)


def parse_for(endpoint: str) -> Callable[[bytes], Parsed]:
    parsers: dict[str, Callable[[bytes], Parsed]] = {"chat": openai.parse_chat, "completion": openai.parse_completion}
    if endpoint not in parsers:
        raise openai.RequestError(f"endpoint must be chat or completion, not {endpoint!r}", param="endpoint")
    return parsers[endpoint]


async def complete(request: web.Request, parse: Callable[[bytes], Parsed]) -> web.StreamResponse:
    app = request.app
    trace = app[TRACES].begin(request_id(request), app[CLOCK]())
    request[TRACE] = trace
    if app[LIFECYCLE].draining:
        raise NoReplica("this gateway is shutting down")
    with app[BUDGET].request():
        trace.mark("received", trace.received_at)
        parsed = parse(await read_body(request))
        check(parsed, app[TEXT], model_name(app))
        prompt = await tokenise(request, parsed, trace)
        call = make_call(request, parsed, prompt, trace)
        with app[RECORDER].recording(call):
            return await app[DISPATCHER].serve(call, lambda routed: relay(request, call, routed))


def request_id(request: web.Request) -> str:
    """The client's own, if it is a plain token, or a fresh one."""
    given = request.headers.get(headers.REQUEST_ID, "")
    return given if PLAIN_ID.fullmatch(given) else uuid.uuid4().hex


async def read_body(request: web.Request) -> bytes:
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ENCODINGS:
        raise UnsupportedEncoding(f"content-encoding {encoding!r}: send gzip, deflate or nothing")
    if "Content-Type" in request.headers and request.content_type != "application/json":
        raise openai.RequestError(f"content-type must be application/json, not {request.content_type}")
    try:
        return await request.read()
    except (web.RequestPayloadError, aiohttp.http.HttpProcessingError) as error:
        raise openai.RequestError(f"the body can't be read: {error}", code="invalid_body") from error


def check(parsed: Parsed, text: ModelText, model_name: str) -> None:
    """Raises ModelNotFound or RequestError."""
    if parsed.model != model_name:
        raise ModelNotFound(f"the model {parsed.model!r} does not exist; this gateway serves {model_name!r}")
    if parsed.prompt_token_ids is not None:
        raise openai.RequestError("unsupported field prompt_token_ids", "prompt_token_ids")
    if isinstance(parsed, openai.CompletionRequest) and len(parsed.prompts) > 1:
        raise openai.RequestError("prompt: each prompt is routed by itself; send one a request", "prompt")
    check_request(parsed, text)


async def tokenise(request: web.Request, parsed: Parsed, trace: Trace) -> Prompt:
    app = request.app
    begin = app[CLOCK]()
    prompt = await prompt_of(app, parsed)
    now = app[CLOCK]()
    app[METRICS].tokenise.observe(now - begin)
    trace.prompt_tokens = len(prompt.tokens)
    trace.mark("tokenised", now, tokens=trace.prompt_tokens)
    return prompt


async def prompt_of(app: web.Application, parsed: Parsed) -> Prompt:
    if isinstance(parsed, openai.ChatRequest):
        messages = [message.for_template() for message in parsed.messages]
        tools = [tool.for_template() for tool in parsed.tools]
        return await app[TOKENIZER].chat(messages, tools, salt=parsed.cache_salt)
    return await app[TOKENIZER].completion(parsed.prompts[0], salt=parsed.cache_salt)


def make_call(request: web.Request, parsed: Parsed, prompt: Prompt, trace: Trace) -> Call:
    """What goes to the replica: the request as parsed, with token ids in place of text."""
    tokens = len(prompt.tokens)
    openai.output_limit(tokens, parsed.max_new_tokens, max_context(request.app))
    payload = parsed.model_dump(exclude_unset=True, by_alias=True, exclude={"model", "messages", "prompt"})
    return Call(
        path=request.path,
        payload=payload | {"prompt_token_ids": prompt.tokens},
        prompt=route_request(request, parsed, prompt),
        total_tokens=total_tokens(parsed, prompt),
        choices=parsed.n,
        traced=request.headers.get(headers.TRACE) == "1",
        trace=trace,
    )


def route_request(request: web.Request, parsed: Parsed, prompt: Prompt) -> RouteRequest:
    hashes = [] if scores_prompt(parsed) else prompt.hashes
    return RouteRequest(len(prompt.tokens), hashes, session_name(request.headers, parsed.user))


def total_tokens(parsed: Parsed, prompt: Prompt) -> int:
    """Of the prompt and the shortest answer that will do."""
    return len(prompt.tokens) + (1 if parsed.max_new_tokens is None else parsed.max_new_tokens)


def scores_prompt(parsed: Parsed) -> bool:
    """A replica computes such a prompt as a whole, whatever its cache holds: that has no logits."""
    return isinstance(parsed, openai.CompletionRequest) and parsed.echo and parsed.num_logprobs is not None


async def relay(request: web.Request, call: Call, routed: Routed) -> web.StreamResponse:
    if routed.answer.content_type == "text/event-stream":
        return await relay_stream(request, call, routed)
    return await relay_whole(call, routed)


async def relay_whole(call: Call, routed: Routed) -> web.Response:
    """The answer is read to its end before a byte goes to the client, so that its loss can still be made good."""
    try:
        body = await routed.answer.read()
    except (aiohttp.ClientError, OSError) as error:
        raise translated(error) from error
    if call.trace.answer is not None:
        call.trace.answer.feed(body)
    return web.Response(body=body, status=routed.answer.status, headers=answer_headers(call, routed))


async def relay_stream(request: web.Request, call: Call, routed: Routed) -> web.StreamResponse:
    """Bytes as they come. Where the replica breaks off, the client gets an error event and a proper end."""
    response = web.StreamResponse(status=routed.answer.status, headers=answer_headers(call, routed))
    response.headers.update({"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"})
    await response.prepare(request)
    try:
        delivered = await relay_events(routed.answer.content.readany, counted(response.write, call.trace.answer))
        if delivered is not None:
            request.app[DISPATCHER].told(call, routed, delivered)
    except UpstreamError as error:
        request.app[DISPATCHER].broke_off(routed.decision.choice)
        call.trace.attempts[-1].failure = error.reason
        answer = answer_for(error)
        event = openai.error_body(str(error), type=answer.type, code=answer.code)
        await response.write(b"data: " + event + b"\n\n" + DONE)
    await response.write_eof()
    return response


def counted(
    write: Callable[[bytes], Awaitable[None]], answer: AnswerCount | None
) -> Callable[[bytes], Awaitable[None]]:
    if answer is None:
        return write

    async def write_and_count(data: bytes) -> None:
        answer.feed(data)
        await write(data)

    return write_and_count


async def relay_events(read: Callable[[], Awaitable[bytes]], write: Callable[[bytes], Awaitable[None]]) -> int | None:
    """Server-sent events up to `[DONE]`, which is sent once, whatever the replica does with it. Returns the delivered
    tokens where the replica tells them with it.

    A last event that is still incomplete is held back, so that what follows a break is never glued to half of one.
    Raises an UpstreamError where the replica breaks off before `[DONE]`.
    """
    held = b""
    while True:
        try:
            chunk = await read()
        except (aiohttp.ClientError, OSError) as error:
            raise translated(error) from error
        if not chunk:
            await write(held + DONE if held.endswith(b"\n\n") or not held else held + b"\n\n" + DONE)
            return None
        held += chunk
        end = len(held) if len(held) > HELD_BACK_MAX else held.rfind(b"\n\n") + 2
        if end < 2:
            continue
        whole, held = held[:end], held[end:]
        done = whole.find(DONE)
        if done >= 0 and (done == 0 or whole[done - 1 : done] == b"\n"):
            rest, delivered = without_comment(whole[:done])
            await write(rest + DONE)
            return delivered
        await write(whole)


def without_comment(events: bytes) -> tuple[bytes, int | None]:
    """What comes before `[DONE]`, and the number of delivered tokens that may stand just there."""
    start = events.rfind(b"\n", 0, -1) + 1
    line = events[start:]
    if not line.startswith(headers.DELIVERED_COMMENT):
        return events, None
    number = line.removeprefix(headers.DELIVERED_COMMENT).strip()
    return events[:start], int(number) if number.isdigit() and len(number) < 10 else None


def answer_headers(call: Call, routed: Routed) -> dict[str, str]:
    passed = {
        name: routed.answer.headers[name]
        for name in ("Content-Type", headers.DELIVERED_TOKENS)
        if name in routed.answer.headers
    }
    return passed | {
        headers.REQUEST_ID: call.trace.request_id,
        **decision_headers(call.trace.considered),
    }
