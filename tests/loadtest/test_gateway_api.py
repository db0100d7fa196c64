from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from loadtest.errors import CompareError
from loadtest.gateway_api import GatewayApi

Answer = Callable[[web.Request], web.Response]


@asynccontextmanager
async def gateway(answer: Answer, timeout_s: float = 5.0) -> AsyncIterator[GatewayApi]:
    async def handler(request: web.Request) -> web.Response:
        return answer(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        yield GatewayApi(session, str(server.make_url("")), timeout_s)


def row(request: web.Request, name: str, **changes: object) -> dict[str, object]:
    url = f"http://{request.host}"
    fields = {"id": name, "url": url, "state": "ready", "epoch": "1", "indexed_blocks": 0, "synced": True}
    return fields | changes


async def test_only_ready_replicas_in_order_of_name() -> None:
    def answer(request: web.Request) -> web.Response:
        rows = [row(request, "b"), row(request, "c", state="draining"), row(request, "a")]
        return web.json_response(rows)

    async with gateway(answer) as api:
        assert [replica.name for replica in await api.ready_replicas()] == ["a", "b"]


@pytest.mark.parametrize("late", [{"epoch": "1"}, {"indexed_blocks": 5}, {"synced": False}])
async def test_a_reset_that_never_shows_names_the_replica(late: dict[str, object]) -> None:
    reset: list[str] = []

    def answer(request: web.Request) -> web.Response:
        if request.path == "/cache/reset":
            reset.append(request.path)
            return web.Response()
        epoch = "2" if reset else "1"
        return web.json_response([row(request, "fine", epoch=epoch), row(request, "stuck", **{"epoch": epoch, **late})])

    async with gateway(answer, timeout_s=0.3) as api:
        with pytest.raises(CompareError, match="old blocks for stuck"):
            await api.reset_caches()
    assert len(reset) == 2


async def test_a_refused_reset_is_tried_again_only_while_requests_run() -> None:
    statuses = [409, 409, 500, 200]

    def answer(request: web.Request) -> web.Response:
        if request.path == "/cache/reset":
            return web.Response(status=statuses.pop(0))
        return web.json_response([row(request, "a")])

    async with gateway(answer) as api:
        with pytest.raises(CompareError, match="HTTP 500"):
            await api.reset_caches()
    assert statuses == [200]


async def test_a_trace_without_its_end_times_out() -> None:
    async with gateway(lambda _: web.json_response({"events": [{"event": "received"}]}), timeout_s=0.3) as api:
        with pytest.raises(CompareError, match="x isn't complete"):
            await api.trace("x")


@pytest.mark.parametrize("rows", [[{"id": "a"}], {"replicas": []}, 3])
async def test_replicas_of_another_shape_are_a_clear_error(rows: object) -> None:
    async with gateway(lambda _: web.json_response(rows)) as api:
        with pytest.raises(CompareError, match="/replicas answers in an unknown shape"):
            await api.ready_replicas()


async def test_a_trace_comes_in_order_of_time() -> None:
    events = [{"event": "done", "at_s": 2}, {"event": "received", "at_s": 0}]
    async with gateway(lambda _: web.json_response({"events": events, "kv": [[1, 20], [2, 21]]})) as api:
        assert await api.trace("x") == {"events": events[::-1], "kv": [[1.0, 20], [2.0, 21]]}


async def test_errors_name_the_url_and_the_reason() -> None:
    async with gateway(lambda _: web.Response(status=500, text="boom")) as api:
        with pytest.raises(CompareError, match="/admin/policy answers HTTP 500: boom"):
            await api.set_policy("x")
    async with gateway(lambda _: web.Response(text="<html>")) as api:
        with pytest.raises(CompareError, match="no JSON"):
            await api.set_policy("x")
    async with gateway(lambda _: web.json_response({"data": []})) as api:
        with pytest.raises(CompareError, match="/v1/models answers in an unknown shape"):
            await api.model()
    async with aiohttp.ClientSession() as session:
        with pytest.raises(CompareError, match=r"can't reach http://127\.0\.0\.1:9/"):
            await GatewayApi(session, "http://127.0.0.1:9").ready_replicas()
