"""The life of a gateway process: checks first, then serve, then drain on SIGTERM or SIGINT."""

import asyncio
import contextlib
import errno
import signal
import socket

import uvloop
from aiohttp import web
from redis.exceptions import RedisError

from gateway.app import make_app
from gateway.config import GatewayConfig
from gateway.errors import StartError
from gateway.wire import Wire
from replica.protocol.records import Keys
from replica.protocol.redis_link import explain
from replica.protocol.redis_url import parse_redis_url
from replica.protocol.text import ModelFolderError, ModelText

REDIS_START_S = 3.0
SHUTDOWN_S = 2.0
"""After the grace time, for handlers to write their last event."""


def run(config: GatewayConfig) -> None:
    """Blocks until the gateway has drained. Raises StartError."""
    with contextlib.closing(bind(config.host, config.port)) as listener:
        try:
            text = ModelText.load(config.model, config.model_name)
        except ModelFolderError as error:
            raise StartError(f"--model: {error}") from error
        uvloop.run(serve(config, text, listener))


def bind(host: str, port: int) -> socket.socket:
    """Taken before anything slow happens. Raises StartError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise StartError(f"--host: {host!r} is no address: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # NOTE: two sockets that reuse an address may both bind; the second one's listen() then fails.
        listener.listen()
    except OSError as error:
        listener.close()
        reason = "is taken" if error.errno == errno.EADDRINUSE else f"can't be used: {error.strerror}"
        raise StartError(f"port {port} on {host} {reason}") from error
    return listener


async def serve(config: GatewayConfig, text: ModelText, listener: socket.socket) -> None:
    """Raises StartError where Redis can't be reached; once it could, its loss stops nothing."""
    await reach_redis(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    runner = web.AppRunner(
        make_app(config, text), handler_cancellation=True, access_log=None, shutdown_timeout=SHUTDOWN_S
    )
    await runner.setup()
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
