"""Composition root: what the gateway is made of, what lives how long, and how every error looks."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry

from gateway import admin, cors, dry_run, handlers, introspect, policies, tokenize
from gateway.access import keyed, operator, public
from gateway.access_log import AccessLog, Answered
from gateway.addresses import AddressList
from gateway.config import GatewayConfig
from gateway.edge import CLIENT_GONE, Failure, guarded
from gateway.errors import StartError
from gateway.index.reader import IndexReader
from gateway.intents.publisher import IntentPublisher
from gateway.keys import (
    ANSWERED,
    BUDGET,
    CLOCK,
    CONFIG,
    GATE,
    LIFECYCLE,
    LIVE,
    METRICS,
    OBSERVER,
    POOLS,
    RECORDER,
    TRACES,
    UPSTREAM,
    Lifecycle,
    Live,
)
from gateway.make_pool import dispatcher_of, make_pool
from gateway.metrics import Metrics
from gateway.observer import Observer
from gateway.openapi import handler as openapi
from gateway.pools import Pool, Pools
from gateway.recording.recorder import Recorder, TraceWriter
from gateway.records_gate import RecordsGate
from gateway.reload import RELOADER, Reloader, read_key_set
from gateway.rescue import rescue
from gateway.siblings import NO_SIBLINGS, SIBLINGS, Siblings
from gateway.tenants.gatekeeper import Gatekeeper
from gateway.tenants.ledger import Ledger
from gateway.tenants.share import share
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
    texts: Sequence[ModelText],
    *,
    registry: CollectorRegistry | None = None,
    clock: Callable[[], float] = time.monotonic,
    siblings: Siblings = NO_SIBLINGS,
    load: Callable[[], GatewayConfig] | None = None,
) -> web.Application:
    """The application, not started. Run it with `handler_cancellation=True`: a client that leaves must cancel its
    handler, which closes the connection to the replica, which then aborts. `load` reads the settings again, for changes
    at run time; without it only the files that they name are read again. `texts`: of the models that are served, in the
    order of the settings.

    Raises UnknownPolicy, PolicyFileError, KeyFileError or ConfigError."""
    app = web.Application(client_max_size=config.body_limit, middlewares=[outermost, cors.options])
    app[CONFIG], app[LIVE], app[CLOCK] = config, Live(config), clock
    app[GATE] = Gatekeeper(read_key_set(config), clock, shared=bool(siblings.sockets))
    app[SIBLINGS] = siblings
    app[LIFECYCLE] = Lifecycle(started_at=int(time.time()))
    app[METRICS] = metrics = Metrics(registry or CollectorRegistry())
    app[TRACES] = Traces()
    app[openapi.BODY] = {}
    served = zip(config.served, texts, strict=True)
    app[POOLS] = Pools([make_pool(config, each, text, metrics) for each, text in served])
    app[BUDGET] = RetryBudget(config.retry_budget, clock)
    app.cleanup_ctx.extend([tokenizers, observer, recorder, upstream, rescuers])
    if config.redis_url:
        app.cleanup_ctx.extend([readers, intents])
    app.cleanup_ctx.append(probers)
    if config.keys_file is not None and siblings.sockets:
        app.cleanup_ctx.append(sharing)
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


async def tokenizers(app: web.Application) -> AsyncIterator[None]:
    yield
    for pool in app[POOLS]:
        pool.tokenizer.close()


async def observer(app: web.Application) -> AsyncIterator[None]:
    config = app[CONFIG]
    try:
        access_log = AccessLog(config.access_log, app[METRICS].unlogged)
    except OSError as error:
        raise StartError(f"--access-log: {config.access_log} can't be written: {error.strerror}") from error
    sink = open_sink(config.otlp_endpoint, "ryokan-gateway", app[POOLS].first.router.outbox.gateway)
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
    async with Upstream(app[CONFIG].timeouts, app[CONFIG].upstream_keys) as session:
        app[UPSTREAM] = session
        for pool in app[POOLS]:
            pool.dispatcher = dispatcher_of(app, pool)
        yield


async def rescuers(app: web.Application) -> AsyncIterator[None]:
    """Of requests on replicas that hang."""
    async with running(app, "rescue", lambda pool: rescue(pool.fleet, app[UPSTREAM].pool)):
        yield


async def readers(app: web.Application) -> AsyncIterator[None]:
    config, url = app[CONFIG], parse_redis_url(app[CONFIG].redis_url)

    def reader(pool: Pool) -> Coroutine[Any, Any, None]:
        keys = Keys(pool.served.fleet)
        return IndexReader(
            lambda: Wire(url, keys),
            pool.index,
            pool.fleet,
            app[METRICS],
            on_fleet=pool.dispatcher.fleet_changed,
            clock=app[CLOCK],
            gate=RecordsGate(keys, config.signer, AddressList(config.replica_networks)),
            on_intents=lambda record, now: app[METRICS].intents_received(pool.router.heard(record, now)),
        ).run()

    async with running(app, "index reader", reader):
        yield


async def intents(app: web.Application) -> AsyncIterator[None]:
    """Tells the fleets' other gateways where requests go."""
    config, url = app[CONFIG], parse_redis_url(app[CONFIG].redis_url)

    def publisher(pool: Pool) -> Coroutine[Any, Any, None]:
        keys = Keys(pool.served.fleet)
        outbox = pool.router.outbox
        return IntentPublisher(lambda: Wire(url, keys, config.signer), outbox, app[METRICS], clock=app[CLOCK]).run()

    async with running(app, "intents", publisher):
        yield


async def probers(app: web.Application) -> AsyncIterator[None]:
    """Watch the upstreams that tell nothing of themselves."""

    def prober(pool: Pool) -> Coroutine[Any, Any, None] | None:
        return None if pool.prober is None else pool.prober.run(pool.dispatcher.fleet_changed, app[CLOCK])

    async with running(app, "prober", prober):
        yield


async def sharing(app: web.Application) -> AsyncIterator[None]:
    """What keys use, with the other workers."""
    siblings = app[SIBLINGS]
    ledger = Ledger(app[GATE].meter, siblings.number, secrets.token_hex(8))
    async with alongside(share(ledger, siblings.number, siblings.ledgers, app[CLOCK]), "ledger"):
        yield


async def policy_file(app: web.Application) -> AsyncIterator[None]:
    path = app[CONFIG].policy_file
    if path is None:
        yield
        return

    def change(names: policies.Names) -> None:
        for pool in app[POOLS]:
            policies.use(names, pool.router, pool.shadow)

    async with alongside(policies.follow(path, change), "policy file"):
        yield


async def reloading(app: web.Application) -> AsyncIterator[None]:
    async with alongside(app[RELOADER].run(), "reload"):
        yield


@contextlib.asynccontextmanager
async def running(
    app: web.Application, name: str, work: Callable[[Pool], Coroutine[Any, Any, None] | None]
) -> AsyncIterator[None]:
    """A task for each pool that has such work."""
    async with contextlib.AsyncExitStack() as stack:
        for pool in app[POOLS]:
            one = work(pool)
            if one is not None:
                await stack.enter_async_context(alongside(one, f"{name} of {pool.name}"))
        yield


@contextlib.asynccontextmanager
async def alongside(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
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
        answer = await guarded(handler(request))
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
    request.app[OBSERVER].answered(answered, None, request.app[POOLS].first.router.policy.name)


def _response(failure: Failure) -> web.Response:
    return web.Response(body=failure.body, status=failure.status, headers=failure.headers)
