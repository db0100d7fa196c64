"""Composition root: what the gateway is made of, what lives how long, and how every error looks."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry

from gateway import admin, dry_run, handlers, introspect, policies, tokenize
from gateway.addresses import AddressList
from gateway.config import GatewayConfig
from gateway.dispatch import Dispatcher
from gateway.errors import INTERNAL, Answer, GatewayError, StartError, answer_for
from gateway.explain import decision_headers
from gateway.fleet import Fleet
from gateway.hindsight import Hindsight
from gateway.identity import Identity
from gateway.index.factory import make_index
from gateway.index.reader import IndexReader
from gateway.intents.outbox import Outbox
from gateway.intents.publisher import IntentPublisher
from gateway.keys import (
    BUDGET,
    CLOCK,
    CONFIG,
    DISPATCHER,
    FLEET,
    INDEX,
    LIFECYCLE,
    METRICS,
    RECORDER,
    ROUTER,
    SHADOW,
    TEXT,
    TOKENIZER,
    TRACE,
    TRACES,
    UPSTREAM,
    Lifecycle,
)
from gateway.metrics import Metrics
from gateway.recording.recorder import Recorder, TraceWriter
from gateway.records_gate import RecordsGate
from gateway.router import Router
from gateway.routing.registry import make_policy
from gateway.routing.seen import SeenBlocks
from gateway.routing.shadow import Shadow
from gateway.tokens import PromptTokenizer
from gateway.traces import Traces
from gateway.upstream import RetryBudget, Upstream
from gateway.wire import Wire
from replica.protocol import headers
from replica.protocol.openai import RequestError, error_body
from replica.protocol.records import Keys
from replica.protocol.redis_url import parse_redis_url
from replica.protocol.text import ModelText

log = logging.getLogger(__name__)

CLIENT_GONE = 499
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(
    config: GatewayConfig,
    text: ModelText,
    *,
    registry: CollectorRegistry | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> web.Application:
    """The application, not started. Run it with `handler_cancellation=True`: a client that leaves must cancel its
    handler, which closes the connection to the replica, which then aborts. Raises UnknownPolicy or PolicyFileError."""
    app = web.Application(client_max_size=config.body_limit, middlewares=[outermost])
    app[CONFIG], app[TEXT], app[CLOCK] = config, text, clock
    app[LIFECYCLE] = Lifecycle(started_at=int(time.time()))
    app[METRICS] = Metrics(registry or CollectorRegistry())
    app[TRACES] = Traces()
    app[TOKENIZER] = PromptTokenizer(text, config.tokenise_threads)
    app[FLEET] = Fleet(Identity.of(text, app[TOKENIZER].encoder.encode))
    app[INDEX] = make_index(config.index_max_blocks)
    chosen = policies.chosen(config)
    outbox = Outbox(secrets.token_hex(8), app[METRICS].intents_dropped)
    app[ROUTER] = Router(app[FLEET], app[INDEX], make_policy(chosen.policy), outbox)
    app[SHADOW] = Shadow(make_policy(chosen.shadow) if chosen.shadow else None)
    app[BUDGET] = RetryBudget(config.retry_budget, clock)
    app.cleanup_ctx.extend([tokenizer, recorder, upstream, reader, intents, policy_file])
    app.on_shutdown.append(drain)
    app.add_routes(
        [
            web.post("/v1/chat/completions", handlers.chat_completions),
            web.post("/v1/completions", handlers.completions),
            web.post("/tokenize", tokenize.tokenize),
            web.post("/detokenize", tokenize.detokenize),
            web.get("/v1/models", introspect.models),
            web.get("/v1/models/{model:.+}", introspect.model),
            web.get("/health", introspect.health),
            web.get("/ready", introspect.ready),
            web.get("/metrics", introspect.metrics),
            web.get("/replicas", introspect.replicas),
            web.get("/route/explain/{request_id}", introspect.explain),
            web.post("/route/dry-run", dry_run.dry_run),
            web.get("/route/shadow", dry_run.shadow_table),
            web.get("/trace/{request_id}", introspect.trace),
            web.post("/admin/policy", admin.set_policy),
        ]
    )
    return app


async def tokenizer(app: web.Application) -> AsyncIterator[None]:
    yield
    app[TOKENIZER].close()


async def recorder(app: web.Application) -> AsyncIterator[None]:
    config = app[CONFIG]
    if config.record is None:
        app[RECORDER] = Recorder(None, app[CLOCK])
        yield
        return
    try:
        writer = TraceWriter(config.record, config.record_max_bytes, app[CLOCK](), app[METRICS])
    except OSError as error:
        raise StartError(f"--record: {config.record} can't be written: {error.strerror}") from error
    app[RECORDER] = Recorder(writer, app[CLOCK])
    writer.start()
    try:
        yield
    finally:
        await asyncio.to_thread(writer.close)


async def upstream(app: web.Application) -> AsyncIterator[None]:
    async with Upstream(app[CONFIG].timeouts) as session:
        metrics, seen = app[METRICS], SeenBlocks()
        hindsight = Hindsight(introspect.model_name(app), app[FLEET].compatible, metrics, app[SHADOW], seen)
        app[UPSTREAM] = session
        app[DISPATCHER] = Dispatcher(
            app[ROUTER],
            session,
            app[BUDGET],
            app[TRACES],
            metrics,
            hindsight,
            app[CLOCK],
            app[CONFIG].timeouts.queue_s,
        )
        yield


async def reader(app: web.Application) -> AsyncIterator[None]:
    config = app[CONFIG]
    url, keys = parse_redis_url(config.redis_url), Keys(config.fleet)
    index_reader = IndexReader(
        lambda: Wire(url, keys),
        app[INDEX],
        app[FLEET],
        app[METRICS],
        on_fleet=app[DISPATCHER].arrivals.notify,
        clock=app[CLOCK],
        gate=RecordsGate(keys, config.signer, AddressList(config.replica_networks)),
        on_intents=lambda record, now: app[METRICS].intents_received(app[ROUTER].heard(record, now)),
    )
    async with running(index_reader.run(), "index reader"):
        yield


async def intents(app: web.Application) -> AsyncIterator[None]:
    """Tells the fleet's other gateways where requests go."""
    config = app[CONFIG]
    url, keys = parse_redis_url(config.redis_url), Keys(config.fleet)
    publisher = IntentPublisher(
        lambda: Wire(url, keys, config.signer), app[ROUTER].outbox, app[METRICS], clock=app[CLOCK]
    )
    async with running(publisher.run(), "intents"):
        yield


async def policy_file(app: web.Application) -> AsyncIterator[None]:
    path = app[CONFIG].policy_file
    if path is None:
        yield
        return

    def change(names: policies.Names) -> None:
        policies.use(names, app[ROUTER], app[SHADOW])

    async with running(policies.follow(path, change), "policy file"):
        yield


@contextlib.asynccontextmanager
async def running(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def drain(app: web.Application) -> None:
    """Streams in flight go on for the grace time; what is left then is cut, and its clients get an error event."""
    app[LIFECYCLE].draining = True
    await app[BUDGET].idle(app[CLOCK]() + app[CONFIG].timeouts.grace_s)
    await app[UPSTREAM].close()


@web.middleware
async def outermost(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns every error into OpenAI's shape, and counts every answer."""
    status = CLIENT_GONE
    try:
        response = await _answer(request, handler)
        status = response.status
        return response
    finally:
        resource = request.match_info.route.resource
        endpoint = "unmatched" if resource is None else resource.canonical
        request.app[METRICS].answered(endpoint, request.app[ROUTER].policy.name, status)


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        kind = "server_error" if error.status >= 500 else "invalid_request_error"
        return _error(request, Answer(error.status, kind, None), error.reason, extra=allow)
    except RequestError as error:
        answer = Answer(400, "invalid_request_error", error.code)
        return _error(request, answer, str(error), param=error.param)
    except GatewayError as error:
        return _error(request, answer_for(error), str(error))
    except ConnectionError:
        # The client went away while its answer was being written.
        raise
    except Exception:
        log.exception("request %s failed", request[TRACE].request_id if TRACE in request else "without id")
        return _error(request, INTERNAL, "internal error")


def _error(
    request: web.Request,
    answer: Answer,
    message: str,
    *,
    param: str | None = None,
    extra: dict[str, str] | None = None,
) -> web.Response:
    fields = dict(extra or {})
    if answer.retry_after_s is not None:
        fields["Retry-After"] = str(answer.retry_after_s)
    if TRACE in request:
        fields[headers.REQUEST_ID] = request[TRACE].request_id
        fields |= decision_headers(request[TRACE].considered)
    body = error_body(message, type=answer.type, param=param, code=answer.code)
    return web.Response(body=body, status=answer.status, content_type="application/json", headers=fields)
