"""`python -m loadtest.gateway_bench.plain_aiohttp PORT URL...`: what an ordinary proxy on aiohttp costs.

Its server, its client, uvloop; the body is parsed for its model; round robin; nothing else.
"""

import asyncio
import itertools
import json
import sys

import aiohttp
import uvloop
from aiohttp import web

BODY_MAX = 64 << 20
BACKLOG = 4096
HOP_BY_HOP = frozenset({"host", "connection", "keep-alive", "transfer-encoding", "content-length", "upgrade", "te"})

SESSION = web.AppKey("SESSION", aiohttp.ClientSession)
TURNS: web.AppKey["itertools.cycle[str]"] = web.AppKey("TURNS")


async def relay(request: web.Request) -> web.StreamResponse:
    body = await request.read()
    if request.method == "POST":
        try:
            json.loads(body)["model"]
        except (ValueError, KeyError, TypeError):
            return web.json_response({"error": {"message": "no JSON object with a model"}}, status=400)
    kept = [(name, value) for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP]
    turns = request.app[TURNS]
    url = next(turns) + request.path_qs
    try:
        answer = await request.app[SESSION].request(request.method, url, data=body, headers=kept)
    except aiohttp.ClientConnectionError as error:
        return web.json_response({"error": {"message": str(error)}}, status=502)
    async with answer:
        headers = [(name, value) for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP]
        if answer.content_type != "text/event-stream":
            return web.Response(status=answer.status, headers=headers, body=await answer.read())
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
        return response


async def serve(port: int, urls: list[str]) -> None:
    app = web.Application(client_max_size=BODY_MAX)
    app[TURNS] = itertools.cycle(urls)
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as app[SESSION]:
        app.router.add_route("*", "/{path:.*}", relay)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=BACKLOG).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2:]))
