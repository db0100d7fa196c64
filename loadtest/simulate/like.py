"""A simulated fleet in the shape of a running one."""

import asyncio
from collections.abc import Sequence

import aiohttp

from loadtest.errors import CompareError
from loadtest.gateway_api import GatewayApi, ReplicaShape
from loadtest.simulate.errors import SimulateError
from loadtest.simulate.run import FleetShape
from replica.config import Order
from replica.profiles import Profile
from replica.protocol.hashing import BLOCK_SIZE

_MAX_RUNNING = 64
"""Of a replica that doesn't say."""


def fleet_at(url: str) -> list[ReplicaShape]:
    """Raises SimulateError."""

    async def ask() -> list[ReplicaShape]:
        async with aiohttp.ClientSession() as session:
            return await GatewayApi(session, url).fleet()

    try:
        return asyncio.run(ask())
    except CompareError as error:
        raise SimulateError(f"--like: {error}") from error


def shape_like(fleet: Sequence[ReplicaShape], latency_s: float) -> FleetShape:
    """Of the replicas of a gateway's `GET /replicas`. Raises SimulateError where one hasn't fitted its cost."""
    profiles = tuple(profile_like(replica) for replica in fleet)
    return FleetShape(profiles[0], profiles, len(profiles), latency=latency_s, order=order_like(fleet))


def order_like(fleet: Sequence[ReplicaShape]) -> Order:
    """Of the first one that tells."""
    return next((Order(replica.order) for replica in fleet if replica.order in tuple(Order)), Order.SHORTEST)


def profile_like(replica: ReplicaShape) -> Profile:
    cost = replica.cost
    if not (cost.c_lin > 0 and replica.blocks):
        raise SimulateError(f"replica {replica.name} doesn't know yet how quick it is: send it some prompts first")
    return Profile(
        name=replica.name,
        source="a running replica's own cost model",
        c0=cost.c0,
        c_lin=cost.c_lin,
        c_att=cost.c_att,
        c_dec=cost.c_dec,
        max_step_tokens=cost.max_step_tokens,
        max_running=replica.max_running or _MAX_RUNNING,
        kv_tokens=replica.blocks * BLOCK_SIZE,
    )
