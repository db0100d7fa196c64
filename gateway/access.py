"""Who reaches which endpoint: clients with their key, operators with theirs, and on which port.

Without keys everybody is a client, and whoever reaches the gateway may look at what operators see. With keys, or on a
port of their own, operators show the admin key, or sit at this machine where there is none.
"""

from collections.abc import Awaitable, Callable

from aiohttp import web

from gateway.admin_key import authorise
from gateway.keys import CALLER, GATE, LIVE, Live
from gateway.siblings import from_sibling

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def public(handler: Handler) -> Handler:
    """For clients; it asks for their key itself."""

    async def on_the_public_port(request: web.Request) -> web.StreamResponse:
        if from_sibling(request) or _by_admin_port(request):
            raise web.HTTPNotFound
        return await handler(request)

    return on_the_public_port


def keyed(handler: Handler) -> Handler:
    """For clients with a key."""

    async def with_a_key(request: web.Request) -> web.StreamResponse:
        request[CALLER] = request.app[GATE].authenticate(request.headers)
        return await handler(request)

    return public(with_a_key)


def operator(handler: Handler, *, changes: bool = False) -> Handler:
    """`changes`: it does more than look, so it takes the admin key in any case."""

    async def as_operator(request: web.Request) -> web.StreamResponse:
        if from_sibling(request):
            return await handler(request)
        live, by_admin_port = request.app[LIVE], _by_admin_port(request)
        if _has_admin_port(live) and not by_admin_port:
            raise web.HTTPNotFound
        if changes or by_admin_port or request.app[GATE].keys is not None:
            authorise(request.headers.get("Authorization", ""), request.remote, live.config.admin_key)
        return await handler(request)

    return as_operator


def _has_admin_port(live: Live) -> bool:
    return live.config.admin_port is not None


def _by_admin_port(request: web.Request) -> bool:
    live = request.app[LIVE]
    if not _has_admin_port(live) or request.transport is None:
        return False
    return bool(request.transport.get_extra_info("sockname")[1] == live.admin_port)
