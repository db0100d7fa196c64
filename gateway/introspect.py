"""The endpoints that only look."""

import asyncio
from dataclasses import asdict
from typing import Any

import orjson
from aiohttp import web

from gateway.errors import ModelNotFound, NoReplica, UnknownRequest
from gateway.explain import explained
from gateway.keys import CALLER, CLOCK, CONFIG, CONTEXT_LIMIT, FLEET, INDEX, LIFECYCLE, METRICS, TEXT, TRACES, UPSTREAM
from gateway.traces import Trace


def json_response(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")


def model_name(app: web.Application) -> str:
    return app[CONFIG].model_name or app[TEXT].name


def max_context(app: web.Application) -> int:
    return app[CONTEXT_LIMIT].at(app[CLOCK]())


def _model(app: web.Application) -> dict[str, Any]:
    return {
        "id": model_name(app),
        "object": "model",
        "created": app[LIFECYCLE].started_at,
        "owned_by": "ryokan",
        "max_model_len": max_context(app),
    }


async def models(request: web.Request) -> web.Response:
    usable = [_model(request.app)] if request[CALLER].may_use(model_name(request.app)) else []
    return json_response({"object": "list", "data": usable})


async def model(request: web.Request) -> web.Response:
    asked = request.match_info["model"]
    if asked != model_name(request.app) or not request[CALLER].may_use(asked):
        raise ModelNotFound(f"the model {asked!r} does not exist")
    return json_response(_model(request.app))


async def health(request: web.Request) -> web.Response:
    """The process is alive."""
    return json_response({"status": "ok"})


async def ready(request: web.Request) -> web.Response:
    """There is a replica to send requests to, and its digest is known."""
    app = request.app
    if app[LIFECYCLE].leave_by is not None or app[LIFECYCLE].draining:
        raise NoReplica("this gateway is shutting down")
    routable = app[FLEET].routable(app[CLOCK]())
    synced = [replica for replica in routable if app[INDEX].position(replica) is not None]
    if not synced:
        raise NoReplica(f"{len(routable)} replicas can take requests, and the digest of none is known")
    return json_response({"status": "ready", "replicas": len(routable), "synced": len(synced)})


async def metrics(request: web.Request) -> web.Response:
    app = request.app
    app[METRICS].tasks.set(len(asyncio.all_tasks()))
    body = app[METRICS].render(app[FLEET], app[INDEX], app[CLOCK]())
    return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


async def replicas(request: web.Request) -> web.Response:
    index = request.app[INDEX]
    rows = []
    for replica, status in request.app[FLEET].statuses(request.app[CLOCK]()).items():
        position = index.position(replica)
        rows.append(
            {
                "id": replica,
                "url": status.heartbeat.url,
                "state": status.state,
                "epoch": status.heartbeat.epoch if position is None else position[0],
                "seq": None if position is None else position[1],
                "synced": position is not None,
                "compatible": status.compatible,
                "publishes": not request.app[FLEET].is_silent(replica),
                "differences": [str(difference) for difference in status.differences],
                "indexed_blocks": index.blocks(replica),
                "load": asdict(status.heartbeat.load),
                "cost": asdict(status.heartbeat.cost),
                "order": status.heartbeat.order,
                "max_running": status.heartbeat.max_running,
                "in_flight": status.leases,
                "queue_tokens": status.queue_tokens,
                "own_queue_tokens": status.own_tokens,
                "trust": round(status.trust, 4),
                "unpromised": round(status.unpromised, 4),
                "reuse": round(status.reuse, 4),
            }
        )
    return json_response(rows)


async def explain(request: web.Request) -> web.Response:
    return json_response(explained(_trace(request)))


async def trace(request: web.Request) -> web.Response:
    found = _trace(request)
    replica_trace = None
    if found.replica_traced:
        replica_trace = await request.app[UPSTREAM].trace(found.replica_url, found.request_id)
    return json_response(found.timeline(replica_trace))


def _trace(request: web.Request) -> Trace:
    asked = request.match_info["request_id"]
    found = request.app[TRACES].get(asked)
    if found is None:
        raise UnknownRequest(f"request {asked!r} is not among the last ones")
    return found
