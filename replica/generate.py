"""The endpoints that generate. `generate` is the path of a request, step by step."""

import re
import secrets
import time
from collections.abc import Sequence

from aiohttp import web

from replica.admission import refusal
from replica.answer.chat import ChatFormat
from replica.answer.choice import Choice
from replica.answer.completion import CompletionFormat
from replica.answer.format import DONE_EVENT, AnswerFormat, Shown
from replica.answer.usage import usage_of
from replica.choices import make_choices
from replica.protocol import headers, openai
from replica.protocol.openai import GenerateRequest, error_body
from replica.protocol.records import ReplicaState
from replica.protocol.strict import RequestError
from replica.sequence import FinishReason
from replica.serving import SERVING, Refused, Serving
from replica.worker import RequestStream

_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


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
    choices = await make_choices(serving, request, lambda count: _request_id(http, serving, count))
    _admit(serving, sum(len(choice.sequence.prompt) for choice in choices[:: request.n]))
    request_id = choices[0].sequence.id
    form = shape(request_id, serving.text.name, int(time.time()), _shown(request), serving.names)
    if http.headers.get(headers.TRACE) == "1":
        serving.traces.open(request_id)
    answer = Answer(serving, choices)
    received = time.monotonic()
    outcome = "aborted"
    try:
        touched = await answer.next()
        usage = usage_of(choices, request.n)
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        serving.metrics.observe_first_token(time.monotonic() - received, usage["prompt_tokens"], cached)
        answer_headers = {
            headers.REQUEST_ID: request_id,
            headers.REPLICA: serving.replica_id,
            headers.DELIVERED_TOKENS: str(cached),
        }
        if request.stream:
            response = await _stream(http, answer, form, touched, answer_headers)
        else:
            response = await _whole(answer, form, answer_headers)
        outcome = str(choices[0].finish_reason)
        return response
    finally:
        answer.close()
        serving.traces.close(request_id)
        serving.metrics.observe_end(outcome)


class Answer:
    """The choices of a request while the engine works on them. Close it in `finally`."""

    def __init__(self, serving: Serving, choices: Sequence[Choice]) -> None:
        """Raises EngineCrashed."""
        self.choices = choices
        self._by_id = {choice.sequence.id: choice for choice in choices}
        self._open = len(choices)
        self._worker = serving.worker
        self._stream: RequestStream = serving.worker.submit([choice.sequence for choice in choices])

    @property
    def is_complete(self) -> bool:
        return self._open == 0

    async def next(self) -> list[Choice]:
        """Waits for tokens; the choices that have got some. Raises EngineCrashed, ConstraintFailed."""
        touched: dict[int, Choice] = {}
        for output in await self._stream.next():
            choice = self._by_id[output.sequence.id]
            if choice.finish_reason is not None:
                continue
            if output.finish_reason is FinishReason.ERROR:
                raise ConstraintFailed
            touched[choice.index] = choice
            if choice.push(output):
                self._open -= 1
                if output.finish_reason is None:
                    self._worker.abort(choice.sequence)
        return list(touched.values())

    def close(self) -> None:
        self._worker.close(self._stream)


async def _stream(
    http: web.Request, answer: Answer, form: AnswerFormat, touched: list[Choice], answer_headers: dict[str, str]
) -> web.StreamResponse:
    response = web.StreamResponse(headers=answer_headers)
    response.content_type = "text/event-stream"
    response.headers["cache-control"] = "no-cache, no-transform"
    await response.prepare(http)
    try:
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


def _admit(serving: Serving, prompt_tokens: int) -> None:
    """Raises Refused."""
    if serving.state is ReplicaState.DRAINING:
        raise Refused("this replica is draining")
    refused = refusal(serving.worker.load, serving.queue, serving.worker.status.cost, prompt_tokens)
    if refused is not None:
        raise Refused(refused.message, refused.retry_after_s)


def _request_id(http: web.Request, serving: Serving, num_choices: int) -> str:
    """The one given, unless another request has it, or an id that a choice of this one would get."""
    given = http.headers.get(headers.REQUEST_ID, "")
    ids = [given, *(f"{given}-{index}" for index in range(1, num_choices))]
    return given if _REQUEST_ID.fullmatch(given) and not any(map(serving.worker.knows, ids)) else secrets.token_hex(16)


def _shown(request: GenerateRequest) -> Shown:
    usage = request.stream and request.stream_options.include_usage
    return Shown(
        n=request.n,
        logprobs=request.num_logprobs is not None,
        token_ids=request.return_token_ids,
        usage=usage,
        usage_in_chunks=usage and request.stream_options.continuous_usage_stats,
    )
