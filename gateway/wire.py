"""The few Redis commands of a gateway, typed. One connection, which reports every loss: retrying is the reader's.

Nothing is read that is longer than it may be: what lies in Redis may have been put there by anybody.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from redis.exceptions import ResponseError

from replica.protocol.records import (
    HEARTBEAT_MAX_BYTES,
    HEARTBEAT_TTL_S,
    REPLICAS_MAX,
    SNAPSHOT_HEAD_MAX_BYTES,
    Keys,
    RecordError,
    check_snapshot_size,
)
from replica.protocol.redis_link import RedisLink
from replica.protocol.redis_url import RedisUrl

BATCH = 500
SOCKET_S = 5.0
"""A Redis that takes a second for each reply is slow, not lost."""
WANTED_EX_S = 10

StreamId = tuple[int, int]
ZERO: StreamId = (0, 0)
Entry = tuple[StreamId, dict[bytes, bytes]]

_OTHER_TYPE = b"(its key holds another type)"
"""Stands for a value that can't be read: no record, and one that says why in the log."""


def stream_id(raw: bytes | str) -> StreamId:
    """Raises RecordError."""
    text = raw.decode(errors="replace") if isinstance(raw, bytes) else raw
    milliseconds, _, sequence = text.partition("-")
    if not all(part.isascii() and part.isdigit() and len(part) <= 20 for part in (milliseconds, sequence or "0")):
        raise RecordError(f"stream id {text[:64]!r}")
    return int(milliseconds), int(sequence or 0)


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

    def __init__(self, url: RedisUrl, keys: Keys) -> None:
        self._keys = keys
        self._link = RedisLink(url, keys.stream, SOCKET_S)

    async def __aenter__(self) -> "Wire":
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

    async def next_entries(self, after: StreamId, wait_s: float) -> list[Entry]:
        """Waits for entries, at most so long."""
        block_ms = max(1, round(wait_s * 1000))
        reply = await self.redis.xread({self._keys.stream: format_id(after)}, count=BATCH, block=block_ms)
        return [(stream_id(raw_id), fields) for _, entries in reply for raw_id, fields in entries]

    async def entries(self, after: StreamId) -> list[Entry]:
        """The next BATCH entries there are; fewer at the end."""
        reply = await self.redis.xrange(self._keys.stream, min=f"({format_id(after)}", count=BATCH)
        return [(stream_id(raw_id), fields) for raw_id, fields in reply]

    async def stream_state(self) -> StreamState:
        try:
            info = await self.redis.xinfo_stream(self._keys.stream)
        except ResponseError as error:
            # NOTE: every refusal is a ResponseError; only one of them says that there is no stream.
            if "no such key" not in str(error).lower():
                raise
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
        """Names as they are, also odd ones; REPLICAS_MAX of them at most, even if more are there."""
        await self._link.verify()
        names = await self.redis.srandmember(self._keys.replicas, REPLICAS_MAX)
        return sorted(name.decode(errors="replace") for name in names)

    async def heartbeats(self, names: Sequence[str]) -> dict[str, tuple[bytes, float]]:
        """Of those that have one: the record and its age in seconds.

        The age comes from the key's remaining life, so by no clock but Redis's own, and is negative where that was set
        back. Of a record that is too long just enough is read to see that.
        """
        if not names:
            return {}
        pipeline = self.redis.pipeline(transaction=False)
        for name in names:
            pipeline.getrange(self._keys.heartbeat(name), 0, HEARTBEAT_MAX_BYTES)
            pipeline.pttl(self._keys.heartbeat(name))
        replies = await _executed(pipeline)
        return {
            name: (value, 0.0 if ttl_ms < 0 else HEARTBEAT_TTL_S - ttl_ms / 1000)
            for name, value, ttl_ms in zip(names, replies[::2], replies[1::2], strict=True)
            if value
        }

    async def snapshot_heads(self, names: Sequence[str]) -> dict[str, bytes]:
        """The beginnings of the snapshots that are there: enough to tell one from another."""
        pipeline = self.redis.pipeline(transaction=False)
        for name in names:
            pipeline.getrange(self._keys.snapshot(name), 0, SNAPSHOT_HEAD_MAX_BYTES - 1)
        return {name: head for name, head in zip(names, await _executed(pipeline), strict=True) if head}

    async def snapshot(self, name: str) -> bytes | None:
        """Of one whose length isn't what it says itself only the beginning is read; one that is being written anew
        meanwhile is none."""
        start, size = before = await self._start_and_size(name)
        if size <= len(start):
            return start if start and size == len(start) else None
        try:
            check_snapshot_size(start, size)
        except RecordError:
            return start if before == await self._start_and_size(name) else None
        value = bytes(await self.redis.getrange(self._keys.snapshot(name), 0, size - 1))
        return value if value.startswith(start) and len(value) == size else None

    async def _start_and_size(self, name: str) -> tuple[bytes, int]:
        key = self._keys.snapshot(name)
        pipeline = self.redis.pipeline(transaction=False)
        pipeline.getrange(key, 0, SNAPSHOT_HEAD_MAX_BYTES - 1)
        pipeline.strlen(key)
        start, size = await _executed(pipeline)
        return bytes(start), len(start) if size == _OTHER_TYPE else int(size)

    async def want_snapshot(self, name: str) -> None:
        await self.redis.set(self._keys.snapshot_wanted(name), b"1", ex=WANTED_EX_S)


async def _executed(pipeline: Any) -> list[Any]:
    """Replies in which one key of a wrong type doesn't hide the others."""
    replies = await pipeline.execute(raise_on_error=False)
    for number, reply in enumerate(replies):
        if isinstance(reply, ResponseError) and str(reply).startswith("WRONGTYPE"):
            replies[number] = _OTHER_TYPE
        elif isinstance(reply, BaseException):
            raise reply
    return list(replies)
