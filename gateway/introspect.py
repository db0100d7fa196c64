"""The endpoints that only look."""

import asyncio
from dataclasses import asdict
from typing import Any

import orjson
from aiohttp import web

from gateway.errors import ModelNotFound, NoReplica, UnknownRequest
from gateway.explain import explained
from gateway.keys import CALLER, CLOCK, LIFECYCLE, METRICS, POOLS, TRACES, UPSTREAM
from gateway.pools import Pool
from gateway.siblings import SIBLINGS, from_sibling, merged_metrics


def json_response(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")


def _model(app: web.Application, pool: Pool) -> dict[str, Any]:
    return {
        "id": pool.name,
        "object": "model",
        "created": app[LIFECYCLE].started_at,
        "owned_by": "ryokan",
        "max_model_len": pool.context_limit.at(app[CLOCK]()),
    }


async def models(request: web.Request) -> web.Response:
    usable = [_model(request.app, pool) for pool in request.app[POOLS] if request[CALLER].may_use(pool.name)]
    return json_response({"object": "list", "data": usable})


async def model(request: web.Request) -> web.Response:
    asked = request.match_info["model"]
    pool = request.app[POOLS].find(asked)
    if pool is None or not request[CALLER].may_use(pool.name):
        raise ModelNotFound(f"the model {asked!r} does not exist")
    return json_response(_model(request.app, pool))


async def health(request: web.Request) -> web.Response:
    """The process is alive."""
    return json_response({"status": "ok"})


async def ready(request: web.Request) -> web.Response:
    """There is a replica to send requests to, and its digest is known. Of `?model=`, else of any."""
    app = request.app
    if app[LIFECYCLE].leave_by is not None or app[LIFECYCLE].draining:
        raise NoReplica("this gateway is shutting down")
    pools = app[POOLS].chosen(request.query.get("model"))
    counts = {pool.name: _counts(pool, app[CLOCK]()) for pool in pools}
    routable, synced = (sum(count[place] for count in counts.values()) for place in (0, 1))
    if not synced:
        raise NoReplica(f"{routable} replicas can take requests, and the digest of none is known")
    by_model = {name: {"replicas": count[0], "synced": count[1]} for name, count in counts.items()}
    return json_response({"status": "ready", "replicas": routable, "synced": synced, "models": by_model})


def _counts(pool: Pool, now: float) -> tuple[int, int]:
    """Replicas that can be routed to, and those of them whose digest is known."""
    routable = pool.fleet.routable(now)
    return len(routable), sum(pool.index.position(replica) is not None for replica in routable)


async def metrics(request: web.Request) -> web.Response:
    app = request.app
    app[METRICS].tasks.set(len(asyncio.all_tasks()))
    pools = app[POOLS].chosen(None)
    rooms = [pool.dispatcher.reception.desk.room for pool in pools]
    body = app[METRICS].render([pool.fleet for pool in pools], [pool.index for pool in pools], rooms, app[CLOCK]())
    siblings = app[SIBLINGS]
    if siblings.sockets and not from_sibling(request):
        replies = await siblings.ask("GET", str(request.rel_url))
        answered = [(number, reply.body) for number, reply in replies.items() if reply is not None]
        expositions = sorted([*answered, (siblings.number, body)])
        body = merged_metrics([(number, text.decode()) for number, text in expositions]).encode()
    return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


async def replicas(request: web.Request) -> web.Response:
    """Of all models, or of `?model=`."""
    pools = request.app[POOLS].chosen(request.query.get("model"))
    return json_response([row for pool in pools for row in _replicas(pool, request.app[CLOCK]())])


def _replicas(pool: Pool, now: float) -> list[dict[str, Any]]:
    index = pool.index
    rows = []
    for replica, status in pool.fleet.statuses(now).items():
        position = index.position(replica)
        rows.append(
            {
                "id": replica,
                "model": pool.name,
                "url": status.heartbeat.url,
                "state": status.state,
                "reason": None if pool.prober is None else pool.prober.failures.get(replica),
                "epoch": status.heartbeat.epoch if position is None else position[0],
                "seq": None if position is None else position[1],
                "synced": position is not None,
                "compatible": status.compatible,
                "publishes": not pool.fleet.is_silent(replica),
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
    return rows


async def explain(request: web.Request) -> web.Response:
    found = request.app[TRACES].get(request.match_info["request_id"])
    return await _of_a_sibling(request) if found is None else json_response(explained(found))


async def trace(request: web.Request) -> web.Response:
    found = request.app[TRACES].get(request.match_info["request_id"])
    if found is None:
        return await _of_a_sibling(request)
    replica_trace = None
    if found.replica_traced:
        replica_trace = await request.app[UPSTREAM].trace(found.replica_url, found.request_id)
    return json_response(found.timeline(replica_trace))


async def _of_a_sibling(request: web.Request) -> web.Response:
    """The request may have come to another worker."""
    if not from_sibling(request):
        replies = await request.app[SIBLINGS].ask("GET", str(request.rel_url))
        for reply in replies.values():
            if reply is not None and reply.status == 200:
                return web.Response(body=reply.body, content_type="application/json")
    raise UnknownRequest(f"request {request.match_info['request_id']!r} is not among the last ones")
