"""Digests and heartbeats -> Redis. The engine is never made to wait: it leaves its changes here, net, under a lock
that nobody holds across a wait.

`Publisher` decides and is driven by an event loop's time alone, so a simulation can run it; `PublisherThread` gives it
a thread and a loop of its own; `wire.py` talks to Redis.
"""

import asyncio
import contextlib
import logging
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from redis.exceptions import RedisError

from replica.cache.manager import CacheEvents
from replica.digest import Digest
from replica.protocol.records import HEARTBEAT_PERIOD_S, HEARTBEAT_TTL_S, Delta, Heartbeat, StateChange, StreamFields
from replica.protocol.redis_link import Complaints, explain

_LOG = logging.getLogger(__name__)
_BATCH_S = 0.02
_SECOND_BEAT_S = 0.1
"""After the first one of an epoch. Readers believe a new epoch when its heartbeat has changed once."""
_MAX_BACKOFF_S = 0.5
_LEAVE_S = 1.0
_LOOK_S = 0.1

LOST = (RedisError, OSError, TimeoutError)


class RedisUnreachable(Exception):
    """At start only; later the publisher waits for Redis to come back."""


class IdTaken(Exception):
    """A live replica has this id."""


@dataclass(frozen=True, slots=True)
class Beaten:
    last_id: str | None
    """Of the last entry added, if any was."""
    snapshot_wanted: bool
    """Ours is gone, or a reader asks for a new one."""


class PublisherWire(Protocol):
    """What the publisher asks of Redis: `wire.Wire` in life. Raises RedisError, OSError or TimeoutError."""

    async def heartbeat(self, replica: str) -> bytes | None: ...

    async def add(self, entry: StreamFields) -> str:
        """Adds to the stream; returns the entry's id."""
        ...

    async def write_snapshot(self, replica: str, data: bytes) -> None:
        """Grants the wish for one, too."""
        ...

    async def beat(self, replica: str, heartbeat: bytes, entries: Sequence[StreamFields]) -> Beaten:
        """Adds the entries, then writes the heartbeat and the replica's name, in one round trip."""
        ...

    async def leave(self, replica: str, entry: StreamFields) -> None:
        """Takes away all that is the replica's, then adds the entry."""
        ...


Connect = Callable[[], AbstractAsyncContextManager[PublisherWire]]


async def check_id_is_free(connect: Connect, replica: str, address: str) -> None:
    """`address` is Redis's, for people. Raises IdTaken; RedisUnreachable, also for wrong credentials. Takes up to
    HEARTBEAT_TTL_S where a heartbeat was left behind: a live replica's changes, and only that is sure where Redis's
    clock was set back."""
    try:
        async with connect() as wire:
            taken = await _changes(wire, replica)
    except LOST as error:
        raise RedisUnreachable(f"Redis at {address}: {explain(error)}") from error
    if taken:
        raise IdTaken(f"a replica with the id {replica} is alive in this fleet")


async def _changes(wire: PublisherWire, replica: str) -> bool:
    before = await wire.heartbeat(replica)
    for _ in range(round(HEARTBEAT_TTL_S / _LOOK_S)):
        if before is None:
            return False
        await asyncio.sleep(_LOOK_S)
        now = await wire.heartbeat(replica)
        if now is not None and now != before:
            return True
        before = now
    return False


class Publisher:
    """`run` is the publisher; the other methods tell it things, from any thread."""

    def __init__(
        self,
        connect: Connect,
        digest: Digest,
        heartbeat: Callable[[str], Heartbeat],
        jitter: Callable[[], float] = random.random,
        beats: int = 0,
    ) -> None:
        """`heartbeat` gives the current one for an epoch; `jitter` a number from 0 to 1; `beats` is where to count
        from."""
        self._connect = connect
        self._digest = digest
        self._heartbeat = heartbeat
        self._jitter = jitter
        self._lock = threading.Lock()
        """Guards the digest, `_stirred` and `_loop`."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._stirred = False
        """The cache has changed since the last delta was taken, and the loop knows."""
        self._beat_at = 0.0
        self._beats = beats
        self._epoch_told = ""
        self._is_second = False
        """The next heartbeat is the second one of its epoch."""
        self._state_changed = False
        self._stopping = False
        self._complaints = Complaints()

    def cache_changed(self, events: CacheEvents) -> None:
        if not events.added and not events.removed:
            return
        with self._lock:
            self._digest.change(events.added, events.removed)
            if not self._stirred:
                self._stirred = True
                self._wake_up()

    def cache_replaced(self) -> None:
        with self._lock:
            self._digest.restart()
            self._state_changed = True
            self._wake_up()

    def beat_soon(self) -> None:
        """The state has changed: tell the fleet now."""
        with self._lock:
            self._state_changed = True
            self._wake_up()

    def stop(self) -> None:
        """`run` leaves the fleet and returns."""
        with self._lock:
            self._stopping = True
            self._wake_up()

    def _wake_up(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake.set)

    async def run(self) -> None:
        """Until stopped."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
        try:
            await self._publish()
            await self._leave()
        finally:
            with self._lock:
                self._loop = None

    async def _publish(self) -> None:
        """Joins the fleet and publishes until stopped, anew whenever the connection is lost."""
        backoff = 0.0
        while not self._stopping:
            try:
                async with self._connect() as wire:
                    self._join()
                    while not self._stopping:
                        await self._step(wire)
                        backoff = 0.0
            except LOST as error:
                reason = explain(error)
                if self._complaints.is_new(reason, asyncio.get_running_loop().time()):
                    _LOG.warning("can't publish to Redis, serving on without it: %s", reason)
                backoff = min(_MAX_BACKOFF_S, backoff * 2 or 0.05)
                await self._until_woken(backoff * (0.5 + self._jitter()))

    async def _until_woken(self, limit_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._wake.wait()
        self._wake.clear()

    def _join(self) -> None:
        """Says all anew: what Redis holds of us after a fresh start or a lost connection is unknown."""
        with self._lock:
            self._digest.snapshot_due = True
            self._state_changed = True

    async def _step(self, wire: PublisherWire) -> None:
        """Waits for changes, then for more of them; beats when it's time, or when there's something to say."""
        time = asyncio.get_running_loop().time
        if not (self._stirred or self._state_changed or self._digest.snapshot_due):
            await self._until_woken(self._beat_at - time())
        if self._digest.snapshot_due:
            await self._say_all(wire)
        elif self._stirred and not self._state_changed and time() < self._beat_at:
            await asyncio.sleep(_BATCH_S)
            await self._add(wire, self._next_delta())
        if self._state_changed or time() >= self._beat_at:
            await self._beat(wire)

    def _next_delta(self) -> Delta:
        with self._lock:
            self._stirred = False
            return self._digest.next_delta()

    async def _add(self, wire: PublisherWire, delta: Delta) -> None:
        self._digest.stream_id = await wire.add(delta.encode())

    async def _say_all(self, wire: PublisherWire) -> None:
        """A delta, perhaps an empty one, whose stream id the snapshot then carries: an id known from before may be of a
        stream that is no more. Whoever reads the heartbeat of a new epoch looks for its snapshot: that comes before."""
        await self._add(wire, self._next_delta())
        with self._lock:
            snapshot = self._digest.snapshot()
        try:
            # The loop may be one that serves requests as well.
            await wire.write_snapshot(self._digest.replica, await asyncio.to_thread(snapshot.encode))
        except LOST:
            self._digest.snapshot_due = True
            raise

    async def _beat(self, wire: PublisherWire) -> None:
        """The heartbeat, and what we must know in return."""
        replica = self._digest.replica
        with self._lock:
            state_changed, self._state_changed = self._state_changed, False
            delta = self._digest.next_delta() if self._stirred else None
            self._stirred = False
            epoch, seq = self._digest.epoch, self._digest.seq
        self._beats += 1
        entries = [] if delta is None else [delta.encode()]
        if state_changed or self._is_second:
            entries.append(StateChange(replica).encode())
        beat = replace(self._heartbeat(epoch), seq=seq, beats=self._beats)
        is_first = epoch != self._epoch_told
        self._beat_at = asyncio.get_running_loop().time() + (_SECOND_BEAT_S if is_first else HEARTBEAT_PERIOD_S)
        beaten = await wire.beat(replica, beat.encode(), entries)
        self._epoch_told, self._is_second = epoch, is_first
        if beaten.last_id is not None:
            self._digest.stream_id = beaten.last_id
        if beaten.snapshot_wanted:
            self._digest.snapshot_due = True

    async def _leave(self) -> None:
        """Gateways are told at once."""
        try:
            async with asyncio.timeout(_LEAVE_S), self._connect() as wire:
                await wire.leave(self._digest.replica, StateChange(self._digest.replica).encode())
        except LOST as error:
            _LOG.warning("could not leave the fleet, its heartbeat will expire: %s", explain(error))


class PublisherThread:
    """Runs a publisher beside the engine."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._thread = threading.Thread(target=lambda: asyncio.run(publisher.run()), name="publisher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Leaves the fleet."""
        self._publisher.stop()
        self._thread.join()
