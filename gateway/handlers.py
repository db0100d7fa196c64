"""The OpenAI endpoints that generate. `complete` is the path of a request, step by step."""

import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from aiohttp import web

from gateway import quick_parse
from gateway.bodies import check_content, unpacked_body
from gateway.context import Context, Parts
from gateway.cors import cors_headers
from gateway.dispatch import Call, Routed
from gateway.edge import CLIENT_GONE, Failure, guarded
from gateway.errors import NoReplica, ReplicaFailed, UpstreamError, answer_for
from gateway.explain import decision_headers
from gateway.hold.terms import terms_of
from gateway.http.aiohttp_exchange import exchanged
from gateway.http.exchange import Exchange
from gateway.keys import ANSWERED
from gateway.relay import ClientStream, as_event
from gateway.resume import Progress
from gateway.routing.base import RouteRequest
from gateway.sessions import session_name
from gateway.several import serve as several
from gateway.tenants.meter import Usage
from gateway.tokens import Prompt, PromptTokenizer
from replica.protocol import headers, openai
from replica.protocol.checks import check_request
from replica.protocol.resume import Begun
from replica.protocol.text import ModelText

PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

PASSED_ON = ("content-type", "content-encoding", headers.DELIVERED_TOKENS)
"""Of a replica's headers."""
NOT_FORWARDED = frozenset(("model", "messages", "prompt"))

Parsed = openai.ChatRequest | openai.CompletionRequest

REPLICAS_OWN = frozenset(("prompt_token_ids", "public_prefix_tokens", "resume"))
"""Fields that gateways write."""

PARSERS: dict[str, Callable[[bytes], Parsed]] = {
    "/v1/chat/completions": quick_parse.parse_chat,
    "/v1/completions": openai.parse_completion,
}
"""By path: the hot routes."""


async def on_aiohttp(request: web.Request) -> web.StreamResponse:
    """The hot routes where aiohttp alone is the server."""
    request[ANSWERED] = True
    return await exchanged(request, lambda exchange: answer(Parts.of(request.app), exchange))


def parse_for(endpoint: str) -> Callable[[bytes], Parsed]:
    parsers: dict[str, Callable[[bytes], Parsed]] = {
        "chat": quick_parse.parse_chat,
        "completion": openai.parse_completion,
    }
    if endpoint not in parsers:
        raise openai.RequestError(f"endpoint must be chat or completion, not {endpoint!r}", param="endpoint")
    return parsers[endpoint]


async def answer(parts: Parts, exchange: Exchange) -> None:
    """One request with whatever comes of it: every error in OpenAI's shape, every answer counted and logged."""
    traces, given = parts.traces, exchange.headers
    trace = traces.begin(given_id(given) or traces.fresh_id(), parts.clock())
    trace.span = parts.observer.span(given)
    context = Context(parts, exchange, trace, parts.pools.first)
    if origins := parts.live.config.cors_origins:
        exchange.more_headers = cors_headers(exchange.path, given, origins)
    status, code = CLIENT_GONE, None
    try:
        failure = await guarded(complete(context), trace)
        if failure is not None:
            fail(context, failure)
            code = failure.code
        status = exchange.status
    finally:
        if context.stream is not None:
            context.stream.close()
            # They know each other, which only the garbage collector would find.
            context.stream = None
        parts.observer.answered(context.answered(status, code), trace, context.pool.router.policy.name)


def fail(context: Context, failure: Failure) -> None:
    """As an event, where the client has got its 200 already."""
    if context.stream is not None and context.stream.begun:
        metrics = context.parts.metrics
        metrics.broken_streams.inc()
        if any(attempt.after_tokens for attempt in context.trace.attempts):
            metrics.resumes.labels("failed").inc()
        context.stream.end(failure.body)
    else:
        context.exchange.send(failure.status, failure.headers, failure.body)


async def complete(context: Context) -> Failure | None:
    """A failure is raised, but for that of several prompts."""
    parts, trace = context.parts, context.trace
    caller = context.caller = parts.gate.authenticate(context.exchange.headers)
    trace.tenant = caller.tenant or None
    if parts.lifecycle.draining:
        raise NoReplica("this gateway is shutting down")
    usage = parts.gate.admitted(caller)
    parts.budget.begin()
    try:
        trace.mark("received", trace.received_at)
        call = await prepared(context)
        if isinstance(call, list):
            return await several.answer(context, call, usage, several.Single(call_of, serve_one, fail))
        if usage is None and not parts.recorder.is_on:
            await serve(context, call)
        else:
            with parts.gate.metered(usage, call), parts.recorder.recording(call):
                await serve(context, call)
    finally:
        parts.budget.end()
        if usage is not None:
            usage.close()
    return None


def serve(context: Context, call: Call) -> Awaitable[None]:
    return context.pool.dispatcher.serve(call, partial(relay, context, call))


async def serve_one(context: Context, call: Call, usage: Usage | None) -> None:
    """As `complete`, of one prompt of several."""
    parts = context.parts
    parts.budget.begin()
    try:
        with parts.gate.metered(usage, call), parts.recorder.recording(call):
            await serve(context, call)
    finally:
        parts.budget.end()


async def prepared(context: Context) -> Call | list[openai.CompletionRequest]:
    """All that a stream keeps of its request while it lives: no body, no text. Of several prompts a request for
    each."""
    parts, exchange, pools = context.parts, context.exchange, context.parts.pools
    encoding = check_content(exchange.headers)
    body = await exchange.body()
    if encoding:
        body = await unpacked_body(body, encoding, parts.config.body_limit, pools.first.tokenizer.in_thread)
    parsed = PARSERS[exchange.path](body)
    found = pools.find(parsed.model)
    if found is not None and found.name != parsed.model:
        # Keys are for models, not for what they are called.
        parsed = quick_parse.changed(parsed, {"model": found.name})
    parsed = context.caller.own(parsed)
    context.pool = pool = found or pools.of(parsed.model)
    check(parsed, pool.text)
    context.trace.model = pool.name
    if isinstance(parsed, openai.CompletionRequest) and len(parsed.prompts) > 1:
        return several.apart(parsed)
    return await call_of(context, parsed)


async def call_of(context: Context, parsed: Parsed) -> Call:
    parts, tokenizer = context.parts, context.pool.tokenizer
    if parsed.stream:
        context.stream = client_stream(context)
    begin = parts.clock()
    prompt = prompt_at_once(tokenizer, parsed) or await prompt_of(tokenizer, parsed)
    now = parts.clock()
    parts.metrics.tokenise.observe(now - begin)
    context.trace.tokenised(now, prompt.length)
    return make_call(context, parsed, prompt, now)


def given_id(given: Mapping[str, str]) -> str | None:
    """The client's own, if it is a plain token."""
    own = given.get(headers.REQUEST_ID)
    return own if own is not None and PLAIN_ID.fullmatch(own) else None


def client_stream(context: Context) -> ClientStream:
    parts = context.parts
    return ClientStream(
        context.exchange,
        parts.upstream.wheel,
        parts.upstream.pool.loop,
        lambda: own_headers(context),
        parts.live.config.timeouts.keep_alive_s,
    )


def check(parsed: Parsed, text: ModelText) -> None:
    """Raises RequestError."""
    if not REPLICAS_OWN.isdisjoint(parsed.__pydantic_fields_set__):
        name = min(REPLICAS_OWN.intersection(parsed.__pydantic_fields_set__))
        raise openai.RequestError(f"unsupported field {name}", name)
    check_request(parsed, text)


def prompt_at_once(tokenizer: PromptTokenizer, parsed: Parsed) -> Prompt | None:
    """None: it has to be waited for."""
    if not isinstance(parsed, openai.ChatRequest) or parsed.tools:
        return None
    return tokenizer.at_once(parsed.messages, parsed.cache_salt)


async def prompt_of(tokenizer: PromptTokenizer, parsed: Parsed) -> Prompt:
    if isinstance(parsed, openai.ChatRequest):
        messages = [message.for_template() for message in parsed.messages]
        tools = [tool.for_template() for tool in parsed.tools]
        return await tokenizer.chat(messages, tools, salt=parsed.cache_salt)
    return await tokenizer.completion(parsed.prompts[0], salt=parsed.cache_salt)


def make_call(context: Context, parsed: Parsed, prompt: Prompt, now: float) -> Call:
    """What goes to the replica: the request as parsed, with token ids in place of text."""
    exchange, pool, trace, most = context.exchange, context.pool, context.trace, parsed.max_new_tokens
    given = exchange.headers
    openai.output_limit(prompt.length, most, pool.context_limit.at(now))
    payload = quick_parse.fields_given(parsed, NOT_FORWARDED)
    if prompt.public_tokens:
        payload["public_prefix_tokens"] = prompt.public_tokens
    return Call(
        path=exchange.path,
        payload=payload,
        token_ids=prompt.ids.json,
        as_text=as_text(parsed) if pool.served.upstreams else None,
        prompt=route_request(given, parsed, prompt),
        total_tokens=total_tokens(prompt, most),
        choices=parsed.n,
        traced=given.get(headers.TRACE) == "1",
        trace=trace,
        terms=terms_of(given, parsed.priority, trace.received_at, context.caller.tenant),
        progress=progress_of(parsed) if parsed.stream else None,
    )


def as_text(parsed: Parsed) -> Callable[[], dict[str, Any]]:
    return lambda: parsed.model_dump(exclude_unset=True, by_alias=True, exclude={"model"})


def progress_of(parsed: Parsed) -> Progress:
    begun = Begun(created=int(time.time()), seed=secrets.randbits(63))
    return Progress(begun, parsed.n, parsed.stream_options.include_usage)


def route_request(given: Mapping[str, str], parsed: Parsed, prompt: Prompt) -> RouteRequest:
    hashes = [] if scores_prompt(parsed) else prompt.hashes
    return RouteRequest(prompt.length, hashes, session_name(given, parsed.user))


def total_tokens(prompt: Prompt, max_new_tokens: int | None) -> int:
    """Of the prompt and the shortest answer that will do."""
    return prompt.length + (1 if max_new_tokens is None else max_new_tokens)


def scores_prompt(parsed: Parsed) -> bool:
    """A replica computes such a prompt as a whole, whatever its cache holds: that has no logits."""
    return isinstance(parsed, openai.CompletionRequest) and parsed.echo and parsed.num_logprobs is not None


def relay(context: Context, call: Call, routed: Routed) -> Awaitable[None]:
    if context.stream is not None and routed.answer.content_type == "text/event-stream":
        return relay_stream(context, context.stream, call, routed)
    return relay_whole(context, call, routed)


async def relay_whole(context: Context, call: Call, routed: Routed) -> None:
    """The answer is read to its end before a byte goes to the client, so that its loss can still be made good."""
    body = routed.answer.read_at_once()
    if body is None:
        body = await routed.answer.read()
    call.trace.answer.feed(body)
    if context.stream is not None and context.stream.begun:
        context.stream.end(as_event(body))
    else:
        context.exchange.send(routed.answer.status, answer_headers(context, routed), body)


async def relay_stream(context: Context, stream: ClientStream, call: Call, routed: Routed) -> None:
    """Bytes as they come. Where the replica breaks off and another can go on, that is raised; else the client gets an
    error event and a proper end."""
    if routed.answer.headers.get("content-encoding", "identity") != "identity":
        raise ReplicaFailed("the replica compressed its stream, which it was asked not to")
    dispatcher, trace, progress = context.pool.dispatcher, call.trace, call.progress
    assert progress is not None
    marked = progress.begin(routed.answer.headers, trace.request_id)
    stream.events.rewrite = progress.take_marks if marked else None
    try:
        delivered = await stream.follow(routed.answer, answer_headers(context, routed), trace.answer)
    except UpstreamError as error:
        progress.stop()
        if may_go_on(stream, progress):
            raise
        dispatcher.broke_off(call, error)
        if progress.is_whole:
            stream.finish()
        else:
            context.parts.metrics.broken_streams.inc()
            told = answer_for(error)
            stream.end(openai.error_body(str(error), type=told.type, code=told.code))
        return
    if delivered is not None:
        dispatcher.told(call, routed, delivered)
    stream.end()


def may_go_on(stream: ClientStream, progress: Progress) -> bool:
    """After a break: whether what the client has is known to the token, and more is to come."""
    if not stream.events.begun and stream.events.between_events:
        return True
    return bool(progress.shown) and stream.events.between_events and not progress.is_whole


def answer_headers(context: Context, routed: Routed) -> dict[str, str]:
    given, found = routed.answer.headers, own_headers(context)
    for name in PASSED_ON:
        if name in given:
            found[name] = given[name]
    return found


def own_headers(context: Context) -> dict[str, str]:
    trace = context.trace
    found = decision_headers(trace.considered)
    found[headers.REQUEST_ID] = trace.request_id
    return found
