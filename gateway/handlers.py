"""The OpenAI endpoints that generate. `complete` is the path of a request, step by step."""

import re
import uuid
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web

from gateway.dispatch import Call, Routed
from gateway.errors import ModelNotFound, NoReplica, UnsupportedEncoding, UpstreamError, answer_for
from gateway.introspect import max_context
from gateway.keys import (
    BUDGET,
    CLOCK,
    CONFIG,
    DISPATCHER,
    LIFECYCLE,
    METRICS,
    REQUEST_ID,
    TEXT,
    TOKENIZER,
    TRACES,
)
from gateway.routing.base import RouteRequest
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


async def complete(request: web.Request, parse: Callable[[bytes], Parsed]) -> web.StreamResponse:
    app = request.app
    trace = app[TRACES].begin(request_id(request), app[CLOCK]())
    request[REQUEST_ID] = trace.request_id
    if app[LIFECYCLE].draining:
        raise NoReplica("this gateway is shutting down")
    with app[BUDGET].request():
        trace.mark("received", trace.received_at)
        parsed = parse(await read_body(request))
        check(parsed, app[TEXT], app[CONFIG].model_name or app[TEXT].name)
        prompt = await tokenise(request, parsed, trace)
        call = make_call(request, parsed, prompt, trace)
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
    if isinstance(parsed, openai.ChatRequest):
        messages = [message.for_template() for message in parsed.messages]
        tools = [tool.for_template() for tool in parsed.tools]
        prompt = await app[TOKENIZER].chat(messages, tools, salt=parsed.cache_salt)
    else:
        prompt = await app[TOKENIZER].completion(parsed.prompts[0], salt=parsed.cache_salt)
    now = app[CLOCK]()
    app[METRICS].tokenise.observe(now - begin)
    trace.prompt_tokens = len(prompt.tokens)
    trace.mark("tokenised", now, tokens=trace.prompt_tokens)
    return prompt


def make_call(request: web.Request, parsed: Parsed, prompt: Prompt, trace: Trace) -> Call:
    """What goes to the replica: the request as parsed, with token ids in place of text."""
    tokens = len(prompt.tokens)
    openai.output_limit(tokens, parsed.max_new_tokens, max_context(request.app))
    payload = parsed.model_dump(exclude_unset=True, by_alias=True, exclude={"model", "messages", "prompt"})
    return Call(
        path=request.path,
        payload=payload | {"prompt_token_ids": prompt.tokens},
        prompt=RouteRequest(tokens, [] if scores_prompt(parsed) else prompt.hashes),
        total_tokens=tokens + (1 if parsed.max_new_tokens is None else parsed.max_new_tokens),
        choices=parsed.n,
        traced=request.headers.get(headers.TRACE) == "1",
        trace=trace,
    )


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
    return web.Response(body=body, status=routed.answer.status, headers=answer_headers(call, routed))


async def relay_stream(request: web.Request, call: Call, routed: Routed) -> web.StreamResponse:
    """Bytes as they come. Where the replica breaks off, the client gets an error event and a proper end."""
    response = web.StreamResponse(status=routed.answer.status, headers=answer_headers(call, routed))
    response.headers.update({"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"})
    await response.prepare(request)
    try:
        await relay_events(routed.answer.content.readany, response.write)
    except UpstreamError as error:
        request.app[DISPATCHER].broke_off(routed.decision.choice)
        call.trace.attempts[-1].failure = error.reason
        answer = answer_for(error)
        event = openai.error_body(str(error), type=answer.type, code=answer.code)
        await response.write(b"data: " + event + b"\n\n" + DONE)
    await response.write_eof()
    return response


async def relay_events(read: Callable[[], Awaitable[bytes]], write: Callable[[bytes], Awaitable[None]]) -> None:
    """Server-sent events up to `[DONE]`, which is sent once, whatever the replica does with it.

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
            return
        held += chunk
        end = len(held) if len(held) > HELD_BACK_MAX else held.rfind(b"\n\n") + 2
        if end < 2:
            continue
        whole, held = held[:end], held[end:]
        done = whole.find(DONE)
        if done >= 0 and (done == 0 or whole[done - 1 : done] == b"\n"):
            await write(whole[: done + len(DONE)])
            return
        await write(whole)


def answer_headers(call: Call, routed: Routed) -> dict[str, str]:
    passed = {
        name: routed.answer.headers[name]
        for name in ("Content-Type", headers.DELIVERED_TOKENS)
        if name in routed.answer.headers
    }
    return passed | {
        headers.REQUEST_ID: call.trace.request_id,
        headers.REPLICA: routed.decision.choice,
        headers.POLICY: routed.decision.policy,
        headers.CACHED_TOKENS: str(routed.decision.cached_tokens),
    }
