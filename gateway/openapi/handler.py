"""`/openapi.json`."""

import orjson
from aiohttp import web

from gateway.keys import POOLS
from gateway.openapi.document import document

BODY = web.AppKey("BODY", dict[str, bytes])
"""By the models' names: making it takes 20 ms."""


async def openapi(request: web.Request) -> web.Response:
    names = request.app[POOLS].names
    made = request.app[BODY]
    key = " ".join(names)
    if key not in made:
        made[key] = orjson.dumps(document(names))
    return web.Response(body=made[key], content_type="application/json")
