"""What the wires of publishers and readers have in common: one connection to the fleet's Redis."""

from types import TracebackType
from typing import Any, Self

from replica.protocol.records import Keys
from replica.protocol.redis_link import RedisLink
from replica.protocol.redis_url import RedisUrl


class FleetWire:
    """Use it as an async context manager. Methods raise RedisError, OSError or TimeoutError on a lost connection."""

    def __init__(self, url: RedisUrl, keys: Keys, reply_s: float) -> None:
        """`reply_s`: how long a reply may take."""
        self._keys = keys
        self._link = RedisLink(url, keys.stream, reply_s)

    async def __aenter__(self) -> Self:
        await self._link.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._link.__aexit__(kind, error, trace)

    @property
    def redis(self) -> Any:
        return self._link.redis

    async def warn_of_eviction(self) -> None:
        await self._link.warn_of_eviction()
