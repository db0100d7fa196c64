"""Redis to index and fleet: the stream of digests, in order; heartbeats; and repair of whatever was lost between. What
other gateways tell comes by the same connection, after what digests there are.

One task, one connection. A replica's part of the index is right as of its `seq` or it is gone from the index and waits
for repair: its snapshot, then the stream from where the snapshot was taken. What the stream no longer has is asked of
the replica itself. What is believed and what has to be repaired is decided in follower.py.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from redis.exceptions import NoPermissionError, OutOfMemoryError, RedisError, ResponseError

from gateway.addresses import DEFAULT_NETWORKS, AddressList
from gateway.fleet import Beat, Fleet
from gateway.index.follower import Follower
from gateway.index.prefix_index import Applied, PrefixIndex
from gateway.index.pulses import Pulses
from gateway.intents.listener import Listener
from gateway.records_gate import RecordsGate
from gateway.wire import BATCH, ZERO, Entry, StreamId, StreamState, stream_id
from replica.protocol.intents import Intents
from replica.protocol.records import (
    Delta,
    Heartbeat,
    Keys,
    RecordError,
    StateChange,
    check_replica_id,
    snapshot_position,
)
from replica.protocol.redis_link import Complaints, being_cancelled, explain
from replica.protocol.signing import Signer

log = logging.getLogger(__name__)

POLL_S = 0.25
REPAIRS_AT_ONCE = 8
"""Between two polls: a fleet that is joined must not be read in one go."""
HOLD_S = 0.0005
"""Then others get the event loop; what is begun by then may take a millisecond more."""
CHECKED_AT_ONCE_BYTES = 1 << 20
"""Of a snapshot. Checking a signature takes 1 ms for so many."""
BACK_OFF_MAX_S = 0.75
COMPLAINTS_MAX = 1000
HEAR_PERIOD_S = 0.002
"""Asking costs ten times what hearing does: where others say a lot, some of it comes with each answer."""
HEARD_AT_ONCE_S = 0.01
"""Of what gateways tell; then it's the digests' turn again."""
SWEPT_AT_A_POLL = 64
"""Shards: the whole index in 4 s."""

_T = TypeVar("_T")


def _ignore(intents: Intents, now: float) -> None: ...


class ReaderWire(Protocol):
    """What the reader asks of Redis: `gateway.wire.Wire` in life. Raises RedisError, OSError or TimeoutError."""

    async def next_entries(
        self, after: StreamId, told_after: StreamId | None, wait_s: float
    ) -> tuple[list[Entry], list[Entry]]: ...
    async def entries(self, after: StreamId) -> list[Entry]: ...
    async def stream_state(self) -> StreamState: ...
    async def stream_states(self) -> tuple[StreamState, StreamState | ResponseError]: ...
    async def members(self) -> list[str]: ...
    async def heartbeats(self, names: Sequence[str]) -> dict[str, tuple[bytes, float]]: ...
    async def snapshot_heads(self, names: Sequence[str]) -> dict[str, bytes]: ...
    async def snapshot(self, name: str) -> tuple[bytes, bytes] | None: ...
    async def want_snapshot(self, name: str) -> None: ...


class ReaderEvents(Protocol):
    """What the reader tells the metrics."""

    def resync(self, reason: str) -> None:
        """A replica's part of the index has to be read anew."""

    def bad_record(self, reason: str) -> None:
        """A record in Redis that can't be read or believed."""

    def digest_lag(self, seconds: float) -> None:
        """Age of a delta when it was applied."""

    def redis_up(self, up: bool) -> None: ...


class IndexReader:
    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[ReaderWire]],
        index: PrefixIndex,
        fleet: Fleet,
        events: ReaderEvents,
        on_fleet: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
        gate: RecordsGate | None = None,
        on_intents: Callable[[Intents, float], object] = _ignore,
    ) -> None:
        """`gate` says which records are believed; without one, all that are well-formed. `on_intents` gets what
        gateways tell each other, with the time."""
        self._gate = gate or RecordsGate(Keys(), Signer(), AddressList(DEFAULT_NETWORKS))
        self._connect = connect
        self._index = index
        self._fleet = fleet
        self._events = events
        self._on_fleet = on_fleet
        self._clock = clock
        self._wall_clock = wall_clock
        self._jitter = jitter
        self.follower = Follower(index, events.resync)
        self.pulses = Pulses()
        self._cursor = ZERO
        self._added = 0
        self._announced: set[str] = set()
        """Replicas that said something about themselves since the last poll."""
        self._complained: set[tuple[str, str]] = set()
        self._losses = Complaints()
        self._poll_at = 0.0
        self._held_since = 0.0
        self._listener = Listener(self._gate.intents, on_intents, events.bad_record)

    async def run(self) -> None:
        """Until cancelled: reads, and connects again whenever the connection is lost."""
        failures = 0
        while not being_cancelled():
            try:
                async with self._connect() as wire:
                    await self._start(wire)
                    if failures:
                        log.warning("Redis is back")
                    failures = 0
                    while not being_cancelled():
                        await self._step(wire)
            except (RedisError, OSError, TimeoutError) as error:
                reason = explain(error)
                if self._losses.is_new(reason, self._clock()):
                    log.warning("lost Redis, serving on from what is known: %s", reason)
            self._fleet.freeze()
            self._events.redis_up(False)
            failures += 1
            ceiling = min(BACK_OFF_MAX_S, 0.05 * 2 ** min(failures, 10))
            await asyncio.sleep(ceiling * (0.5 + self._jitter() / 2))

    async def _start(self, wire: ReaderWire) -> None:
        """Goes on where the stream was left, if it's still there; what was lost meanwhile will show."""
        stream = await wire.stream_state()
        self.follower.connected()
        self.pulses.connected(self._clock())
        self._listener.connected()
        if self._cursor == ZERO:
            self._cursor, self._added = stream.last, stream.added
        await self._poll(wire)
        self._events.redis_up(True)

    async def _step(self, wire: ReaderWire) -> None:
        """Reads what has come, at most until the next poll is due, and repairs what is due."""
        entries = await self._read(wire, min(self._poll_at, self.follower.next_due()))
        if len(entries) < BATCH:
            self.follower.check_promises(self._clock())
        if self._announced or self._clock() >= self._poll_at:
            await self._poll(wire)
        await self._repair(wire, self.follower.due(self._clock())[:REPAIRS_AT_ONCE])

    async def _read(self, wire: ReaderWire, due: float) -> list[Entry]:
        """Takes the next digests, which it returns. Hears other gateways until there are any: what a step does besides
        looks at every replica, and they may say something 2,000 times a second."""
        while True:
            entries, told = await wire.next_entries(self._cursor, self._listener.after, due - self._clock())
            await self._pause()
            for entry in entries:
                await self._take(entry)
                self._cursor = entry[0]
                await self._breathe()
            ask_again_at = self._held_since + HEAR_PERIOD_S
            await self._hear(told)
            if entries or self._clock() >= due:
                return entries
            await asyncio.sleep(min(ask_again_at, due) - self._clock())

    async def _hear(self, told: list[Entry]) -> None:
        until = self._clock() + HEARD_AT_ONCE_S
        for entry in told:
            if self._clock() > until:
                # NOTE: the others will be read again.
                return
            self._listener.take(entry, self._clock())
            await self._breathe()
        if len(told) < BATCH:
            self._listener.drained(self._clock())

    async def _pause(self) -> None:
        """Lets others have the event loop."""
        await asyncio.sleep(0)
        self._held_since = self._clock()

    async def _breathe(self) -> None:
        """The same, after a while."""
        if self._clock() > self._held_since + HOLD_S:
            await self._pause()

    async def _take(self, entry: Entry) -> None:
        entry_id, fields = entry
        try:
            record = self._gate.entry(fields)
        except RecordError as error:
            self._complain(_replica_of(entry), error)
            return
        if isinstance(record, StateChange):
            self._announced.add(record.replica)
            return
        applied = await _in_steps(self.follower.take(record, self._clock()))
        if applied is Applied.OK:
            self._events.digest_lag(max(0.0, self._wall_clock() - entry_id[0] / 1000))
        self._say(record.replica, applied, "delta")

    async def _poll(self, wire: ReaderWire) -> None:
        """Reads all heartbeats, and looks whether the stream is still the one that was being read."""
        self._poll_at = self._clock() + POLL_S
        announced, self._announced = self._announced, set()
        members = await wire.members()
        stream, told = await wire.stream_states()
        # The heartbeats last: nothing else is read between seeing a new epoch in them and voiding the old one.
        raw = await wire.heartbeats([name for name in members if self._is_valid_id(name)])
        now = self._clock()
        await self._pause()
        self.pulses.look(now)
        beats = {}
        for name, (data, age_s) in raw.items():
            heartbeat = self._decode_beat(name, data)
            if heartbeat is not None and self.pulses.is_alive(name, heartbeat, now, now - age_s):
                beats[name] = Beat(heartbeat, max(0.0, age_s))
            await self._breathe()
        # One without a heartbeat may have lost it to Redis; one that left has said so.
        kept = {
            replica
            for replica in self._fleet.present()
            if replica not in beats and replica not in announced and self.pulses.may_be_alive(replica, now)
        }
        self._fleet.update(beats, now, kept)
        self._follow(now)
        self._check_stream(stream)
        self._listener.look(told.last if isinstance(told, StreamState) else told, now)
        self._on_fleet()
        for _ in range(SWEPT_AT_A_POLL):
            self._index.sweep()
            await self._breathe()

    def _follow(self, now: float) -> None:
        """Follows the digests of the replicas that are there and talk about the same blocks as we do."""
        heartbeats = {}
        for replica in self._fleet.present():
            differences = self._fleet.differences(replica)
            if differences:
                self.follower.forget(replica)
                self._warn_once(replica, f"no credit for its cache: {'; '.join(map(str, differences))}")
            else:
                heartbeats[replica] = self._fleet.heartbeat(replica)
        self.follower.heard(heartbeats, now)

    def _check_stream(self, stream: StreamState) -> None:
        if stream.last < self._cursor or stream.added < self._added:
            # Wiped, or another Redis: with ids below ours nothing new would ever be read.
            self._cursor = ZERO
            self.follower.doubt("wiped")
        elif stream.first > self._cursor and not stream.untrimmed:
            self.follower.doubt("trimmed")
        self._added = stream.added

    def _is_valid_id(self, name: str) -> bool:
        try:
            check_replica_id(name)
        except RecordError as error:
            self._complain(name, error)
            return False
        return True

    def _decode_beat(self, name: str, data: bytes) -> Heartbeat | None:
        try:
            return self._gate.heartbeat(name, data)
        except RecordError as error:
            self._complain(name, error)
            return None

    async def _repair(self, wire: ReaderWire, replicas: Sequence[str]) -> None:
        """Loads snapshots, then replays the stream since; asks for new ones where that doesn't do."""
        if not replicas:
            return
        heads = await wire.snapshot_heads(replicas)
        stream = await wire.stream_state()
        started: dict[str, StreamId] = {}
        for replica in replicas:
            head = heads.get(replica, b"")
            if head and head != self.follower.tried(replica) and self._may_do(replica, head, stream):
                start = await self._load(wire, replica)
                if start is not None:
                    started[replica] = start
                await self._breathe()
        await self._replay(wire, started)
        for replica in replicas:
            if not (replica in started and self.follower.repaired(replica)):
                await self._ask(wire, replica, heads.get(replica, b""))

    async def _ask(self, wire: ReaderWire, replica: str, tried: bytes) -> None:
        self.follower.retry(replica, tried, self._clock())
        try:
            await wire.want_snapshot(replica)
        except (OutOfMemoryError, NoPermissionError) as error:
            self._warn_once(replica, f"can't ask for a snapshot: {explain(error)}")

    def _may_do(self, replica: str, head: bytes, stream: StreamState) -> bool:
        """Whether a snapshot that begins like this isn't known to be too old: with 50,000 blocks it has 400 kB."""
        try:
            seq, raw_start = snapshot_position(head)
            start = stream_id(raw_start)
        except RecordError:
            # What is wrong with it shows when it's read in full.
            return True
        return self.follower.may_do(replica, seq, stream.reaches_back_to(start))

    async def _load(self, wire: ReaderWire, replica: str) -> StreamId | None:
        """The stream id behind which its replay starts; None for a snapshot that won't do."""
        found = await wire.snapshot(replica)
        if found is None:
            return None
        self._held_since = self._clock()
        try:
            if len(found[1]) > CHECKED_AT_ONCE_BYTES:
                snapshot = await asyncio.to_thread(self._gate.snapshot, replica, *found)
            else:
                snapshot = self._gate.snapshot(replica, *found)
            start = stream_id(snapshot.stream_id)
        except RecordError as error:
            self._complain(replica, error)
            return None
        await self._breathe()
        applied = await _in_steps(self.follower.load(replica, snapshot))
        self._say(replica, applied, "snapshot")
        return start if applied is Applied.OK else None

    async def _replay(self, wire: ReaderWire, started: Mapping[str, StreamId]) -> None:
        """Applies the stream since the snapshots to the replicas that were just loaded."""
        if not started:
            return
        cursor = min(started.values())
        while True:
            entries = await wire.entries(cursor)
            await self._pause()
            for entry in entries:
                cursor = entry[0]
                if cursor > started.get(_replica_of(entry), cursor):
                    await self._replay_entry(entry)
                await self._breathe()
            if len(entries) < BATCH:
                return

    async def _replay_entry(self, entry: Entry) -> None:
        # NOTE: what can't be read is complained about when it's read in its turn.
        with contextlib.suppress(RecordError):
            record = self._gate.entry(entry[1])
            if isinstance(record, Delta):
                self._say(record.replica, await _in_steps(self.follower.replay(record)), "delta")

    def _complain(self, replica: str, error: RecordError) -> None:
        """Counts every bad record, and logs each kind once a replica."""
        self._events.bad_record(error.reason)
        self._warn_once(replica, str(error))

    def _say(self, replica: str, applied: Applied | None, what: str) -> None:
        """What people should know of a record's end."""
        if applied is Applied.FULL:
            self._warn_once(replica, f"no credit for its cache: the index is full ({len(self._index)} blocks)")
        elif applied is Applied.ROOT:
            self._complain(replica, RecordError(f"{what}: the hashes don't give its count and root", "root"))

    def _warn_once(self, replica: str, what: str) -> None:
        kind = (replica[:64], what[:40])
        if kind not in self._complained and len(self._complained) < COMPLAINTS_MAX:
            self._complained.add(kind)
            log.warning("replica %r: %s", kind[0], what)


async def _in_steps(steps: Generator[None, None, _T]) -> _T:
    """Has others at the event loop between the steps."""
    with contextlib.closing(steps):
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                result: _T = stop.value
                return result
            await asyncio.sleep(0)


def _replica_of(entry: Entry) -> str:
    return entry[1].get(b"replica", b"?").decode(errors="replace")
