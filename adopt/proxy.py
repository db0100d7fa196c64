"""A replica's HTTP in front of an engine: takes what gateways send, and gives what they expect."""

import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import orjson
from aiohttp import web

from adopt.adapter import Adapter
from adopt.answers import DONE_EVENT, BadAnswer, Reshaper
from adopt.engine import CACHE_RESET, EngineUnreachable
from adopt.requests import engine_request
from adopt.traffic import Ticket
from replica.protocol import headers, openai
from replica.protocol.http import error_response, from_http_exception, json_response
from replica.protocol.openai import GenerateRequest
from replica.protocol.records import ReplicaState
from replica.protocol.strict import RequestError

MAX_BODY_BYTES = 16 * 2**20
MAX_EVENT_BYTES = 16 * 2**20
MAX_FAILURE_BYTES = 1 << 16

_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

ADAPTER = web.AppKey("adapter", Adapter)


class Refused(Exception):
    """Not now, not here: another replica may take the request."""


class EngineBroke(Exception):
    """The engine's answer ended before its end."""


def make_app(adapter: Adapter) -> web.Application:
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors])
    app[ADAPTER] = adapter
    app.add_routes(
        [
            web.post("/v1/chat/completions", chat_completions),
            web.post("/v1/completions", completions),
            web.get("/v1/models", models),
            web.get("/health", health),
            web.get("/ready", ready),
            web.get("/metrics", metrics),
            web.post("/drain", drain),
            web.post("/cache/reset", reset_cache),
        ]
    )
    return app


async def chat_completions(http: web.Request) -> web.StreamResponse:
    return await generate(http, openai.parse_chat(await http.read()))


async def completions(http: web.Request) -> web.StreamResponse:
    return await generate(http, openai.parse_completion(await http.read()))


async def generate(http: web.Request, request: GenerateRequest) -> web.StreamResponse:
    """Nothing is sent before the engine's first token, so that whatever fails until then has a status of its own."""
    adapter = http.app[ADAPTER]
    if adapter.state is ReplicaState.DRAINING:
        raise Refused("this replica is draining" if adapter.draining else "the engine isn't well")
    tells_salts = adapter.stream.tells_salts
    body = engine_request(
        request, adapter.config.engine, adapter.served.model, adapter.max_context, tells_salts=tells_salts
    )
    given = http.headers.get(headers.REQUEST_ID, "")
    request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
    form = Reshaper(request, request_id, adapter.config.model_name, int(time.time()), adapter.text.tool_format)
    prompt = body["prompt"]
    ticket = adapter.traffic.begin(len(prompt), adapter.cached_tokens(prompt, request.cache_salt), adapter.load.waiting)
    # Two clients may choose the same id, and an engine may want each to be one request's alone.
    sent = {"content-type": "application/json", headers.REQUEST_ID: f"{request_id}-{secrets.token_hex(4)}"}
    try:
        async with adapter.session.post(
            f"{adapter.engine.url}/v1/completions", data=orjson.dumps(body), headers=sent
        ) as answer:
            if answer.status != 200:
                return await _failure(answer)
            own = {headers.REQUEST_ID: request_id, headers.REPLICA: adapter.config.id}
            if request.stream:
                return await _stream(http, adapter, answer, form, ticket, own)
            return await _whole(adapter, answer, form, ticket, own)
    except aiohttp.ClientConnectorError as error:
        adapter.set_up(False)
        raise Refused("the engine doesn't answer") from error
    except (aiohttp.ClientError, OSError) as error:
        raise EngineBroke("the engine broke off") from error
    finally:
        adapter.traffic.end(ticket)


async def _whole(
    adapter: Adapter, answer: aiohttp.ClientResponse, form: Reshaper, ticket: Ticket, own: dict[str, str]
) -> web.Response:
    data = await answer.read()
    body = form.whole(data)
    cached = adapter.cached_reported(form.cached_tokens)
    if cached is not None:
        own = own | {headers.DELIVERED_TOKENS: str(cached)}
    return web.Response(body=body, content_type="application/json", headers=own)


async def _stream(
    http: web.Request,
    adapter: Adapter,
    answer: aiohttp.ClientResponse,
    form: Reshaper,
    ticket: Ticket,
    own: dict[str, str],
) -> web.StreamResponse:
    """NOTE: without the header of delivered tokens, which the engines tell only at a stream's end: there we do, too."""
    response = web.StreamResponse(headers=own)
    response.content_type = "text/event-stream"
    response.headers["cache-control"] = "no-cache, no-transform"
    try:
        async for data in _events(answer):
            event = form.event(data)
            if not response.prepared:
                if form.failure is not None:
                    return _engine_error(form.failure)
                adapter.traffic.first_token(ticket)
                await response.prepare(http)
            if event:
                await response.write(event)
        cached = adapter.cached_reported(form.cached_tokens)
        adapter.traffic.delivered(ticket, ticket.cached if cached is None else cached)
        if not response.prepared:
            raise EngineBroke("the engine's answer is empty")
        told = b"" if cached is None else headers.DELIVERED_COMMENT + b"%d\n" % cached
        await response.write(told + DONE_EVENT)
        await response.write_eof()
    except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, EngineBroke, BadAnswer):
        if not response.prepared:
            raise
        # The gateway has to see that this answer is no whole one.
        if http.transport is not None:
            http.transport.abort()
    return response


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The data of server-sent events up to `[DONE]`. Raises EngineBroke where that doesn't come."""
    held = b""
    async for chunk in answer.content.iter_any():
        *events, held = (held + chunk).split(b"\n\n")
        if len(held) > MAX_EVENT_BYTES:
            raise BadAnswer("the engine's answer has an event that is too long")
        for event in events:
            if not event.startswith(b"data:"):
                continue
            data = event[5:].strip()
            if data == b"[DONE]":
                return
            yield data
    raise EngineBroke("the engine's answer ended before its end")


async def _failure(answer: aiohttp.ClientResponse) -> web.Response:
    """The engine's own status and message, as our error object."""
    raw = await answer.content.read(MAX_FAILURE_BYTES)
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = None
    # SGLang's has no envelope.
    return _engine_error(body.get("error", body) if isinstance(body, dict) else body, answer.status)


def _engine_error(error: object, status: int | None = None) -> web.Response:
    """`status`: where the error itself doesn't tell."""
    fields = error if isinstance(error, dict) else {"message": error}
    code = fields.get("code")
    if status is None:
        status = code if isinstance(code, int) and 400 <= code < 600 else 500
    kind = "invalid_request_error" if status < 500 else "server_error"
    message = str(fields.get("message") or f"the engine answered {status}")
    param, code = (None if value is None else str(value) for value in (fields.get("param"), code))
    return error_response(status, message, kind, param, code, retry_after_s=1 if status == 503 else None)


async def models(http: web.Request) -> web.Response:
    adapter = http.app[ADAPTER]
    model = {"id": adapter.config.model_name, "object": "model", "created": 0, "owned_by": str(adapter.config.engine)}
    return json_response({"object": "list", "data": [model | {"max_model_len": adapter.max_context}]})


async def health(http: web.Request) -> web.Response:
    up = http.app[ADAPTER].up
    return json_response({"status": "ok" if up else "engine down"}, status=200 if up else 500)


async def ready(http: web.Request) -> web.Response:
    state = http.app[ADAPTER].state
    return json_response({"state": state}, status=200 if state is ReplicaState.READY else 503)


async def metrics(http: web.Request) -> web.Response:
    """The engine's own."""
    body = await http.app[ADAPTER].engine.get("/metrics")
    return web.Response(body=body, headers={"content-type": "text/plain; version=0.0.4"})


async def drain(http: web.Request) -> web.Response:
    adapter = http.app[ADAPTER]
    adapter.set_draining()
    return json_response({"state": adapter.state, "requests": adapter.traffic.requests})


async def reset_cache(http: web.Request) -> web.Response:
    """NOTE: vLLM has the route only with VLLM_SERVER_DEV_MODE=1, and tells of it only with the step after."""
    adapter = http.app[ADAPTER]
    async with adapter.session.post(adapter.engine.url + CACHE_RESET[adapter.config.engine]) as answer:
        if answer.status != 200:
            return await _failure(answer)
        if b'"success":false' in await answer.read():
            raise web.HTTPConflict(text="requests hold blocks; the cache can be reset only when idle")
    adapter.stream.forget("reset")
    return json_response({"status": "reset"})


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Failures from anywhere below as OpenAI's error object."""
    try:
        return await handler(request)
    except RequestError as error:
        return error_response(400, str(error), "invalid_request_error", error.param, error.code)
    except (Refused, EngineUnreachable) as error:
        return error_response(503, str(error), "unavailable", code="replica_unavailable", retry_after_s=1)
    except (EngineBroke, BadAnswer) as error:
        return error_response(502, str(error), "server_error", code="engine_failed")
    except web.HTTPException as error:
        return from_http_exception(request, error)
