"""Which replica holds which KV block: what an index does, and when it may be believed.

A replica is either here, equal to its own cache as of its `seq`, or not here at all. Pure: time is an argument. A
subclass keeps the sets themselves: `plain_index.py` in Python, `native_index.py` in C++.

Every (replica, epoch) has a slot of its own, so voiding one is marking its slot dead, whatever it held. Dead slots stay
behind in the entries until they are swept, a shard at a time; then the slot is used again.
"""

import heapq
from abc import ABC, abstractmethod
from array import array
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeVar

from replica.protocol.records import Delta, Hashes, Snapshot

SHARDS = 1024
"""Parts of the index that grow, shrink and are swept one by one."""

STEP_BLOCKS = 1024
"""Blocks that are added or removed at a time: the event loop is held for about half a millisecond."""

MAX_BLOCKS = 20_000_000
LOAD_SHARE = 0.95
"""Of the room for blocks that a load may fill: the deltas of others must find some even while one is tried in vain."""

EXPECT_TTL_S = 5.0
EXPECT_MAX_BLOCKS = 1 << 17

_T = TypeVar("_T")


class Applied(StrEnum):
    """What became of a delta or snapshot. Where it is neither OK nor STALE, the replica is out of the index until it is
    loaded anew."""

    OK = "ok"
    STALE = "stale"
    """Known already: the same epoch, and no newer than what is here. Or overtaken, while it took several steps."""
    GAP = "gap"
    EPOCH = "epoch"
    ROOT = "root"
    FULL = "full"
    """The index has no room for it."""


class Match(NamedTuple):
    """Leading blocks of a prompt."""

    held: int
    expected: int
    """Held, or being computed for a request that was just sent there; never less than held."""


class Matches(Mapping[str, Match]):
    """By replica, those without a block left out. Kept as groups of slots that are alike, as most replicas of a fleet
    are: to name each of a thousand takes longer than all the rest of a decision."""

    __slots__ = ("_by_replica", "groups", "names", "numbers")

    def __init__(self, groups: "array[int]", numbers: "array[int]", names: tuple[str, ...]) -> None:
        """`groups`: held, expected, end in `numbers`, of each (type I); `numbers` are of slots (type H), whose replicas
        `names` has."""
        self.groups = groups
        self.numbers = numbers
        self.names = names
        self._by_replica: dict[str, Match] | None = None

    @classmethod
    def of(cls, matches: Mapping[str, Match]) -> "Matches":
        groups = array("I", [x for end, match in enumerate(matches.values(), 1) for x in (*match, end)])
        return cls(groups, array("H", range(len(matches))), tuple(matches))

    def __getitem__(self, replica: str) -> Match:
        return self._named()[replica]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named())

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._named()})"

    def holding_more(self, blocks: int) -> list[tuple[str, int]]:
        """Replicas that hold more than so many, and how many."""
        found = []
        start = 0
        for held, _, end in zip(*(self.groups[part::3] for part in range(3)), strict=True):
            if held > blocks:
                found += [(self.names[number], held) for number in self.numbers[start:end]]
            start = end
        return found

    def _named(self) -> dict[str, Match]:
        if self._by_replica is None:
            self._by_replica = {}
            start = 0
            for held, expected, end in zip(*(self.groups[part::3] for part in range(3)), strict=True):
                match = Match(held, expected)
                self._by_replica |= dict.fromkeys(map(self.names.__getitem__, self.numbers[start:end]), match)
                start = end
        return self._by_replica


@dataclass(slots=True, eq=False)
class Slot:
    replica: str
    epoch: str
    number: int
    seq: int = 0
    count: int = 0
    root: int = 0


class PrefixIndex(ABC):
    """Not safe to share between threads, nor are several steps of one replica at a time."""

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        """`max_blocks`: distinct hashes held at a time, over all replicas; what is expected has a bound of its own."""
        self.max_blocks = max_blocks
        self._slots: dict[str, Slot] = {}
        self._changing: dict[str, Slot] = {}
        """Of replicas that take several steps: they don't count meanwhile."""
        self._replica_of: tuple[str, ...] = ()
        """By the slot's number. Never changed but replaced, so that whoever saw it can tell that it is another."""
        self._free: list[int] = []
        self._dead: list[int] = []
        self._sweeping: list[int] = []
        self._swept = 0
        self._rotate_at = 0.0
        self._expected_at_most = 0
        """In the current generation: counting would cost each decision a call."""

    def __repr__(self) -> str:
        slots = ", ".join(f"{s.replica}@{s.epoch}#{s.seq}:{s.count}" for s in self._slots.values())
        return f"<{type(self).__name__} {slots or 'empty'}>"

    @abstractmethod
    def __len__(self) -> int:
        """Entries, dead ones included."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Of memory, about."""

    @abstractmethod
    def match(self, hashes: Sequence[int]) -> Matches:
        """For each replica that has, or expects, the first block: how many leading blocks.

        Takes for granted that replicas evict from the end, so that whoever has a block has those before it, as soon as
        a prompt is longer than 32 blocks."""

    def position(self, replica: str) -> tuple[str, int] | None:
        """Epoch and seq that the index equals; None where it can't say."""
        slot = self._slots.get(replica)
        return None if slot is None else (slot.epoch, slot.seq)

    def blocks(self, replica: str) -> int:
        slot = self._slots.get(replica)
        return 0 if slot is None else slot.count

    def replicas(self) -> tuple[str, ...]:
        return tuple(self._slots)

    def hashes_of(self, replica: str) -> set[int]:
        """Scans the whole index: for tests and audits."""
        slot = self._slots.get(replica)
        return set() if slot is None else self._hashes_of(slot)

    def apply(self, delta: Delta) -> Applied:
        """Takes one step of a replica's cache and checks the state that results against its count and root."""
        return _finish(self.apply_in_steps(delta))

    def load(self, replica: str, snapshot: Snapshot) -> Applied:
        """Replaces all that is known of the replica: OK, FULL, or ROOT where its hashes don't give the count and root
        that are claimed."""
        return _finish(self.load_in_steps(replica, snapshot))

    def apply_in_steps(self, delta: Delta) -> Generator[None, None, Applied]:
        """`apply`, with a pause after each STEP_BLOCKS but the last. Between the pauses the replica isn't here.
        Closed before its end, or where the replica was dropped or loaded meanwhile, it comes to nothing."""
        slot = self._slots.get(delta.replica)
        if slot is None or slot.epoch != delta.epoch:
            self.drop(delta.replica)
            if delta.seq != 1:
                return Applied.EPOCH
            slot = self._new_slot(delta.replica, delta.epoch)
        elif delta.seq <= slot.seq:
            return Applied.STALE
        elif delta.seq != slot.seq + 1:
            self.drop(delta.replica)
            return Applied.GAP
        claimed = delta.count, delta.root
        return (yield from self._change(slot, delta.removed, delta.added, delta.seq, claimed, self.max_blocks))

    def load_in_steps(self, replica: str, snapshot: Snapshot) -> Generator[None, None, Applied]:
        """`load`, with pauses as in `apply_in_steps`. Where there is no room, what was loaded is swept away again."""
        self.drop(replica)
        slot = self._new_slot(replica, snapshot.epoch)
        room = int(self.max_blocks * LOAD_SHARE)
        applied = yield from self._change(slot, (), snapshot.hashes, snapshot.seq, snapshot.claimed, room)
        if applied is Applied.FULL:
            for _ in range(2 * SHARDS):
                self.sweep()
                yield
        return applied

    def drop(self, replica: str) -> None:
        """Voids the replica, in constant time."""
        for known in (self._slots, self._changing):
            slot = known.pop(replica, None)
            if slot is not None:
                self._set_live(slot, False)
                self._dead.append(slot.number)

    def expect(self, replica: str, hashes: Sequence[int]) -> None:
        """A request with this prefix was just sent there. Forgotten when evicted, or by the second `expire` after."""
        slot = self._slots.get(replica)
        if slot is not None:
            self._expected_at_most += len(hashes)
            self._expect(slot, hashes)

    def expire(self, now: float, hold: bool = False) -> bool:
        """Call it before each decision. Forgets expectations of EXPECT_TTL_S to twice that age, or of a generation
        that has grown too big; true where it did, so that those which still hold can be renewed. With `hold`, as
        nothing can come that would confirm them, none is too old."""
        if hold:
            self._rotate_at = now + EXPECT_TTL_S
        if now < self._rotate_at:
            if self._expected_at_most < EXPECT_MAX_BLOCKS:
                return False
            self._expected_at_most = self._num_expected()
            if self._expected_at_most < EXPECT_MAX_BLOCKS:
                return False
        self._expected_at_most = 0
        self._rotate(forget_all=now >= self._rotate_at + EXPECT_TTL_S)
        self._rotate_at = now + EXPECT_TTL_S
        return True

    def sweep(self, shards: int = 1) -> None:
        """Takes dead slots out of the next shards, as long as there are any."""
        for _ in range(shards):
            if not self._sweeping:
                if not self._dead:
                    return
                self._sweeping, self._dead, self._swept = self._dead, [], 0
            self._sweep(self._swept, self._sweeping)
            self._swept += 1
            if self._swept == SHARDS:
                for number in self._sweeping:
                    heapq.heappush(self._free, number)
                self._sweeping = []

    def _change(
        self,
        slot: Slot,
        removed: Hashes,
        added: Hashes,
        seq: int,
        claimed: tuple[int, int] | None,
        max_blocks: int,
    ) -> Generator[None, None, Applied]:
        """Brings the slot to `seq`. It doesn't count until all is done and found to be as claimed: count and root."""
        self._slots.pop(slot.replica, None)
        self._changing[slot.replica] = slot
        self._set_live(slot, False)
        try:
            budget = STEP_BLOCKS
            for adds, hashes in ((False, removed), (True, added)):
                start, total = 0, _length(hashes)
                while start < total:
                    if budget == 0:
                        yield
                        budget = STEP_BLOCKS
                        if self._changing.get(slot.replica) is not slot:
                            return Applied.STALE
                    stop = min(total, start + budget)
                    if not adds:
                        self._remove(slot, hashes, start, stop)
                    elif not self._add(slot, hashes, start, stop, max_blocks):
                        return Applied.FULL
                    budget -= stop - start
                    start = stop
            if claimed not in (None, (slot.count, slot.root)):
                return Applied.ROOT
            slot.seq = seq
            self._slots[slot.replica] = self._changing.pop(slot.replica)
            self._set_live(slot, True)
            return Applied.OK
        finally:
            if self._changing.get(slot.replica) is slot:
                self.drop(slot.replica)

    def _new_slot(self, replica: str, epoch: str) -> Slot:
        # Bounds the dead slots; the rest of the work is for whoever calls `sweep` by the clock.
        self.sweep()
        # Low numbers first: they decide how wide the sets are.
        if self._free:
            number = heapq.heappop(self._free)
        else:
            number = len(self._replica_of)
        self._replica_of = (*self._replica_of[:number], replica, *self._replica_of[number + 1 :])
        return Slot(replica, epoch, number)

    @abstractmethod
    def _set_live(self, slot: Slot, live: bool) -> None: ...

    @abstractmethod
    def _add(self, slot: Slot, hashes: Hashes, start: int, stop: int, max_blocks: int) -> bool:
        """False where that would have made more than `max_blocks` entries. Keeps the slot's count and root."""

    @abstractmethod
    def _remove(self, slot: Slot, hashes: Hashes, start: int, stop: int) -> None:
        """Also ends what is expected of these blocks. Keeps the slot's count and root."""

    @abstractmethod
    def _expect(self, slot: Slot, hashes: Sequence[int]) -> None: ...

    @abstractmethod
    def _num_expected(self) -> int:
        """Entries in the current generation."""

    @abstractmethod
    def _rotate(self, *, forget_all: bool) -> None:
        """The current generation of what is expected becomes the one before, and that is forgotten; or both are."""

    @abstractmethod
    def _sweep(self, shard: int, dead: list[int]) -> None:
        """Takes the dead slots' numbers out of one shard, also of what is expected."""

    @abstractmethod
    def _hashes_of(self, slot: Slot) -> set[int]: ...


def _finish(steps: Generator[None, None, _T]) -> _T:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: _T = stop.value
            return result


def _length(hashes: Hashes) -> int:
    return len(hashes) // 8 if isinstance(hashes, bytes) else len(hashes)
