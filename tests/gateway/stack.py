"""A gateway and its replicas, all routable and synced."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp

from gateway.config import GatewayConfig
from gateway.keys import POOLS
from tests.gateway.fakes import Behaviour, FakeReplica, Publisher, Stack, eventually, gateway, publisher_for


class Fleet(Stack):
    replicas: Sequence[FakeReplica]
    publishers: Sequence[Publisher]


@asynccontextmanager
async def fleet(config: GatewayConfig, *behaviours: Behaviour) -> AsyncIterator[Fleet]:
    """A gateway and replicas r1, r2, … of these behaviours, all routable and synced."""
    async with AsyncExitStack() as stack:
        base = await stack.enter_async_context(gateway(config))
        replicas, publishers = [], []
        for number, behaviour in enumerate(behaviours, 1):
            replica = await stack.enter_async_context(FakeReplica(f"r{number}", behaviour).serving())
            publisher = publisher_for(base.redis, replica, config.model)
            await stack.enter_async_context(publisher.serving())
            replicas.append(replica)
            publishers.append(publisher)
        await eventually(lambda: len(base.app[POOLS].first.index.replicas()) == len(replicas))
        result = Fleet(base.url, base.app, base.redis, base.http)
        result.replicas, result.publishers = replicas, publishers
        yield result


async def error_of(response: aiohttp.ClientResponse) -> dict[str, Any]:
    assert response.content_type == "application/json"
    error: dict[str, Any] = (await response.json())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error
