"""A replica process from start to end: build, listen, join the fleet, serve, drain, leave."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable

from aiohttp import web

from replica.admission import QueueLimits
from replica.cache.manager import CacheEvents
from replica.config import EngineConfig, ReplicaConfig
from replica.digest import Digest
from replica.engine_base import BuiltEngine
from replica.metrics import ReplicaMetrics
from replica.protocol.canary import Fingerprints, fingerprints
from replica.protocol.hashing import BLOCK_SIZE, HASH_VERSION
from replica.protocol.listening import bind, listen, stop_signal
from replica.protocol.otel import open_sink
from replica.protocol.records import Heartbeat, Keys
from replica.protocol.redis_url import parse_redis_url, without_secret
from replica.protocol.text import ModelText
from replica.publisher import Publisher, PublisherThread, check_id_is_free
from replica.server import make_app
from replica.serving import Serving
from replica.step import StepResult
from replica.trace import TraceLog
from replica.wire import Wire
from replica.worker import EngineWorker

_LOG = logging.getLogger(__name__)
_KEEPALIVE_S = 3600.0
"""Longer than any gateway keeps an idle connection, so that it is never we who close one under a request."""


class _Listeners:
    """Passes cache events on to the publisher, once there is one: the worker is built first."""

    def __init__(self) -> None:
        self.publisher: Publisher | None = None

    def cache_changed(self, events: CacheEvents) -> None:
        if self.publisher is not None:
            self.publisher.cache_changed(events)

    def cache_replaced(self) -> None:
        if self.publisher is not None:
            self.publisher.cache_replaced()


async def run(config: ReplicaConfig) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code. Raises ConfigError, ListenError, ModelFolderError,
    IdTaken."""
    # What can fail quickly is tried before the weights are loaded.
    listener = bind(config.host, config.port)
    url = config.advertised_url or f"http://{config.host}:{listener.getsockname()[1]}"
    connect = _redis(config)
    await _check_id(config, connect)
    text = ModelText.load(config.folder, config.model_name)
    built = await asyncio.to_thread(_build, config, text)
    try:
        # Another may have taken the id meanwhile.
        await _check_id(config, connect)
        return await _serve(config, text, built, connect, listener, url)
    finally:
        if built.companions is not None:
            await asyncio.to_thread(built.companions.close)


async def _serve(
    config: ReplicaConfig,
    text: ModelText,
    built: BuiltEngine,
    connect: Callable[[], Wire] | None,
    listener: socket.socket,
    url: str,
) -> int:
    listeners = _Listeners()
    serving = _serving(config, text, built, listeners)
    publisher = _publisher(config, connect, serving, url, listeners)
    runner = web.AppRunner(make_app(serving), handler_cancellation=True, keepalive_timeout=_KEEPALIVE_S)
    await runner.setup()
    listen(listener)
    await web.SockSite(runner, listener).start()
    serving.worker.start()
    serving.spans.start()
    if built.companions is not None:
        built.companions.listen(serving.worker.fail)
    ticking = asyncio.create_task(serving.tick(time.monotonic))
    if publisher is not None:
        publisher.start()
    print(f"replica {config.id} ready on {url}", flush=True)
    try:
        await _until_stopped(serving)
        await _drain(serving, config.drain_s)
    finally:
        if publisher is not None:
            await asyncio.to_thread(publisher.stop)
        await runner.cleanup()
        ticking.cancel()
        await asyncio.to_thread(serving.spans.close)
    if serving.worker.crashed.is_set():
        return 1
    await serving.worker.stop()
    return 0


def _build(config: ReplicaConfig, text: ModelText) -> BuiltEngine:
    """Only what is wanted is loaded: torch alone is 200 MB. Raises ConfigError, ModelFolderError."""
    if config.timing is not None:
        from replica.timing.build import build_timing_engine

        return build_timing_engine(config.engine, config.timing, text)
    from replica.build import build_engine

    return build_engine(config)


def _redis(config: ReplicaConfig) -> Callable[[], Wire] | None:
    """What connects to the fleet's Redis, if there is one."""
    if config.redis_url is None:
        return None
    url, keys = parse_redis_url(config.redis_url), Keys(config.fleet)
    return lambda: Wire(url, keys, config.signer)


async def _check_id(config: ReplicaConfig, connect: Callable[[], Wire] | None) -> None:
    """Raises RedisUnreachable, IdTaken."""
    if connect is not None and config.redis_url is not None:
        await check_id_is_free(connect, config.id, without_secret(config.redis_url))


def _publisher(
    config: ReplicaConfig,
    connect: Callable[[], Wire] | None,
    serving: Serving,
    url: str,
    listeners: _Listeners,
) -> PublisherThread | None:
    if connect is None:
        return None
    same = fingerprints(serving.text)
    beats = int(time.time() * 1000)
    listeners.publisher = Publisher(
        connect,
        Digest(config.id),
        lambda epoch: _heartbeat(serving, url, epoch, config.engine, same),
        beats=beats,
    )
    serving.on_state = listeners.publisher.beat_soon
    return PublisherThread(listeners.publisher)


def _serving(config: ReplicaConfig, text: ModelText, built: BuiltEngine, listeners: _Listeners) -> Serving:
    traces = TraceLog(time.monotonic)
    metrics = ReplicaMetrics()

    def on_step(step: StepResult) -> None:
        metrics.observe_step(step)
        traces.observe(step)

    worker = EngineWorker(built.engine, built.new_cache, listeners, on_step, asyncio.get_running_loop(), time.monotonic)
    return Serving(
        text=text,
        worker=worker,
        metrics=metrics,
        traces=traces,
        replica_id=config.id,
        max_context=built.max_context,
        queue=QueueLimits(config.max_waiting, config.max_waiting_tokens),
        spans=open_sink(config.otlp_endpoint, "ryokan-replica", config.id),
        has_logits=built.has_logits,
    )


def _heartbeat(serving: Serving, url: str, epoch: str, settings: EngineConfig, same: Fingerprints) -> Heartbeat:
    status = serving.worker.status
    return Heartbeat(
        replica=serving.replica_id,
        url=url,
        state=serving.state,
        model=serving.text.name,
        hash_version=HASH_VERSION,
        block_size=BLOCK_SIZE,
        max_context=serving.max_context,
        epoch=epoch,
        cost=status.cost,
        load=status.load,
        load_age_s=max(0.0, time.monotonic() - status.at),
        order=settings.order,
        max_running=settings.running,
        resumes=True,
        stalled_s=serving.stalled_s(time.monotonic()),
        **same,
    )


async def _until_stopped(serving: Serving) -> None:
    """Returns on a signal, or when the engine has crashed."""
    stop = stop_signal()
    crash = asyncio.create_task(serving.worker.crashed.wait())
    signalled = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([crash, signalled], return_when=asyncio.FIRST_COMPLETED)
    finally:
        crash.cancel()
        signalled.cancel()
    serving.drain()


async def _drain(serving: Serving, limit_s: float) -> None:
    """Lets requests in flight finish; new ones are refused meanwhile, which makes gateways go elsewhere."""
    if serving.worker.num_requests and not serving.worker.crashed.is_set():
        _LOG.info("draining %d requests", serving.worker.num_requests)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(serving.worker.wait_idle(), limit_s)
