"""An adapter process from start to end: find the engine, listen, join the fleet, serve, drain, leave."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable

import aiohttp
from aiohttp import web

from adopt.adapter import Adapter, namespace_of
from adopt.config import AdoptConfig
from adopt.engine import EngineClient, EngineUnreachable, Health, Served
from adopt.mirror import Changes, Mirror
from adopt.proxy import make_app
from adopt.stream import EventStream
from replica.cache.manager import CacheEvents
from replica.digest import Digest
from replica.protocol.listening import bind, listen, stop_signal
from replica.protocol.records import Keys
from replica.protocol.redis_url import parse_redis_url
from replica.protocol.text import ModelText
from replica.publisher import Publisher, check_id_is_free
from replica.wire import Wire

log = logging.getLogger(__name__)

POLL_S = 0.5
SILENT_POLLS = 3
"""Without an answer, in a row, before a busy engine counts as a dead one."""

CANARY = "Where a café costs 1,234.50 €: naïve\n\ttabs, 漢字 and 🏯 — don't they?"
"""Tokenised by both sides. Blocks of another tokenizer's ids would never be found, and nobody would know why."""

_KEEPALIVE_S = 3600.0
"""Longer than any gateway keeps an idle connection."""


class WrongModel(Exception):
    """The engine serves another model than the adapter was told."""


async def run(config: AdoptConfig) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code. Raises ListenError, ModelFolderError, RedisUnreachable,
    IdTaken, WrongModel."""
    listener = bind(config.host, config.port)
    url = config.advertised_url or f"http://{config.host}:{listener.getsockname()[1]}"
    redis_url, keys = parse_redis_url(config.redis_url), Keys(config.fleet)

    def connect() -> Wire:
        return Wire(redis_url, keys, config.signer)

    await check_id_is_free(connect, config.id, str(redis_url))
    text = await asyncio.to_thread(ModelText.load, config.folder, config.model_name)
    stop = stop_signal()
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        engine = EngineClient(session, config.engine, config.engine_url)
        served = await _until_up(engine, text, stop)
        if served is None:
            listener.close()
            return 0
        adapter, publisher = _assemble(config, text, session, engine, served, url, connect)
        await _serve(adapter, publisher, listener, stop)
    return 0


def _assemble(
    config: AdoptConfig,
    text: ModelText,
    session: aiohttp.ClientSession,
    engine: EngineClient,
    served: Served,
    url: str,
    connect: Callable[[], Wire],
) -> tuple[Adapter, Publisher]:
    def changed(changes: Changes) -> None:
        if changes.cleared:
            publisher.cache_replaced()
        publisher.cache_changed(CacheEvents(changes.added, changes.removed))

    mirror = Mirror(lambda salt: namespace_of(text, salt))
    stream = EventStream(config.kv_events, config.kv_replay, config.kv_topic, mirror, changed)
    adapter = Adapter(config, text, session, engine, mirror, stream, served, url)
    publisher = Publisher(connect, Digest(config.id), adapter.heartbeat, beats=int(time.time() * 1000))
    adapter.state_changed = publisher.beat_soon
    return adapter, publisher


async def _serve(adapter: Adapter, publisher: Publisher, listener: socket.socket, stop: asyncio.Event) -> None:
    runner = web.AppRunner(make_app(adapter), handler_cancellation=True, keepalive_timeout=_KEEPALIVE_S)
    await runner.setup()
    listen(listener)
    await web.SockSite(runner, listener).start()
    publishing = asyncio.create_task(publisher.run())
    working = [asyncio.create_task(adapter.stream.run()), asyncio.create_task(watch(adapter))]
    print(f"replica {adapter.config.id} ready on {adapter.url}, adopted from {adapter.engine.url}", flush=True)
    try:
        stopped = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait([stopped, publishing, *working], return_when=asyncio.FIRST_COMPLETED)
        adapter.set_draining()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(adapter.config.drain_s):
                await adapter.drained()
        for task in done:
            # None of them ends by itself, unless by a bug.
            task.result()
    finally:
        publisher.stop()
        await publishing
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        await runner.cleanup()


async def watch(adapter: Adapter) -> None:
    """Looks how the engine is, until cancelled."""
    silent = 0
    while True:
        health = await adapter.engine.health()
        silent = silent + 1 if health is Health.SILENT else 0
        if health is Health.BAD or silent >= SILENT_POLLS:
            adapter.set_up(False)
        elif health is Health.OK:
            await _look_at(adapter)
        await asyncio.sleep(POLL_S)


async def _look_at(adapter: Adapter) -> None:
    try:
        if not adapter.up:
            # It may be another engine that has come back.
            adapter.served = await adapter.engine.served()
            adapter.set_up(True)
        adapter.load = await adapter.engine.load()
    except EngineUnreachable as error:
        # SGLang has no /metrics unless told to: its replica then has no load but what we send it.
        adapter.complain(str(error))


async def _until_up(engine: EngineClient, text: ModelText, stop: asyncio.Event) -> Served | None:
    """What the engine serves; None where we are stopped before it does. Raises WrongModel."""
    said = False
    while not stop.is_set():
        try:
            served = await engine.served()
            await _check_tokens(engine, text, served.model)
            return served
        except EngineUnreachable as error:
            if not said:
                log.warning("waiting for the engine: %s", error)
                said = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await stop.wait()
    return None


async def _check_tokens(engine: EngineClient, text: ModelText, model: str) -> None:
    """Raises WrongModel, EngineUnreachable."""
    theirs = await engine.tokenize(model, CANARY)
    if theirs is None:
        log.warning("the engine has no /tokenize, so it isn't known whether it has the tokenizer of %s", text.name)
    elif theirs != text.encode_plain(CANARY, add_special_tokens=False):
        raise WrongModel(f"the engine tokenises {CANARY!r} in another way: it doesn't serve the model {text.name}")
