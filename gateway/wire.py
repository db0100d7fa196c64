"""The few Redis commands of a gateway, typed. One connection, which reports every loss: retrying is the reader's.

Nothing is read that is longer than it may be: what lies in Redis may have been put there by anybody.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from replica.protocol.fleet_wire import FleetWire
from replica.protocol.intents import STREAM_MAX_ENTRIES as INTENTS_MAX_ENTRIES
from replica.protocol.records import (
    FLEET_TTL_S,
    HEARTBEAT_MAX_BYTES,
    HEARTBEAT_TTL_S,
    REPLICAS_MAX,
    SNAPSHOT_HEAD_MAX_BYTES,
    Keys,
    RecordError,
    StreamFields,
    check_snapshot_size,
    split_snapshot,
)
from replica.protocol.redis_url import RedisUrl
from replica.protocol.signing import Signer

BATCH = 100
"""Entries of each stream. The client library takes as many replies apart in one go: 1 ms."""
PIECE_BYTES = 512 << 10
"""Of a snapshot."""
SOCKET_S = 5.0
"""A Redis that takes a second for each reply is slow, not lost."""
WANTED_EX_S = 10
RENEW_S = 10.0
"""What the gateways' stream has to live is renewed so often, not with each entry."""

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


class Wire(FleetWire):
    def __init__(
        self, url: RedisUrl, keys: Keys, signer: Signer | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`signer`: for what is added."""
        super().__init__(url, keys, SOCKET_S)
        self._signer = signer or Signer()
        self._clock = clock
        self._renew_at = float("-inf")

    async def next_entries(
        self, after: StreamId, told_after: StreamId | None, wait_s: float
    ) -> tuple[list[Entry], list[Entry]]:
        """The next ones of the replicas' stream, and of the gateways', which isn't read without an id. Waits for any,
        at most so long."""
        starts = {self._keys.stream: format_id(after)}
        if told_after is not None:
            starts[self._keys.intents] = format_id(told_after)
        block_ms = max(1, round(wait_s * 1000))
        try:
            reply = await self.redis.xread(starts, count=BATCH, block=block_ms)
        except ResponseError as error:
            if told_after is None or not _is_unreadable(error):
                raise
            # One of the two, and it doesn't say which.
            return await self.next_entries(after, None, wait_s)
        found = {key: [(stream_id(raw_id), fields) for raw_id, fields in entries] for key, entries in reply}
        return found.get(self._keys.stream.encode(), []), found.get(self._keys.intents.encode(), [])

    async def entries(self, after: StreamId) -> list[Entry]:
        """The next BATCH entries there are; fewer at the end."""
        reply = await self.redis.xrange(self._keys.stream, min=f"({format_id(after)}", count=BATCH)
        return [(stream_id(raw_id), fields) for raw_id, fields in reply]

    async def stream_state(self) -> StreamState:
        try:
            return _state_of(await self.redis.xinfo_stream(self._keys.stream))
        except ResponseError as error:
            return _state_of(error)

    async def stream_states(self) -> tuple[StreamState, StreamState | ResponseError]:
        """Of the replicas' stream and the gateways': the latter's loss must not be that of the former."""
        pipeline = self.redis.pipeline(transaction=False)
        pipeline.xinfo_stream(self._keys.stream)
        pipeline.xinfo_stream(self._keys.intents)
        digests, told = await pipeline.execute(raise_on_error=False)
        return _state_of(digests), told if _is_unreadable(told) else _state_of(told)

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

    async def snapshot(self, name: str) -> tuple[bytes, bytes] | None:
        """In two parts, as in `split_snapshot`, read in pieces. Of one whose length isn't what it says itself only the
        beginning is read; one that is being written anew meanwhile is none."""
        start, size = before = await self._start_and_size(name)
        if size <= len(start):
            return split_snapshot(start) if start and size == len(start) else None
        try:
            check_snapshot_size(start, size)
        except RecordError:
            return split_snapshot(start) if before == await self._start_and_size(name) else None
        head, _ = split_snapshot(start)
        pipeline = self.redis.pipeline(transaction=False)
        for at in range(len(head), size, PIECE_BYTES):
            pipeline.getrange(self._keys.snapshot(name), at, min(at + PIECE_BYTES, size) - 1)
        *pieces, start_then, size_then = await self._executed_with_start(pipeline, name)
        if (start_then, size_then) != before:
            return None
        # NOTE: join() lets go of the GIL, a slice wouldn't.
        return head, pieces[0] if len(pieces) == 1 else await asyncio.to_thread(b"".join, pieces)

    async def _start_and_size(self, name: str) -> tuple[bytes, int]:
        start, size = await self._executed_with_start(self.redis.pipeline(transaction=False), name)
        return start, size

    async def _executed_with_start(self, pipeline: Any, name: str) -> list[Any]:
        """The replies, then the snapshot's beginning and size."""
        key = self._keys.snapshot(name)
        pipeline.getrange(key, 0, SNAPSHOT_HEAD_MAX_BYTES - 1)
        pipeline.strlen(key)
        *replies, start, size = await _executed(pipeline)
        return [*replies, start, len(start) if size == _OTHER_TYPE else size]

    async def want_snapshot(self, name: str) -> None:
        await self.redis.set(self._keys.snapshot_wanted(name), b"1", ex=WANTED_EX_S)

    async def add(self, entry: StreamFields) -> None:
        """To the gateways' stream."""
        await self._link.verify()
        stream, now = self._keys.intents, self._clock()
        # NOTE: the cap is a part of the command and costs Redis nothing until a node of its tree can go.
        options = {"maxlen": INTENTS_MAX_ENTRIES, "approximate": True}
        if now < self._renew_at:
            await self.redis.xadd(stream, self._signer.sign_entry(stream, entry), **options)
            return
        pipeline = self.redis.pipeline(transaction=False)
        pipeline.xadd(stream, self._signer.sign_entry(stream, entry), **options)
        pipeline.pexpire(stream, int(FLEET_TTL_S * 1000))
        await pipeline.execute()
        self._renew_at = now + RENEW_S


def _state_of(reply: Any) -> StreamState:
    """Of a reply to XINFO STREAM. Raises it, if it is an error that says more than that there is no stream."""
    if isinstance(reply, BaseException):
        # NOTE: every refusal is a ResponseError.
        if not isinstance(reply, ResponseError) or "no such key" not in str(reply).lower():
            raise reply
        return StreamState(first=ZERO, last=ZERO, added=0, exists=False, untrimmed=True)
    last = stream_id(reply["last-generated-id"])
    return StreamState(
        first=stream_id(reply["first-entry"][0]) if reply["first-entry"] else last,
        last=last,
        added=reply["entries-added"],
        exists=True,
        untrimmed=reply["entries-added"] == reply["length"],
    )


def _is_unreadable(reply: Any) -> bool:
    """Whether it says that this key can't be read, whatever others can."""
    return isinstance(reply, NoPermissionError) or (
        isinstance(reply, ResponseError) and str(reply).startswith("WRONGTYPE")
    )


async def _executed(pipeline: Any) -> list[Any]:
    """Replies in which one key of a wrong type doesn't hide the others."""
    replies = await pipeline.execute(raise_on_error=False)
    for number, reply in enumerate(replies):
        if isinstance(reply, ResponseError) and str(reply).startswith("WRONGTYPE"):
            replies[number] = _OTHER_TYPE
        elif isinstance(reply, BaseException):
            raise reply
    return list(replies)
