"""The replica's HTTP: OpenAI's routes, so that it also serves alone, and what gateways and people need to run it."""

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from replica.answer import AnswerFormat, AnswerText, usage_of
from replica.metrics import ReplicaMetrics
from replica.protocol import headers, openai
from replica.protocol.hashing import namespace_hash
from replica.protocol.openai import ChatRequest, CompletionRequest, RequestError
from replica.protocol.records import ReplicaState
from replica.protocol.text import ModelText, TemplateError
from replica.sequence import SamplingParams, Sequence
from replica.trace import TraceLog
from replica.worker import EngineCrashed, EngineWorker, RequestStream

MAX_BODY_BYTES = 16 * 2**20
"""Twice the gateway's, since token ids as JSON may be longer than the text they stand for."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_RETRY_AFTER_S = "1"


@dataclass(slots=True)
class Serving:
    """What the handlers share."""

    text: ModelText
    worker: EngineWorker
    metrics: ReplicaMetrics
    traces: TraceLog
    replica_id: str
    max_context: int
    max_waiting: int
    state: ReplicaState = ReplicaState.READY

    @property
    def namespace(self) -> int:
        return namespace_hash(model=self.text.model_fingerprint, tokenizer=self.text.tokenizer_fingerprint)


SERVING = web.AppKey("serving", Serving)


class Refused(Exception):
    """Not now, not here: another replica may take the request."""


class UnknownModel(Exception):
    """The request names a model that isn't served here."""


def make_app(serving: Serving) -> web.Application:
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors])
    app[SERVING] = serving
    app.add_routes(
        [
            web.post("/v1/chat/completions", chat_completions),
            web.post("/v1/completions", completions),
            web.get("/v1/models", models),
            web.get("/health", health),
            web.get("/ready", ready),
            web.get("/metrics", metrics),
            web.get("/trace/{request_id}", trace),
            web.post("/drain", drain),
            web.post("/cache/reset", reset_cache),
        ]
    )
    return app


async def chat_completions(http: web.Request) -> web.StreamResponse:
    serving = http.app[SERVING]
    request = openai.parse_chat(await http.read())
    prompt = request.prompt_token_ids
    if prompt is None:
        prompt = await asyncio.to_thread(_chat_tokens, serving.text, request)
    return await _complete(http, serving, request, prompt, chat=True)


async def completions(http: web.Request) -> web.StreamResponse:
    serving = http.app[SERVING]
    request = openai.parse_completion(await http.read())
    prompt = request.prompt_token_ids
    if prompt is None:
        prompt = await asyncio.to_thread(_completion_tokens, serving.text, request)
    return await _complete(http, serving, request, prompt, chat=False)


async def _complete(
    http: web.Request, serving: Serving, request: ChatRequest | CompletionRequest, prompt: list[int], chat: bool
) -> web.StreamResponse:
    """Nothing is sent before the first token, so that whatever fails until then has a status of its own."""
    _admit(serving)
    if request.model != serving.text.name:
        raise UnknownModel(f"the model {request.model!r} does not exist; this replica serves {serving.text.name!r}")
    sequence = _sequence(http, serving, request, prompt)
    answer = AnswerText(serving.text, request.stop, request.min_tokens)
    form = AnswerFormat(
        chat, sequence.id, serving.text.name, int(time.time()), request.stream and request.stream_options.include_usage
    )
    if http.headers.get(headers.TRACE) == "1":
        serving.traces.open(sequence.id)
    received = time.monotonic()
    outcome = "aborted"
    stream = serving.worker.submit(sequence)
    try:
        first = answer.push(await stream.next())
        serving.metrics.observe_first_token(time.monotonic() - received, len(prompt), sequence.num_cached)
        if request.stream:
            response = await _stream(http, serving, stream, answer, form, first)
        else:
            response = await _whole(serving, stream, answer, form, first)
        outcome = str(answer.finish_reason)
        return response
    finally:
        serving.worker.close(stream)
        serving.traces.close(sequence.id)
        serving.metrics.observe_end(outcome)


async def _stream(
    http: web.Request, serving: Serving, stream: RequestStream, answer: AnswerText, form: AnswerFormat, first: str
) -> web.StreamResponse:
    response = web.StreamResponse(headers=_answer_headers(serving, stream.sequence))
    response.content_type = "text/event-stream"
    response.headers["cache-control"] = "no-cache, no-transform"
    await response.prepare(http)
    text, silent = first, True
    while True:
        if text:
            await response.write(form.chunk(text, silent))
            silent = False
        if answer.finish_reason is not None:
            break
        text = answer.push(await stream.next())
    usage = usage_of(stream.sequence, answer.num_tokens)
    await response.write(form.last_chunks(answer.finish_reason, usage, silent))
    await response.write_eof()
    return response


async def _whole(
    serving: Serving, stream: RequestStream, answer: AnswerText, form: AnswerFormat, first: str
) -> web.Response:
    parts = [first]
    while answer.finish_reason is None:
        parts.append(answer.push(await stream.next()))
    body = form.whole("".join(parts), answer.finish_reason, usage_of(stream.sequence, answer.num_tokens))
    return web.Response(body=body, content_type="application/json", headers=_answer_headers(serving, stream.sequence))


def _admit(serving: Serving) -> None:
    if serving.state is ReplicaState.DRAINING:
        raise Refused("this replica is draining")
    if serving.worker.status.load.waiting >= serving.max_waiting:
        raise Refused("this replica's queue is full")


def _sequence(
    http: web.Request, serving: Serving, request: ChatRequest | CompletionRequest, prompt: list[int]
) -> Sequence:
    """Raises RequestError."""
    if not prompt:
        raise RequestError("the prompt has no tokens", param="prompt")
    if not all(0 <= token < serving.text.vocab_size for token in prompt):
        raise RequestError(f"token ids must lie between 0 and {serving.text.vocab_size - 1}", param="prompt")
    if request.max_new_tokens is not None and request.min_tokens > request.max_new_tokens:
        raise RequestError("min_tokens is larger than max_tokens", param="min_tokens", code="invalid_value")
    limit = openai.output_limit(len(prompt), request.max_new_tokens, serving.max_context)
    seed = secrets.randbits(63) if request.seed is None else request.seed
    params = SamplingParams(
        max_tokens=limit,
        temperature=request.temperature,
        top_p=request.top_p,
        seed=seed,
        stop_token_ids=frozenset() if request.ignore_eos else serving.text.stop_token_ids,
        min_tokens=request.min_tokens,
    )
    given = http.headers.get(headers.REQUEST_ID, "")
    request_id = given if _REQUEST_ID.fullmatch(given) and not serving.worker.knows(given) else secrets.token_hex(16)
    return Sequence(request_id, prompt, params, serving.namespace)


def _chat_tokens(text: ModelText, request: ChatRequest) -> list[int]:
    return text.encode_chat(text.render([message.for_template() for message in request.messages]))


def _completion_tokens(text: ModelText, request: CompletionRequest) -> list[int]:
    prompt = request.single_prompt
    return text.encode_plain(prompt) if isinstance(prompt, str) else list(prompt or [])


def _answer_headers(serving: Serving, sequence: Sequence) -> dict[str, str]:
    return {
        headers.REQUEST_ID: sequence.id,
        headers.REPLICA: serving.replica_id,
        headers.DELIVERED_TOKENS: str(sequence.num_cached),
    }


async def models(http: web.Request) -> web.Response:
    serving = http.app[SERVING]
    model = {"id": serving.text.name, "object": "model", "created": 0, "owned_by": "ryokan"}
    return _json({"object": "list", "data": [model | {"max_model_len": serving.max_context}]})


async def health(http: web.Request) -> web.Response:
    crashed = http.app[SERVING].worker.crashed.is_set()
    return _json({"status": "crashed" if crashed else "ok"}, status=500 if crashed else 200)


async def ready(http: web.Request) -> web.Response:
    serving = http.app[SERVING]
    is_ready = serving.state is ReplicaState.READY and not serving.worker.crashed.is_set()
    return _json({"state": serving.state}, status=200 if is_ready else 503)


async def metrics(http: web.Request) -> web.Response:
    serving = http.app[SERVING]
    return web.Response(
        body=serving.metrics.render(serving.worker.status), headers={"content-type": "text/plain; version=0.0.4"}
    )


async def trace(http: web.Request) -> web.Response:
    timeline = http.app[SERVING].traces.get(http.match_info["request_id"])
    if timeline is None:
        raise web.HTTPNotFound(text="no timeline of this request is kept")
    return _json(timeline)


async def drain(http: web.Request) -> web.Response:
    serving = http.app[SERVING]
    serving.state = ReplicaState.DRAINING
    return _json({"state": serving.state, "requests": serving.worker.num_requests})


async def reset_cache(http: web.Request) -> web.Response:
    if not await http.app[SERVING].worker.reset_cache():
        raise web.HTTPConflict(text="requests are running; the cache can be reset only when idle")
    return _json({"status": "reset"})


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Failures from anywhere below as OpenAI's error object."""
    try:
        return await handler(request)
    except RequestError as error:
        return _error(400, str(error), "invalid_request_error", error.param, error.code)
    except TemplateError as error:
        return _error(400, str(error), "invalid_request_error", "messages")
    except UnknownModel as error:
        return _error(404, str(error), "invalid_request_error", "model", "model_not_found")
    except Refused as error:
        return _error(503, str(error), "unavailable", code="replica_unavailable", retry_after=True)
    except EngineCrashed as error:
        return _error(500, str(error), "server_error", code="engine_crashed")
    except web.HTTPException as error:
        generic = f"{error.status}: {error.reason}"
        message = f"{error.reason}: {request.method} {request.path}" if error.text in (None, generic) else error.text
        return _error(error.status, message or error.reason, "invalid_request_error")


def _error(
    status: int, message: str, kind: str, param: str | None = None, code: str | None = None, retry_after: bool = False
) -> web.Response:
    return web.Response(
        status=status,
        body=openai.error_body(message, type=kind, param=param, code=code),
        content_type="application/json",
        headers={"retry-after": _RETRY_AFTER_S} if retry_after else None,
    )


def _json(value: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")
