"""A completion request with several prompts: each goes its own way, with a trace, a lease and attempts of its own, all
at the same time; the client gets one answer, or the first error."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from gateway.context import Context
from gateway.dispatch import Call
from gateway.edge import CLIENT_GONE, Failure, failure, guarded
from gateway.errors import ReplicaFailed, answer_for
from gateway.explain import decision_headers
from gateway.relay import as_event
from gateway.several.joint import Joint, PartExchange, Reply
from gateway.several.merge import NoAnswer, StreamMerger, merged, merged_headers
from gateway.tenants.meter import Usage
from replica.protocol import headers
from replica.protocol.openai import CompletionRequest, RequestError

MAX_TOKENS = 1 << 20
"""Of all prompts of a request together: their ids and hashes take 12 MiB here."""
ID_MAX = 58
"""Characters of a client's id that its prompts' own begin with: replicas take no more than 64."""


@dataclass(frozen=True, slots=True)
class Single:
    """The path of a request with one prompt, in steps."""

    prepare: Callable[[Context, CompletionRequest], Awaitable[Call]]
    serve: Callable[[Context, Call, Usage | None], Awaitable[None]]
    fail: Callable[[Context, Failure], None]


@dataclass(frozen=True, slots=True)
class _Part:
    context: Context
    exchange: PartExchange
    call: Call


class _Broken(Exception):
    """One prompt has failed, and so have all: by `failure`, made here, by what its replica said, or by an event."""

    def __init__(self, failure: Failure | None, reply: Reply | None) -> None:
        super().__init__()
        self.failure, self.reply = failure, reply

    @property
    def body(self) -> bytes:
        if self.failure is not None:
            return self.failure.body
        return b"" if self.reply is None else self.reply.body


def apart(request: CompletionRequest) -> list[CompletionRequest]:
    """Of one prompt each."""
    return [request.model_copy(update={"prompt": prompt}) for prompt in request.prompts]


async def answer(
    context: Context, requests: list[CompletionRequest], usage: Usage | None, single: Single
) -> Failure | None:
    """Answers, or returns why it can't. `requests` is emptied: what lives as long as the stream keeps no text. `usage`:
    of the request as a whole, in whose place each prompt's own comes.

    Raises RequestError, Limited, and whatever else is wrong before anything is sent."""
    gate, choices = context.parts.gate, requests[0].n
    with gate.several(context.caller, usage, len(requests)) as usages, ExitStack() as streams:
        merger, joint = _joint(context, requests)
        parts = await _prepared(context, requests, joint, single, streams)
        for number, part in enumerate(parts):
            merger.expect(number, part.call.prompt.tokens)
        gate.admit_all(usages, [part.call.prompt.tokens for part in parts])
        if joint is not None:
            joint.opened = True
        broken = await _served(parts, usages, joint, single)
        if joint is not None and (broken is None or joint.begun):
            _end_stream(context, joint, broken)
            return None
        failed = _whole(context, parts, choices) if broken is None else _refusal(context, broken)
        if context.exchange.status != 200:
            gate.refund(usages)
        return failed


def _joint(context: Context, requests: Sequence[CompletionRequest]) -> tuple[StreamMerger, Joint | None]:
    parts, first = context.parts, requests[0]
    context.trace.prompts = tuple(f"{context.trace.request_id[:ID_MAX]}-p{number}" for number in range(len(requests)))
    merger = StreamMerger(len(requests), first.n, lambda given: _renamed(context, given))
    if not first.stream:
        return merger, None

    def reply_headers() -> dict[str, str]:
        decided = [parts.traces.get(name) for name in context.trace.prompts]
        found = merged_headers([decision_headers(trace.considered) for trace in decided if trace is not None])
        return {**found, headers.REQUEST_ID: context.trace.request_id}

    now, keep_alive_s = asyncio.get_running_loop().time, parts.live.config.timeouts.keep_alive_s
    return merger, Joint(context.exchange, merger, reply_headers, now, keep_alive_s)


def _renamed(context: Context, given: str) -> str:
    """An answer's id: it ends with its request's."""
    trace = context.trace
    for name in trace.prompts:
        if given.endswith(name):
            return given.removesuffix(name) + trace.request_id
    return given


async def _prepared(
    context: Context, requests: list[CompletionRequest], joint: Joint | None, single: Single, streams: ExitStack
) -> list[_Part]:
    """All of them are looked at before the first one is sent."""
    parts: list[_Part] = []
    tokens = 0
    while requests:
        exchange = PartExchange(len(parts), context.exchange, joint)
        part = _context(context, len(parts), exchange)
        streams.callback(_close, part)
        try:
            call = await single.prepare(part, requests.pop(0))
        except RequestError as error:
            about = str(error).removeprefix("prompt: ")
            raise RequestError(f"prompt[{len(parts)}]: {about}", error.param, error.code) from error
        tokens += call.prompt.tokens
        if tokens > MAX_TOKENS:
            raise RequestError(f"prompt: all prompts together may have {MAX_TOKENS} tokens; send fewer", "prompt")
        parts.append(_Part(part, exchange, call))
        # Short prompts are tokenised on the event loop, which others need as well.
        await asyncio.sleep(0)
    return parts


def _context(context: Context, number: int, exchange: PartExchange) -> Context:
    parts, whole = context.parts, context.trace
    trace = parts.traces.begin(whole.prompts[number], whole.received_at)
    trace.model, trace.tenant, trace.span = whole.model, whole.tenant, parts.observer.below(whole.span)
    return Context(parts, exchange, trace, context.pool, context.caller)


def _close(part: Context) -> None:
    if part.stream is not None:
        part.stream.close()


async def _served(
    parts: Sequence[_Part], usages: Sequence[Usage | None], joint: Joint | None, single: Single
) -> _Broken | None:
    """The first failure ends them all."""
    first: Exception | None = None
    try:
        async with asyncio.TaskGroup() as group:
            for part, usage in zip(parts, usages, strict=True):
                group.create_task(_one(part, usage, joint, single))
    except* (_Broken, ConnectionError) as failed:
        first = failed.exceptions[0]
    if first is None or isinstance(first, _Broken):
        return first
    raise first


async def _one(part: _Part, usage: Usage | None, joint: Joint | None, single: Single) -> None:
    """Raises _Broken."""
    context, exchange = part.context, part.exchange
    status, code = CLIENT_GONE, None
    try:
        failure = await guarded(single.serve(context, part.call, usage), context.trace)
        if failure is not None:
            single.fail(context, failure)
            code = failure.code
        status, reply = exchange.status, exchange.reply
        if failure is None and reply is not None and reply.status == 200 and joint is not None:
            failure = _unusable(context, "the upstream sent no stream")
        refused = reply is not None and reply.status != 200
        if failure is not None or refused or (joint is not None and joint.broken):
            raise _Broken(failure, reply)
    finally:
        context.parts.observer.ended(context.answered(status, code), context.trace)


def _unusable(context: Context, why: str) -> Failure:
    return failure(context.trace, answer_for(ReplicaFailed(why)), why)


def _whole(context: Context, parts: Sequence[_Part], choices: int) -> Failure | None:
    replies = [part.exchange.reply for part in parts]
    found = [reply for reply in replies if reply is not None]
    try:
        body = merged([reply.body for reply in found], choices, lambda given: _renamed(context, given))
    except NoAnswer as error:
        return _unusable(context, str(error))
    fields = merged_headers([reply.headers for reply in found])
    fields |= {"content-type": "application/json", headers.REQUEST_ID: context.trace.request_id}
    context.exchange.send(200, fields, body)
    return None


def _end_stream(context: Context, joint: Joint, broken: _Broken | None) -> None:
    if broken is None:
        joint.end()
        return
    if not joint.broken:
        # Where it came as an event, it is counted.
        context.parts.metrics.broken_streams.inc()
    joint.break_off(as_event(broken.body))


def _refusal(context: Context, broken: _Broken) -> Failure | None:
    named = {headers.REQUEST_ID: context.trace.request_id}
    if broken.failure is not None:
        return replace(broken.failure, headers={**broken.failure.headers, **named})
    assert broken.reply is not None
    context.exchange.send(broken.reply.status, {**broken.reply.headers, **named}, broken.reply.body)
    return None
