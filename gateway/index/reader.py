"""Redis to index and fleet: the stream of digests, in order; heartbeats; and repair of whatever was lost between.

One task, one connection. A replica's part of the index is right as of its `seq` or it is gone from the index and waits
here for repair: its snapshot, then the stream from where the snapshot was taken. What the stream no longer has is
asked of the replica itself. Any doubt about Redis (a lost connection, a wiped keyspace) ends in the same repair.
"""

import asyncio
import logging
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from redis.exceptions import OutOfMemoryError, RedisError

from gateway.fleet import Beat, Fleet
from gateway.index.prefix_index import Applied, PrefixIndex
from gateway.wire import BATCH, ZERO, Entry, StreamId, StreamState, Wire, stream_id
from replica.protocol.records import Delta, Heartbeat, Keys, RecordError, Snapshot, StateChange, decode_entry

log = logging.getLogger(__name__)

POLL_S = 0.25
RETRY_S = 0.2
BACK_OFF_MAX_S = 2.0
COMPLAINTS_MAX = 1000

REPLICA_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")
REPLICA_URL = re.compile(r"https?://(?!169\.254\.|\[fe80:)[^/?#@\s]+")
"""What a replica may call itself and where it may live: records in Redis are not to be believed blindly."""


class ReaderEvents(Protocol):
    """What the reader tells the metrics."""

    def resync(self, reason: str) -> None:
        """A replica's part of the index has to be read anew."""

    def bad_record(self) -> None:
        """A record in Redis that can't be read or believed."""

    def digest_lag(self, seconds: float) -> None:
        """Age of a delta when it was applied."""

    def redis_up(self, up: bool) -> None: ...


@dataclass(slots=True)
class _Repair:
    reason: str
    due: float = 0.0
    asked: bool = False
    """The replica was asked for a new snapshot."""
    answered: bool = False
    """It has taken note at the last look, and so has written one by the next."""


class IndexReader:
    def __init__(
        self,
        url: str,
        keys: Keys,
        index: PrefixIndex,
        fleet: Fleet,
        events: ReaderEvents,
        on_fleet: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._url = url
        self._keys = keys
        self._index = index
        self._fleet = fleet
        self._events = events
        self._on_fleet = on_fleet
        self._clock = clock
        self._wall_clock = wall_clock
        self._jitter = jitter
        self._cursor = ZERO
        self._added = 0
        self._after: dict[str, StreamId] = {}
        """Entries of a replica up to here are in its snapshot, or were read."""
        self._epochs: dict[str, str] = {}
        """Epochs of the heartbeats of the replicas that the index follows."""
        self._repairs: dict[str, _Repair] = {}
        self._complained: set[tuple[str, str]] = set()
        self._poll_at = 0.0

    async def run(self) -> None:
        """Until cancelled: reads, and connects again whenever the connection is lost."""
        failures = 0
        while not _cancelled():
            try:
                async with Wire(self._url, self._keys) as wire:
                    await self._start(wire)
                    if failures:
                        log.warning("Redis is back")
                    failures = 0
                    while not _cancelled():
                        await self._step(wire)
            except (RedisError, OSError, TimeoutError) as error:
                if failures == 0:
                    log.warning("lost Redis, serving on from what is known: %s", error)
            self._fleet.freeze()
            self._events.redis_up(False)
            failures += 1
            ceiling = min(BACK_OFF_MAX_S, 0.05 * 2 ** min(failures, 10))
            await asyncio.sleep(ceiling * (0.5 + self._jitter() / 2))

    async def _start(self, wire: Wire) -> None:
        """Whatever was published while nobody listened may be lost: doubt every replica."""
        stream = await wire.stream_state()
        self._cursor, self._added = stream.last, stream.added
        for replica in self._epochs:
            self._want(replica, "reconnect")
        await self._poll(wire)
        self._events.redis_up(True)
        await self._repair_due(wire)

    async def _step(self, wire: Wire) -> None:
        """Reads what has come, at most until the next poll is due, and repairs what is due."""
        due = min([self._poll_at, *(repair.due for repair in self._repairs.values())])
        state_changed = False
        for entry in await wire.next_entries(self._cursor, due - self._clock()):
            self._cursor = entry[0]
            state_changed |= self._take(entry)
        if state_changed or self._clock() >= self._poll_at:
            await self._poll(wire)
        await self._repair_due(wire)

    def _take(self, entry: Entry) -> bool:
        """Takes one stream entry; true where it says that heartbeats should be read now."""
        entry_id, fields = entry
        try:
            record = decode_entry(fields)
        except RecordError as error:
            self._complain(_replica_of(entry), error)
            return False
        if isinstance(record, StateChange):
            return True
        self._take_delta(entry_id, record)
        return False

    def _take_delta(self, entry_id: StreamId, delta: Delta) -> None:
        replica = delta.replica
        if replica not in self._epochs or entry_id <= self._after.get(replica, ZERO):
            return
        self._after[replica] = entry_id
        repair = self._repairs.get(replica)
        if repair is not None and self._index.position(replica) is None and delta.seq != 1:
            return
        applied = self._index.apply(delta)
        if applied is Applied.OK:
            self._events.digest_lag(max(0.0, self._wall_clock() - entry_id[0] / 1000))
        elif applied is not Applied.STALE:
            self._want(replica, applied.value)

    def _want(self, replica: str, reason: str) -> None:
        if replica not in self._repairs:
            self._repairs[replica] = _Repair(reason)
            self._events.resync(reason)

    async def _poll(self, wire: Wire) -> None:
        """Reads all heartbeats, and looks whether the stream is still the one that was being read."""
        self._poll_at = self._clock() + POLL_S
        members = await wire.members()
        raw = await wire.heartbeats([name for name in members if self._is_valid_id(name)])
        beats = {
            name: Beat(heartbeat, age_s)
            for name, (data, age_s) in raw.items()
            if (heartbeat := self._decode_beat(name, data)) is not None
        }
        self._fleet.update(beats, self._clock(), wiped=not members)
        self._follow(beats)
        self._check_stream(await wire.stream_state())
        self._index.sweep(shards=16)
        self._on_fleet()

    def _check_stream(self, stream: StreamState) -> None:
        if stream.last < self._cursor or stream.added < self._added:
            # Wiped, or another Redis: with ids below ours nothing new would ever be read, and what was published
            # just before is lost even where ids go on rising.
            self._cursor = ZERO
            self._after.clear()
            for replica in self._epochs:
                self._want(replica, "wiped")
        self._added = stream.added

    def _is_valid_id(self, name: str) -> bool:
        valid = REPLICA_ID.fullmatch(name) is not None
        if not valid:
            self._complain(name, RecordError("replica id has odd characters"))
        return valid

    def _decode_beat(self, name: str, data: bytes) -> Heartbeat | None:
        try:
            heartbeat = Heartbeat.decode(data)
            if heartbeat.replica != name:
                raise RecordError(f"heartbeat of {heartbeat.replica!r} under another replica's key")
            if not REPLICA_URL.fullmatch(str(heartbeat.url)):
                raise RecordError("heartbeat: its url may not be called")
        except RecordError as error:
            self._complain(name, error)
            return None
        return heartbeat

    def _follow(self, beats: Mapping[str, Beat]) -> None:
        """Follows the digests of the replicas that are there and talk about the same blocks as we do."""
        for replica, beat in beats.items():
            differences = self._fleet.differences(replica)
            if differences:
                self._unfollow(replica)
                self._complain(replica, RecordError(f"no credit for its cache: {'; '.join(differences)}"))
                continue
            epoch = beat.heartbeat.epoch
            known = self._epochs.get(replica)
            self._epochs[replica] = epoch
            position = self._index.position(replica)
            if known is None:
                self._want(replica, "join")
            elif known != epoch and (position is None or position[0] != epoch):
                self._index.drop(replica)
                self._want(replica, "epoch")
        for replica in self._epochs.keys() - set(self._fleet.present()):
            self._unfollow(replica)

    def _unfollow(self, replica: str) -> None:
        self._index.drop(replica)
        self._epochs.pop(replica, None)
        self._after.pop(replica, None)
        self._repairs.pop(replica, None)

    async def _repair_due(self, wire: Wire) -> None:
        now = self._clock()
        due = [replica for replica, repair in self._repairs.items() if repair.due <= now]
        if not due:
            return
        snapshots = await wire.snapshots(due)
        stream = await wire.stream_state()
        started = {
            replica: start
            for replica, (data, wanted) in snapshots.items()
            if (start := self._load(replica, data, wanted, stream)) is not None
        }
        await self._replay(wire, started)
        for replica in due:
            if replica in started and self._index.position(replica) is not None:
                del self._repairs[replica]
            else:
                await self._again(wire, replica)

    async def _again(self, wire: Wire, replica: str) -> None:
        """Asks the replica for a snapshot, and looks again soon."""
        repair = self._repairs[replica]
        repair.due = self._clock() + RETRY_S
        repair.asked = True
        if repair.answered:
            return
        try:
            await wire.want_snapshot(replica)
        except OutOfMemoryError as error:
            self._complain(replica, RecordError(f"can't ask for a snapshot: {error}"))

    def _load(self, replica: str, data: bytes | None, wanted: bool, stream: StreamState) -> StreamId | None:
        """Loads a snapshot, if it will do; the stream id behind which its replay starts, or None."""
        repair = self._repairs[replica]
        answered, repair.answered = repair.answered, False
        if data is None:
            return None
        try:
            snapshot = Snapshot.decode(data)
            start = stream_id(snapshot.stream_id)
        except RecordError as error:
            self._complain(replica, error)
            return None
        if snapshot.epoch != self._epochs[replica]:
            return None
        if not stream.reaches_back_to(start) and not answered:
            # Entries after this snapshot may be gone, unless it is the one that was asked for.
            repair.answered = repair.asked and not wanted
            return None
        position = self._index.position(replica)
        if position is None or position[0] != snapshot.epoch or position[1] < snapshot.seq:
            self._index.load(replica, snapshot)
        return start

    async def _replay(self, wire: Wire, started: Mapping[str, StreamId]) -> None:
        """Applies the stream since the snapshots to the replicas that were just loaded."""
        if not started:
            return
        self._after.update(started)
        cursor = min(started.values())
        while True:
            entries = await wire.entries(cursor)
            for entry in entries:
                cursor = entry[0]
                if _replica_of(entry) in started:
                    self._take(entry)
            if len(entries) < BATCH:
                return

    def _complain(self, replica: str, error: RecordError) -> None:
        """Counts every bad record, and logs each kind once a replica."""
        self._events.bad_record()
        kind = str(error)[:40]
        if (replica, kind) not in self._complained and len(self._complained) < COMPLAINTS_MAX:
            self._complained.add((replica, kind))
            log.warning("replica %r: %s", replica, error)


def _cancelled() -> bool:
    """NOTE: up to Python 3.11 `asyncio.wait_for`, in the Redis client, swallows a cancellation that comes just as a
    reply does, so the exception alone can't be relied on."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _replica_of(entry: Entry) -> str:
    return entry[1].get(b"replica", b"?").decode(errors="replace")
