"""The life of a gateway process: checks first, then serve, then drain on SIGTERM or SIGINT."""

import asyncio
import contextlib
import gc
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from aiohttp import web
from redis.exceptions import RedisError

from gateway.app import make_app
from gateway.config import ConfigError, GatewayConfig
from gateway.descriptors import connections_allowed
from gateway.errors import StartError
from gateway.front import make_front, make_runner
from gateway.keys import CLOCK, LIFECYCLE, LIVE, POOLS
from gateway.reload import RELOADER
from gateway.served import ServedModel
from gateway.siblings import Siblings
from gateway.tenants.key_file import KeyFileError
from gateway.wire import Wire
from gateway.workers import Supervisor
from replica.protocol.listening import bind, listen, stop_signal
from replica.protocol.records import Keys
from replica.protocol.redis_link import explain
from replica.protocol.redis_url import parse_redis_url
from replica.protocol.text import ModelFolderError, ModelText

REDIS_START_S = 3.0
LINGER_S = 2.0
"""For connections that are open to bring one request more, before those that don't are closed: a client may be sending
on one of them just now."""
SWITCH_S = 0.001
"""For how long a thread that tokenises may keep the event loop waiting for the GIL; Python's own is 5 ms."""
GC_THRESHOLDS = (10_000, 20, 20)
"""Python's own, 700 new objects, is that of a few requests, whose traces stay for a while: they were gone through again
and again, for a sixth of a request's CPU time."""
SHUTDOWN_S = 2.0
"""After the grace time, for handlers to write their last event."""


Load = Callable[[], GatewayConfig]


def run(config: GatewayConfig, load: Load) -> None:
    """Blocks until the gateway has drained. `load` reads the settings again. Raises ListenError, StartError."""
    with contextlib.ExitStack() as stack:

        def listeners(host: str, port: int) -> list[socket.socket]:
            """One for each worker."""
            shared = config.reuse_port or config.workers > 1
            made: list[socket.socket] = []
            for _ in range(config.workers):
                bound = bind(host, made[0].getsockname()[1] if made else port, shared=shared)
                made.append(stack.enter_context(contextlib.closing(bound)))
                listen(bound)
            return made

        public = listeners(config.host, config.port)
        admin: list[socket.socket] = []
        if config.admin_port is not None:
            admin = listeners(config.admin_host, config.admin_port)
        admin_of = dict(zip(public, admin, strict=False))
        siblings_of = dict(zip(public, _siblings(config.workers, stack), strict=True))

        def say_ready() -> None:
            if admin:
                print(f"gateway for operators on http://{_authority(config.admin_host, admin[0])}", flush=True)
            print(f"gateway ready on http://{_authority(config.host, public[0])}", flush=True)

        def serve_on(listener: socket.socket, on_ready: Callable[[], None]) -> None:
            texts = [text_of(served) for served in config.served]
            listeners = Listeners(listener, admin_of.get(listener), siblings_of[listener])
            uvloop.run(serve(config, texts, listeners, load, on_ready))

        if config.workers == 1:
            serve_on(public[0], say_ready)
        else:
            Supervisor(public, serve_on, say_ready).run()


@dataclass(frozen=True, slots=True)
class Listeners:
    public: socket.socket
    admin: socket.socket | None = None
    siblings: Siblings = field(default_factory=Siblings)


def text_of(served: ServedModel) -> ModelText:
    """Raises StartError."""
    try:
        return ModelText.load(served.folder, served.name)
    except ModelFolderError as error:
        raise StartError(f"--model: {served.name}: {error}") from error


def _siblings(workers: int, stack: contextlib.ExitStack) -> list[Siblings]:
    """Of each worker."""
    if workers == 1:
        return [Siblings()]
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ryokan-gateway-")))
    sockets = tuple(folder / f"{number}.sock" for number in range(workers))
    return [Siblings(sockets, number) for number in range(workers)]


async def serve(
    config: GatewayConfig, texts: list[ModelText], listeners: Listeners, load: Load, on_ready: Callable[[], None]
) -> None:
    """Raises StartError where Redis can't be reached; once it could, its loss stops nothing."""
    if config.redis_url:
        await reach_redis(config)
    stop = stop_signal()
    try:
        app = make_app(config, texts, siblings=listeners.siblings, load=load)
    except (ConfigError, KeyFileError) as error:
        raise StartError(str(error)) from error
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, app[RELOADER].ask)
    runner = make_runner(app, SHUTDOWN_S)
    await runner.setup()
    for pool in app[POOLS]:
        pool.dispatcher.warm_up()
    # NOTE: each full collection would go through all that is loaded by now, and hold the event loop for 30 ms or more.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_S)
    try:
        if listeners.admin is not None:
            app[LIVE].admin_port = listeners.admin.getsockname()[1]
            await web.SockSite(runner, listeners.admin).start()
        if listeners.siblings.own is not None:
            await web.UnixSite(runner, listeners.siblings.own).start()
        front = make_front(runner, connections_allowed())
        await front.listen(listeners.public)
        on_ready()
        await stop.wait()
        grace_s = app[LIVE].config.timeouts.grace_s
        app[LIFECYCLE].leave_by = app[CLOCK]() + grace_s
        await front.retire(LINGER_S, grace_s)
        front.drain()
        await runner.cleanup()
        await front.close(SHUTDOWN_S)
    finally:
        await runner.cleanup()


async def reach_redis(config: GatewayConfig) -> None:
    url = parse_redis_url(config.redis_url)
    try:
        async with asyncio.timeout(REDIS_START_S), Wire(url, Keys(config.fleet)) as wire:
            await wire.warn_of_eviction()
    except (RedisError, OSError, TimeoutError) as error:
        raise StartError(f"can't use Redis at {url}: {explain(error)}") from error


def _authority(host: str, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
