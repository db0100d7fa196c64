"""The gateway's front door: the lean server for the hot routes, and the aiohttp application behind it."""

from functools import partial

from aiohttp import web

from gateway import handlers
from gateway.access_log import Answered
from gateway.context import Parts
from gateway.cors import cors_headers
from gateway.http.errors import HttpError
from gateway.http.limits import HttpLimits
from gateway.http.server import LeanServer
from gateway.keys import CONFIG, UPSTREAM

HOT = frozenset(("POST", path) for path in handlers.PARSERS)


def make_runner(app: web.Application, shutdown_s: float) -> web.AppRunner:
    """Of the application, which a client's leaving must reach: it cancels the handler."""
    return web.AppRunner(
        app, handler_cancellation=True, access_log=None, shutdown_timeout=shutdown_s, auto_decompress=False
    )


def make_front(runner: web.AppRunner, connections: int = 60_000) -> LeanServer:
    """For an application whose runner is set up, with so many clients at most. Let it `listen`; at the end `drain` it
    before the runner's own cleanup, and `close` it after."""
    app, server = runner.app, runner.server
    assert server is not None
    parts = Parts.of(app)

    def refused(error: HttpError) -> None:
        answered = Answered(method="", path="", endpoint="unreadable", status=error.status, took_s=0.0, code=error.code)
        parts.observer.answered(answered, None, parts.pools.first.router.policy.name)

    return LeanServer(
        HttpLimits(body=app[CONFIG].body_limit, connections=connections),
        app[UPSTREAM].wheel,
        hot=HOT,
        handle=partial(handlers.answer, parts),
        guest=server,
        on_refused=refused,
        refusal_headers=lambda head: cors_headers(head.path, head.headers, parts.live.config.cors_origins),
    )
