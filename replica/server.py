"""The replica's HTTP: OpenAI's routes, so that it also serves alone, and what gateways and people need to run it."""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from replica.generate import chat_completions, completions
from replica.profile_file import encode_profile
from replica.protocol.http import error_response, from_http_exception, json_response
from replica.protocol.records import ReplicaState
from replica.protocol.strict import RequestError, parse
from replica.protocol.text import TemplateError
from replica.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from replica.protocol.tokenize import detokenize as tokens_to_text
from replica.protocol.tokenize import tokenize as text_to_tokens
from replica.serving import SERVING, Refused, Serving, UnknownModel
from replica.worker import EngineCrashed

MAX_BODY_BYTES = 16 * 2**20
"""Twice the gateway's, since token ids as JSON may be longer than the text they stand for."""


def make_app(serving: Serving) -> web.Application:
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors])
    app[SERVING] = serving
    app.add_routes(
        [
            web.post("/v1/chat/completions", chat_completions),
            web.post("/v1/completions", completions),
            web.post("/tokenize", tokenize),
            web.post("/detokenize", detokenize),
            web.get("/v1/models", models),
            web.get("/health", health),
            web.get("/ready", ready),
            web.get("/metrics", metrics),
            web.get("/profile", profile),
            web.get("/trace/{request_id}", trace),
            web.post("/drain", drain),
            web.post("/cache/reset", reset_cache),
        ]
    )
    return app


async def tokenize(http: web.Request) -> web.Response:
    serving = http.app[SERVING]
    request = parse(TokenizeRequest, await http.read())
    serving.check_model(request.model)
    return json_response(await asyncio.to_thread(text_to_tokens, serving.text, request, serving.max_context))


async def detokenize(http: web.Request) -> web.Response:
    serving = http.app[SERVING]
    request = parse(DetokenizeRequest, await http.read())
    serving.check_model(request.model)
    return json_response(await asyncio.to_thread(tokens_to_text, serving.text, request))


async def models(http: web.Request) -> web.Response:
    serving = http.app[SERVING]
    model = {"id": serving.text.name, "object": "model", "created": 0, "owned_by": "ryokan"}
    return json_response({"object": "list", "data": [model | {"max_model_len": serving.max_context}]})


async def health(http: web.Request) -> web.Response:
    crashed = http.app[SERVING].worker.crashed.is_set()
    return json_response({"status": "crashed" if crashed else "ok"}, status=500 if crashed else 200)


async def ready(http: web.Request) -> web.Response:
    serving = http.app[SERVING]
    is_ready = serving.state is ReplicaState.READY and not serving.worker.crashed.is_set()
    return json_response({"state": serving.state}, status=200 if is_ready else 503)


async def metrics(http: web.Request) -> web.Response:
    serving = http.app[SERVING]
    return web.Response(
        body=serving.metrics.render(serving.worker.status), headers={"content-type": "text/plain; version=0.0.4"}
    )


async def profile(http: web.Request) -> web.Response:
    """The engine's cost model so far, for `--engine timing --profile FILE`."""
    return web.Response(body=encode_profile(http.app[SERVING].profile()), content_type="application/json")


async def trace(http: web.Request) -> web.Response:
    timeline = http.app[SERVING].traces.get(http.match_info["request_id"])
    if timeline is None:
        raise web.HTTPNotFound(text="no timeline of this request is kept")
    return json_response(timeline)


async def drain(http: web.Request) -> web.Response:
    serving = http.app[SERVING]
    serving.drain()
    return json_response({"state": serving.state, "requests": serving.worker.num_requests})


async def reset_cache(http: web.Request) -> web.Response:
    if not await http.app[SERVING].worker.reset_cache():
        raise web.HTTPConflict(text="requests are running; the cache can be reset only when idle")
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
    except TemplateError as error:
        return error_response(400, str(error), "invalid_request_error", "messages")
    except UnknownModel as error:
        return error_response(404, str(error), "invalid_request_error", "model", "model_not_found")
    except Refused as error:
        return error_response(
            503, str(error), "unavailable", code="replica_unavailable", retry_after_s=error.retry_after_s
        )
    except EngineCrashed as error:
        return error_response(500, str(error), "server_error", code="engine_crashed")
    except web.HTTPException as error:
        return from_http_exception(request, error)
