"""Cross-origin requests from web pages, where origins are configured (https://fetch.spec.whatwg.org/#http-cors-protocol).

A browser asks before it sends a key (preflight), so that is answered without one; and it shows a page no answer, not
even a 401, that lacks the headers. Only what clients ask is open to pages: an operator's browser, which may be at a
machine that needs no admin key, must not read the rest to them.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Mapping

from aiohttp import web

from gateway.keys import LIVE

_PATHS = re.compile(r"/v1/.*|/(de)?tokenize")
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2000}")
_EXPOSED = (
    "x-request-id, retry-after, x-ryokan-replica, x-ryokan-policy, x-ryokan-reason, x-ryokan-predicted-ttft, "
    "x-ryokan-cached-tokens, x-ryokan-delivered-tokens"
)
_MAX_AGE_S = "600"


def cors_headers(path: str, headers: Mapping[str, str], origins: Collection[str]) -> dict[str, str]:
    """Of the answer to a request; none where its origin isn't one of those. `headers` are asked by names in lower case.
    Pure."""
    origin = headers.get("origin")
    if origin is None or not origins or not _PATHS.fullmatch(path):
        return {}
    if "*" in origins:
        return {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": _EXPOSED}
    if origin not in origins:
        return {"Vary": "Origin"}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": _EXPOSED,
        "Vary": "Origin",
    }


def preflight_headers(headers: Mapping[str, str], allowed_methods: Collection[str]) -> dict[str, str]:
    """What a preflight's answer says beside those. Pure."""
    asked = headers.get("access-control-request-headers", "")
    names = {"Access-Control-Allow-Headers": asked} if _HEADER_NAMES.fullmatch(asked) else {}
    return names | {"Access-Control-Allow-Methods": _names(allowed_methods), "Access-Control-Max-Age": _MAX_AGE_S}


@web.middleware
async def options(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answers a preflight whose page may ask, and who just wants to know the methods."""
    wrong = request.match_info.http_exception
    if request.method == "OPTIONS" and isinstance(wrong, web.HTTPMethodNotAllowed):
        if "Access-Control-Request-Method" not in request.headers:
            return web.Response(status=204, headers={"Allow": _names({*wrong.allowed_methods, "OPTIONS"})})
        if "Access-Control-Allow-Origin" in _headers(request):
            return web.Response(status=204, headers=preflight_headers(request.headers, wrong.allowed_methods))
    return await handler(request)


def _names(methods: Collection[str]) -> str:
    return ", ".join(sorted(methods))


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """To every answer, just before its headers go out."""
    response.headers.update(_headers(request))


def _headers(request: web.Request) -> dict[str, str]:
    return cors_headers(request.path, request.headers, request.app[LIVE].config.cors_origins)
