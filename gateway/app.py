"""Composition root: what the gateway is made of, what lives how long, and how every error looks."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry

from gateway import admin, cors, dry_run, handlers, introspect, policies, tokenize
from gateway.access import keyed, operator, public
from gateway.access_log import AccessLog, Answered
from gateway.addresses import AddressList
from gateway.config import GatewayConfig
from gateway.dispatch import Dispatcher
from gateway.edge import CLIENT_GONE, Failure, guarded
from gateway.errors import StartError
from gateway.fleet import Fleet
from gateway.hindsight import Hindsight
from gateway.hold.desk import FrontDesk
from gateway.identity import Identity
from gateway.index.factory import make_index
from gateway.index.reader import IndexReader
from gateway.intents.outbox import Outbox
from gateway.intents.publisher import IntentPublisher
from gateway.keys import (
    ANSWERED,
    BUDGET,
    CLOCK,
    CONFIG,
    CONTEXT_LIMIT,
    DISPATCHER,
    FLEET,
    GATE,
    INDEX,
    LIFECYCLE,
    LIVE,
    METRICS,
    OBSERVER,
    PROBER,
    RECORDER,
    ROUTER,
    SHADOW,
    TEXT,
    TOKENIZER,
    TRACES,
    UPSTREAM,
    ContextLimit,
    Lifecycle,
    Live,
)
from gateway.metrics import Metrics
from gateway.observer import Observer
from gateway.openapi import handler as openapi
from gateway.probes import Prober
from gateway.recording.recorder import Recorder, TraceWriter
from gateway.records_gate import RecordsGate
from gateway.reload import RELOADER, Reloader, public_prompts, read_key_set
from gateway.rescue import rescue
from gateway.router import Router
from gateway.routing.native.library import the_library
from gateway.routing.registry import make_policy
from gateway.routing.seen import SeenBlocks
from gateway.routing.shadow import Shadow
from gateway.tenants.gatekeeper import Gatekeeper
from gateway.tokens import PromptTokenizer
from gateway.traces import Traces
from gateway.upstream import RetryBudget, Upstream
from gateway.wire import Wire
from replica.protocol.otel import open_sink
from replica.protocol.records import Keys
from replica.protocol.redis_url import parse_redis_url
from replica.protocol.text import ModelText

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(
    config: GatewayConfig,
    text: ModelText,
    *,
    registry: CollectorRegistry | None = None,
    clock: Callable[[], float] = time.monotonic,
    load: Callable[[], GatewayConfig] | None = None,
) -> web.Application:
    """The application, not started. Run it with `handler_cancellation=True`: a client that leaves must cancel its
    handler, which closes the connection to the replica, which then aborts. `load` reads the settings again, for changes
    at run time; without it only the files that they name are read again.

    Raises UnknownPolicy, PolicyFileError, KeyFileError or ConfigError."""
    app = web.Application(client_max_size=config.body_limit, middlewares=[outermost, cors.options])
    app[CONFIG], app[LIVE], app[TEXT], app[CLOCK] = config, Live(config), text, clock
    app[GATE] = Gatekeeper(read_key_set(config), clock)
    app[LIFECYCLE] = Lifecycle(started_at=int(time.time()))
    app[METRICS] = Metrics(registry or CollectorRegistry())
    app[TRACES] = Traces()
    app[openapi.BODY] = {}
    app[TOKENIZER] = PromptTokenizer(text, config.tokenise_threads)
    app[TOKENIZER].public = public_prompts(app[TOKENIZER], config)
    identity = Identity.of(text, app[TOKENIZER].encoder.encode)
    app[FLEET] = Fleet(identity)
    app[CONTEXT_LIMIT] = ContextLimit(app[FLEET], text.max_context)
    app[INDEX] = make_index(config.index_max_blocks)
    chosen = policies.chosen(config)
    outbox = Outbox(secrets.token_hex(8), app[METRICS].intents_dropped)
    app[ROUTER] = Router(app[FLEET], app[INDEX], make_policy(chosen.policy), outbox)
    app[SHADOW] = Shadow(make_policy(chosen.shadow) if chosen.shadow else None)
    app[BUDGET] = RetryBudget(config.retry_budget, clock)
    app.cleanup_ctx.extend([tokenizer, observer, recorder, upstream, rescuer])
    if config.redis_url:
        app.cleanup_ctx.extend([reader, intents])
    if config.upstreams:
        app[PROBER] = Prober(config, identity, text.max_context, app[FLEET], app[INDEX])
        app.cleanup_ctx.append(prober)
    app[RELOADER] = Reloader(app, load or (lambda: app[LIVE].config))
    app.cleanup_ctx.extend([policy_file, reloading])
    app.on_response_prepare.append(cors.add_headers)
    app.on_shutdown.append(drain)
    app.add_routes(
        [
            *(web.post(path, public(handlers.on_aiohttp)) for path in handlers.PARSERS),
            web.post("/tokenize", keyed(tokenize.tokenize)),
            web.post("/detokenize", keyed(tokenize.detokenize)),
            web.get("/v1/models", keyed(introspect.models)),
            web.get("/v1/models/{model:.+}", keyed(introspect.model)),
            web.get("/openapi.json", keyed(openapi.openapi)),
            web.get("/health", introspect.health),
            web.get("/ready", introspect.ready),
            web.get("/metrics", operator(introspect.metrics)),
            web.get("/replicas", operator(introspect.replicas)),
            web.get("/route/explain/{request_id}", operator(introspect.explain)),
            web.post("/route/dry-run", operator(dry_run.dry_run)),
            web.get("/route/shadow", operator(dry_run.shadow_table)),
            web.get("/trace/{request_id}", operator(introspect.trace)),
            web.post("/admin/policy", operator(admin.set_policy, changes=True)),
        ]
    )
    return app


async def tokenizer(app: web.Application) -> AsyncIterator[None]:
    yield
    app[TOKENIZER].close()


async def observer(app: web.Application) -> AsyncIterator[None]:
    config = app[CONFIG]
    try:
        access_log = AccessLog(config.access_log, app[METRICS].unlogged)
    except OSError as error:
        raise StartError(f"--access-log: {config.access_log} can't be written: {error.strerror}") from error
    sink = open_sink(config.otlp_endpoint, "ryokan-gateway", app[ROUTER].outbox.gateway)
    app[OBSERVER] = Observer(app[METRICS], access_log, sink)
    app[OBSERVER].start()
    try:
        yield
    finally:
        await asyncio.to_thread(app[OBSERVER].close)


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
        metrics, seen = app[METRICS], SeenBlocks(library=the_library())
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
            app[OBSERVER],
            FrontDesk(app[ROUTER], app[CONFIG].bounds),
            app[CONFIG].timeouts.first_byte_s,
        )
        yield


async def rescuer(app: web.Application) -> AsyncIterator[None]:
    async with running(rescue(app[FLEET], app[UPSTREAM].pool), "rescue"):
        yield


async def reader(app: web.Application) -> AsyncIterator[None]:
    config = app[CONFIG]
    url, keys = parse_redis_url(config.redis_url), Keys(config.fleet)
    index_reader = IndexReader(
        lambda: Wire(url, keys),
        app[INDEX],
        app[FLEET],
        app[METRICS],
        on_fleet=app[DISPATCHER].fleet_changed,
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


async def prober(app: web.Application) -> AsyncIterator[None]:
    """Watches the upstreams that tell nothing of themselves."""
    probing = app[PROBER].run(app[DISPATCHER].fleet_changed, app[CLOCK])
    async with running(probing, "prober"):
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


async def reloading(app: web.Application) -> AsyncIterator[None]:
    async with running(app[RELOADER].run(), "reload"):
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
    leave_by = app[LIFECYCLE].leave_by
    await app[BUDGET].idle(app[CLOCK]() + app[LIVE].config.timeouts.grace_s if leave_by is None else leave_by)
    app[UPSTREAM].close()


@web.middleware
async def outermost(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns every error into OpenAI's shape, and counts and logs every answer but the hot routes', which do so
    themselves."""
    status, code, began = CLIENT_GONE, None, request.app[CLOCK]()
    try:
        answer = await guarded(handler(request), lambda: None)
        code = answer.code if isinstance(answer, Failure) else None
        response = _response(answer) if isinstance(answer, Failure) else answer
        status = response.status
        return response
    finally:
        if ANSWERED not in request:
            _observe(request, status, code, request.app[CLOCK]() - began)


def _observe(request: web.Request, status: int, code: str | None, took_s: float) -> None:
    resource = request.match_info.route.resource
    endpoint = "unmatched" if resource is None else resource.canonical
    request_id = handlers.given_id(request.headers)
    answered = Answered(request.method, request.path, endpoint, status, took_s, request_id, code)
    request.app[OBSERVER].answered(answered, None, request.app[ROUTER].policy.name)


def _response(failure: Failure) -> web.Response:
    return web.Response(body=failure.body, status=failure.status, headers=failure.headers)
