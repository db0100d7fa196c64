"""The few Redis commands of a publisher, typed. One connection, which reports every loss: retrying is for others."""

from collections.abc import Sequence
from typing import Any

from redis.exceptions import OutOfMemoryError

from replica.protocol.fleet_wire import FleetWire
from replica.protocol.records import (
    FLEET_TTL_S,
    HEARTBEAT_MAX_BYTES,
    HEARTBEAT_TTL_S,
    SNAPSHOT_TTL_S,
    STREAM_MAX_ENTRIES,
    Keys,
    StreamFields,
)
from replica.protocol.redis_url import RedisUrl
from replica.protocol.signing import Signer
from replica.publisher import Beaten

SOCKET_S = 3.0
"""A Redis that takes a second for each reply is slow, not lost."""
CLEAN_EVERY_BEATS = 120
"""A minute: a replica that was killed can't take its own name away."""
CLEAN_NAMES = 20
"""Of the fleet's, picked at random: over all replicas each name is looked at this often, however many there are."""


class Wire(FleetWire):
    def __init__(self, url: RedisUrl, keys: Keys, signer: Signer | None = None) -> None:
        super().__init__(url, keys, SOCKET_S)
        self._signer = signer or Signer()
        self._beats = 0
        self._silent: set[bytes] = set()
        """Names without a heartbeat at the last look."""

    async def heartbeat(self, replica: str) -> bytes | None:
        """As it is, or its beginning: to see whether there is one that changes."""
        value = await self.redis.getrange(self._keys.heartbeat(replica), 0, HEARTBEAT_MAX_BYTES)
        return bytes(value) or None

    async def add(self, entry: StreamFields) -> str:
        """Returns its stream id."""
        pipeline = self.redis.pipeline(transaction=False)
        self._add_to_stream(pipeline, entry)
        return _id((await self._write(pipeline, entry["replica"]))[0])

    async def write_snapshot(self, replica: str, data: bytes) -> None:
        """Grants the wish for one, too: only once it's there."""
        key = self._keys.snapshot(replica)
        pipeline = self.redis.pipeline(transaction=False)
        pipeline.set(key, self._signer.seal(key, data), px=_ms(SNAPSHOT_TTL_S))
        pipeline.delete(self._keys.snapshot_wanted(replica))
        await self._write(pipeline, replica)

    async def beat(self, replica: str, heartbeat: bytes, entries: Sequence[StreamFields]) -> Beaten:
        """Adds the entries, then beats, in one round trip; what outlives its replica gets new time to live."""
        await self._link.verify()
        key = self._keys.heartbeat(replica)
        pipeline = self.redis.pipeline(transaction=False)
        for entry in entries:
            self._add_to_stream(pipeline, entry)
        pipeline.set(key, self._signer.seal(key, heartbeat), px=_ms(HEARTBEAT_TTL_S))
        pipeline.sadd(self._keys.replicas, replica)
        pipeline.pexpire(self._keys.replicas, _ms(FLEET_TTL_S))
        pipeline.pexpire(self._keys.stream, _ms(FLEET_TTL_S))
        pipeline.pexpire(self._keys.snapshot(replica), _ms(SNAPSHOT_TTL_S))
        pipeline.exists(self._keys.snapshot_wanted(replica))
        *ids, _, _, _, _, exists, wanted = await self._write(pipeline, replica)
        self._beats += 1
        if self._beats % CLEAN_EVERY_BEATS == 0:
            await self._clean()
        return Beaten(_id(ids[-1]) if ids else None, not exists or bool(wanted))

    async def leave(self, replica: str, entry: StreamFields) -> None:
        pipeline = self.redis.pipeline(transaction=False)
        keys = (self._keys.heartbeat(replica), self._keys.snapshot(replica), self._keys.snapshot_wanted(replica))
        pipeline.delete(*keys)
        pipeline.srem(self._keys.replicas, replica)
        self._add_to_stream(pipeline, entry)
        await pipeline.execute()

    def _add_to_stream(self, pipeline: Any, entry: StreamFields) -> None:
        stream = self._keys.stream
        pipeline.xadd(stream, self._signer.sign_entry(stream, entry), maxlen=STREAM_MAX_ENTRIES, approximate=True)

    async def _write(self, pipeline: Any, replica: str) -> list[Any]:
        """A full Redis takes nothing new, but it can be told to keep our last heartbeat: else every replica would be
        gone within seconds, and with them all service."""
        try:
            replies: list[Any] = await pipeline.execute()
        except OutOfMemoryError:
            await self.redis.pexpire(self._keys.heartbeat(replica), _ms(HEARTBEAT_TTL_S))
            raise
        return replies

    async def _clean(self) -> None:
        """Takes away the names of replicas that had no heartbeat twice, a minute apart: they were killed."""
        names = sorted({*await self.redis.srandmember(self._keys.replicas, CLEAN_NAMES), *self._silent})
        if not names:
            return
        prefix = self._keys.heartbeat("").encode()
        pipeline = self.redis.pipeline(transaction=False)
        for name in names:
            pipeline.exists(prefix + name)
        silent = {name for name, alive in zip(names, await pipeline.execute(), strict=True) if not alive}
        if gone := silent & self._silent:
            await self.redis.srem(self._keys.replicas, *gone)
        self._silent = silent - gone


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _id(reply: Any) -> str:
    assert isinstance(reply, bytes)
    return reply.decode()
