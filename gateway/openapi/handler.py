"""`/openapi.json`."""

import orjson
from aiohttp import web

from gateway.introspect import model_name
from gateway.openapi.document import document

BODY = web.AppKey("BODY", dict[str, bytes])
"""By the model's name: making it takes 20 ms."""


async def openapi(request: web.Request) -> web.Response:
    name = model_name(request.app)
    made = request.app[BODY]
    if name not in made:
        made[name] = orjson.dumps(document([name]))
    return web.Response(body=made[name], content_type="application/json")
