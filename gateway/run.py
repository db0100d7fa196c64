"""The life of a gateway process: checks first, then serve, then drain on SIGTERM or SIGINT."""

import asyncio
import contextlib
import gc
import socket

import uvloop
from aiohttp import web
from redis.exceptions import RedisError

from gateway.app import make_app
from gateway.config import GatewayConfig
from gateway.errors import StartError
from gateway.wire import Wire
from replica.protocol.listening import bind, listen, stop_signal
from replica.protocol.records import Keys
from replica.protocol.redis_link import explain
from replica.protocol.redis_url import parse_redis_url
from replica.protocol.text import ModelFolderError, ModelText

REDIS_START_S = 3.0
SHUTDOWN_S = 2.0
"""After the grace time, for handlers to write their last event."""


def run(config: GatewayConfig) -> None:
    """Blocks until the gateway has drained. Raises ListenError, StartError."""
    with contextlib.closing(bind(config.host, config.port)) as listener:
        listen(listener)
        try:
            text = ModelText.load(config.model, config.model_name)
        except ModelFolderError as error:
            raise StartError(f"--model: {error}") from error
        uvloop.run(serve(config, text, listener))


async def serve(config: GatewayConfig, text: ModelText, listener: socket.socket) -> None:
    """Raises StartError where Redis can't be reached; once it could, its loss stops nothing."""
    await reach_redis(config)
    stop = stop_signal()
    runner = web.AppRunner(
        make_app(config, text), handler_cancellation=True, access_log=None, shutdown_timeout=SHUTDOWN_S
    )
    await runner.setup()
    # NOTE: each full collection would go through all that is loaded by now, and hold the event loop for 30 ms or more.
    gc.collect()
    gc.freeze()
    try:
        await web.SockSite(runner, listener, backlog=1024).start()
        print(f"gateway ready on http://{_authority(config.host, listener)}", flush=True)
        await stop.wait()
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
