"""The endpoints that generate. `generate` is the path of a request, step by step."""

import asyncio
import random
import re
import secrets
import time
from collections import Counter
from collections.abc import Sequence

from aiohttp import web

from replica.admission import refusal
from replica.answer.chat import ChatFormat
from replica.answer.choice import Choice, Part
from replica.answer.completion import CompletionFormat
from replica.answer.format import DONE_EVENT, AnswerFormat, Shown
from replica.answer.usage import usage_of
from replica.choices import make_choices
from replica.phases import Phases, phase_spans
from replica.protocol import headers, openai
from replica.protocol.openai import GenerateRequest, error_body
from replica.protocol.records import ReplicaState
from replica.protocol.resume import Begun
from replica.protocol.spans import TRACEPARENT, Value, parse_traceparent
from replica.protocol.strict import RequestError
from replica.resume import resume_choices
from replica.sequence import FinishReason
from replica.serving import SERVING, Refused, Serving
from replica.step import UNUSABLE_TOKEN, Output
from replica.worker import EngineCrashed, RequestStream

_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class LogitsFailed(EngineCrashed):
    """Of one request: it goes the way of a crash, and can be tried elsewhere, while the engine serves the others."""

    def __init__(self) -> None:
        super().__init__("the model gave no usable logits for this request")


class ConstraintFailed(RequestError):
    """The grammar of a request became too much on the way."""

    def __init__(self) -> None:
        super().__init__("the grammar takes too long to follow; make it simpler", code="grammar_failed")


async def chat_completions(http: web.Request) -> web.StreamResponse:
    return await generate(http, openai.parse_chat(await http.read()), ChatFormat)


async def completions(http: web.Request) -> web.StreamResponse:
    return await generate(http, openai.parse_completion(await http.read()), CompletionFormat)


async def generate(http: web.Request, request: GenerateRequest, shape: type[AnswerFormat]) -> web.StreamResponse:
    """Nothing is sent before the first token, so that whatever fails until then has a status of its own."""
    serving = http.app[SERVING]
    # Twice, since a prompt that is refused anyway needn't be tokenised.
    _admit(serving, 0)
    serving.check_model(request.model)
    begun = Begun.decode(http.headers.get(headers.RESUMABLE, ""))
    choices = await make_choices(serving, request, lambda count: _request_id(http, serving, count), begun)
    if request.resume is not None:
        await asyncio.to_thread(resume_choices, choices, request.resume, serving.text.vocab_size)
    _admit(serving, sum(len(choice.sequence.tokens) for choice in choices[:: request.n]))
    request_id = choices[0].sequence.id
    form = shape(
        request_id if request.resume is None else request.resume.id,
        serving.text.name,
        int(time.time()) if begun is None else begun.created,
        _shown(request, marks=begun is not None),
        serving.names,
    )
    if http.headers.get(headers.TRACE) == "1":
        serving.traces.open(request_id)
    answer = Answer(serving, choices)
    phases = answer.phases
    outcome = "abort"
    try:
        touched = [] if answer.is_complete else await answer.next()
        usage = usage_of(choices, request.n)
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        phases.prompt_tokens, phases.cached_tokens = usage["prompt_tokens"], cached
        serving.metrics.observe_first_token(answer.ttft_s, usage["prompt_tokens"], cached)
        answer_headers = {
            headers.REQUEST_ID: request_id,
            headers.REPLICA: serving.replica_id,
            headers.DELIVERED_TOKENS: str(cached),
            **({} if begun is None else {headers.RESUMABLE: "1"}),
        }
        if request.stream:
            response = await _stream(http, answer, form, touched, answer_headers)
        else:
            response = await _whole(answer, form, answer_headers)
        outcome = _outcome(choices[0])
        return response
    except (ConstraintFailed, EngineCrashed):
        outcome = "error"
        raise
    finally:
        answer.close()
        serving.traces.close(request_id)
        serving.metrics.observe_end(outcome, phases)
        _trace(serving, http, request_id, phases, outcome)


class Answer:
    """The choices of a request while the engine works on them. Close it in `finally`."""

    def __init__(self, serving: Serving, choices: Sequence[Choice]) -> None:
        """Raises EngineCrashed."""
        self.choices = choices
        self._by_id = {choice.sequence.id: choice for choice in choices}
        # Of an answer that was begun elsewhere some may be at their end.
        unfinished = [choice.sequence for choice in choices if choice.finish_reason is None]
        self._open = len(unfinished)
        self._worker = serving.worker
        self._metrics = serving.metrics
        self._last: dict[str, float] = {}
        """When each choice got its last token."""
        self.phases = Phases(time.monotonic())
        self._stream: RequestStream = serving.worker.submit(unfinished)

    @property
    def is_complete(self) -> bool:
        return self._open == 0

    async def next(self) -> list[Choice]:
        """Waits for tokens; the choices that have got some. Raises EngineCrashed, ConstraintFailed."""
        touched: dict[int, Choice] = {}
        outputs = await self._stream.next()
        self._note(outputs)
        for output in outputs:
            choice = self._by_id[output.sequence.id]
            if choice.finish_reason is not None:
                continue
            if output.finish_reason is FinishReason.ERROR:
                raise LogitsFailed if output.token == UNUSABLE_TOKEN else ConstraintFailed
            touched[choice.index] = choice
            if choice.push(output):
                self._open -= 1
                if output.finish_reason is None:
                    self._worker.abort(choice.sequence)
        return list(touched.values())

    @property
    def ttft_s(self) -> float:
        return (self.phases.first_token or time.monotonic()) - self.phases.received

    def _note(self, outputs: Sequence[Output]) -> None:
        now, phases = time.monotonic(), self.phases
        if phases.first_token is None:
            phases.first_token = now
        phases.last_token = now
        phases.output_tokens += len(outputs)
        for name, tokens in Counter(output.sequence.id for output in outputs).items():
            # Those that came along with the very first have no time before them.
            later = tokens if name in self._last else tokens - 1
            if later:
                self._metrics.observe_tokens(now - self._last.get(name, now), later)
            self._last[name] = now

    def close(self) -> None:
        self.phases.scheduled = self.choices[0].sequence.scheduled_at
        self._worker.close(self._stream)


async def _stream(
    http: web.Request, answer: Answer, form: AnswerFormat, touched: list[Choice], answer_headers: dict[str, str]
) -> web.StreamResponse:
    response = web.StreamResponse(headers=answer_headers)
    response.content_type = "text/event-stream"
    response.headers["cache-control"] = "no-cache, no-transform"
    await response.prepare(http)
    try:
        for choice in answer.choices:
            if choice.finish_reason is not None and not choice.closed and choice not in touched:
                await response.write(form.chunk(choice, Part("", [], []), answer.choices))
        while True:
            parts = [(choice, choice.take()) for choice in touched]
            events = b"".join(form.chunk(choice, part, answer.choices) for choice, part in parts if part is not None)
            if events:
                await response.write(events)
            if answer.is_complete:
                break
            touched = await answer.next()
        await response.write(form.end(answer.choices))
    except ConstraintFailed as error:
        body = error_body(str(error), type="invalid_request_error", code=error.code)
        await response.write(b"data: " + body + b"\n\n" + DONE_EVENT)
    await response.write_eof()
    return response


async def _whole(answer: Answer, form: AnswerFormat, answer_headers: dict[str, str]) -> web.Response:
    while not answer.is_complete:
        await answer.next()
    parts = [part for choice in answer.choices if (part := choice.take()) is not None]
    return web.Response(body=form.whole(answer.choices, parts), content_type="application/json", headers=answer_headers)


def _outcome(choice: Choice) -> str:
    """`error`: its stream ended in one."""
    reason = choice.finish_reason
    return str(reason) if reason in (FinishReason.STOP, FinishReason.LENGTH) else "error"


def _trace(serving: Serving, http: web.Request, request_id: str, phases: Phases, outcome: str) -> None:
    """The phases as spans, below the gateway's or the client's own."""
    if not serving.spans.is_on:
        return
    parent = parse_traceparent(http.headers.get(TRACEPARENT, ""))
    if parent is None or not parent.sampled:
        return
    about: dict[str, Value] = {"ryokan.request_id": request_id, "ryokan.replica": serving.replica_id}
    now = time.monotonic()
    serving.spans.put(phase_spans(phases, parent, about, outcome, now, time.time_ns(), random.getrandbits))


def _admit(serving: Serving, prompt_tokens: int) -> None:
    """Raises Refused."""
    if serving.state is ReplicaState.DRAINING:
        serving.metrics.observe_rejection("draining")
        raise Refused("this replica is draining")
    refused = refusal(serving.worker.load, serving.queue, serving.worker.status.cost, prompt_tokens)
    if refused is not None:
        serving.metrics.observe_rejection("queue_full")
        raise Refused(refused.message, refused.retry_after_s)


def _request_id(http: web.Request, serving: Serving, num_choices: int) -> str:
    """The one given, unless another request has it, or an id that a choice of this one would get."""
    given = http.headers.get(headers.REQUEST_ID, "")
    ids = [given, *(f"{given}-{index}" for index in range(1, num_choices))]
    return given if _REQUEST_ID.fullmatch(given) and not any(map(serving.worker.knows, ids)) else secrets.token_hex(16)


def _shown(request: GenerateRequest, marks: bool) -> Shown:
    usage = request.stream and request.stream_options.include_usage
    return Shown(
        n=request.n,
        logprobs=request.num_logprobs is not None,
        token_ids=request.return_token_ids,
        usage=usage,
        usage_in_chunks=usage and request.stream_options.continuous_usage_stats,
        marks=marks,
    )
