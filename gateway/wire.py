"""The few Redis commands of a gateway, typed. One connection, which reports every loss: retrying is the reader's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from replica.protocol.records import HEARTBEAT_TTL_S, Keys, RecordError

BATCH = 500
SOCKET_S = 5.0
WANTED_EX_S = 10

StreamId = tuple[int, int]
ZERO: StreamId = (0, 0)
Entry = tuple[StreamId, dict[bytes, bytes]]


def stream_id(raw: bytes | str) -> StreamId:
    """Raises RecordError."""
    text = raw.decode() if isinstance(raw, bytes) else raw
    milliseconds, _, sequence = text.partition("-")
    try:
        return int(milliseconds), int(sequence or 0)
    except ValueError as error:
        raise RecordError(f"stream id {text!r}") from error


def format_id(value: StreamId) -> str:
    return f"{value[0]}-{value[1]}"


@dataclass(frozen=True, slots=True)
class StreamState:
    first: StreamId
    """Of the oldest entry that is still there."""
    last: StreamId
    """Newest id ever given out."""
    added: int
    """Entries since the stream was created."""
    exists: bool
    untrimmed: bool

    def reaches_back_to(self, start: StreamId) -> bool:
        """Whether all entries after `start` are certainly there. Where the entry `start` itself is gone, later ones
        may be, and where the stream was created anew, its start is unknown."""
        return self.untrimmed if start == ZERO else self.exists and self.first <= start


class Wire:
    """Use it as an async context manager. Methods raise RedisError, OSError or TimeoutError on a lost connection."""

    def __init__(self, url: str, keys: Keys) -> None:
        self._keys = keys
        # NOTE: the library's types are unions over protocols and decodings, so they are given up here, once.
        self._redis: Any = Redis.from_url(
            url,
            decode_responses=False,
            protocol=2,
            single_connection_client=True,
            socket_timeout=SOCKET_S,
            socket_connect_timeout=SOCKET_S,
            retry=Retry(NoBackoff(), 0),
        )

    async def __aenter__(self) -> "Wire":
        try:
            await self._redis.initialize()
            await self._redis.ping()
        except BaseException:
            await self._redis.aclose()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._redis.aclose()

    async def next_entries(self, after: StreamId, wait_s: float) -> list[Entry]:
        """Waits for entries, at most so long."""
        block_ms = max(1, round(wait_s * 1000))
        reply = await self._redis.xread({self._keys.stream: format_id(after)}, count=BATCH, block=block_ms)
        return [(stream_id(raw_id), fields) for _, entries in reply for raw_id, fields in entries]

    async def entries(self, after: StreamId) -> list[Entry]:
        """The next BATCH entries there are; fewer at the end."""
        reply = await self._redis.xrange(self._keys.stream, min=f"({format_id(after)}", count=BATCH)
        return [(stream_id(raw_id), fields) for raw_id, fields in reply]

    async def stream_state(self) -> StreamState:
        try:
            info = await self._redis.xinfo_stream(self._keys.stream)
        except ResponseError:
            return StreamState(first=ZERO, last=ZERO, added=0, exists=False, untrimmed=True)
        last = stream_id(info["last-generated-id"])
        return StreamState(
            first=stream_id(info["first-entry"][0]) if info["first-entry"] else last,
            last=last,
            added=info["entries-added"],
            exists=True,
            untrimmed=info["entries-added"] == info["length"],
        )

    async def members(self) -> list[str]:
        return sorted(name.decode(errors="replace") for name in await self._redis.smembers(self._keys.replicas))

    async def heartbeats(self, names: Sequence[str]) -> dict[str, tuple[bytes, float]]:
        """Of those that have one: the record and its age in seconds.

        The age comes from the key's remaining life, so by no clock but Redis's own.
        """
        if not names:
            return {}
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.mget([self._keys.heartbeat(name) for name in names])
        for name in names:
            pipeline.pttl(self._keys.heartbeat(name))
        values, *ttls_ms = await pipeline.execute()
        return {
            name: (value, 0.0 if ttl_ms < 0 else max(0.0, HEARTBEAT_TTL_S - ttl_ms / 1000))
            for name, value, ttl_ms in zip(names, values, ttls_ms, strict=True)
            if value is not None
        }

    async def snapshots(self, names: Sequence[str]) -> dict[str, tuple[bytes | None, bool]]:
        """The snapshot, if any, and whether a new one is wanted still."""
        pipeline = self._redis.pipeline(transaction=False)
        for name in names:
            pipeline.exists(self._keys.snapshot_wanted(name))
            pipeline.get(self._keys.snapshot(name))
        replies = await pipeline.execute()
        return {
            name: (data, bool(wanted)) for name, wanted, data in zip(names, replies[::2], replies[1::2], strict=True)
        }

    async def want_snapshot(self, name: str) -> None:
        await self._redis.set(self._keys.snapshot_wanted(name), b"1", ex=WANTED_EX_S)
