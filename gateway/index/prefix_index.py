"""Which replica holds which KV block: block hash -> bitmask of holders, walked once for all replicas.

Every (replica, epoch) has a bit of its own, so voiding one is clearing a bit of the live mask, whatever it held. Dead
bits stay behind in the entries and are swept a shard at a time by the calls that follow; then the bit is used again.
Pure: time is an argument. A replica is either here, equal to its own cache as of its `seq`, or not here at all.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from replica.protocol.records import Delta, Snapshot

SHARDS = 256
"""Rebuilding one shard of an index of 10 million blocks takes about 5 ms."""

EXPECT_TTL_S = 5.0
EXPECT_MAX_BLOCKS = 1 << 17


class Applied(StrEnum):
    """What became of a delta. After GAP, EPOCH and ROOT the replica is out of the index until it is loaded anew."""

    OK = "ok"
    STALE = "stale"
    """Known already: the same epoch, and no newer than what is here."""
    GAP = "gap"
    EPOCH = "epoch"
    ROOT = "root"


class Match(NamedTuple):
    """Leading blocks of a prompt."""

    held: int
    expected: int
    """Held, or being computed for a request that was just sent there; never less than held."""


@dataclass(slots=True)
class _Slot:
    replica: str
    epoch: str
    bit: int
    seq: int = 0
    count: int = 0
    root: int = 0


class PrefixIndex:
    def __init__(self) -> None:
        self._shards: list[dict[int, int]] = [{} for _ in range(SHARDS)]
        self._slots: dict[str, _Slot] = {}
        self._by_bit: dict[int, _Slot] = {}
        self._live = 0
        self._free: list[int] = []
        self._bits = 0
        self._dead = 0
        self._sweeping = 0
        self._cursor = 0
        self._expected: dict[int, int] = {}
        self._expected_before: dict[int, int] = {}
        self._rotate_at = 0.0

    def __len__(self) -> int:
        """Entries, dead ones included."""
        return sum(map(len, self._shards))

    def __repr__(self) -> str:
        slots = ", ".join(f"{s.replica}@{s.epoch}#{s.seq}:{s.count}" for s in self._slots.values())
        return f"<PrefixIndex {slots or 'empty'}>"

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
        bit = 0 if slot is None else slot.bit
        return {block for shard in self._shards for block, mask in shard.items() if mask & bit}

    def match(self, hashes: Sequence[int]) -> dict[str, Match]:
        """For each replica that has, or expects, the first block: how many leading blocks."""
        shards, current, before = self._shards, self._expected, self._expected_before
        held = either = self._live
        held_depth: dict[int, int] = {}
        result: dict[str, Match] = {}
        depth = 0
        for block in hashes:
            if not either:
                break
            holders = shards[block % SHARDS].get(block, 0)
            still_held = held & holders
            if still_held != held:
                for bit in _bits_of(held ^ still_held):
                    held_depth[bit] = depth
                held = still_held
            # NOTE: a replica may hold a block whose parent it only expects, so the two walks narrow separately.
            still_either = either & (holders | current.get(block, 0) | before.get(block, 0))
            if still_either != either:
                self._finish(result, either ^ still_either, held_depth, depth)
                either = still_either
            depth += 1
        for bit in _bits_of(held):
            held_depth[bit] = depth
        self._finish(result, either, held_depth, depth)
        return result

    def _finish(self, result: dict[str, Match], bits: int, held_depth: dict[int, int], depth: int) -> None:
        if depth == 0:
            return
        for bit in _bits_of(bits):
            result[self._by_bit[bit].replica] = Match(held_depth.get(bit, depth), depth)

    def apply(self, delta: Delta) -> Applied:
        """Takes one step of a replica's cache and checks the state that results against its count and root."""
        self.sweep()
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
        self._remove(slot, delta.removed)
        self._add(slot, delta.added)
        slot.seq = delta.seq
        if (slot.count, slot.root) != (delta.count, delta.root):
            self.drop(delta.replica)
            return Applied.ROOT
        return Applied.OK

    def load(self, replica: str, snapshot: Snapshot) -> None:
        """Replaces all that is known of the replica."""
        self.drop(replica)
        slot = self._new_slot(replica, snapshot.epoch)
        self._add(slot, snapshot.hashes)
        slot.seq = snapshot.seq

    def drop(self, replica: str) -> None:
        """Voids the replica, in constant time."""
        slot = self._slots.pop(replica, None)
        if slot is not None:
            del self._by_bit[slot.bit]
            self._live &= ~slot.bit
            self._dead |= slot.bit

    def expect(self, replica: str, hashes: Iterable[int]) -> None:
        """A request with this prefix was just sent there. Forgotten when evicted, or by the second `expire` after."""
        slot = self._slots.get(replica)
        if slot is None:
            return
        bit, current = slot.bit, self._expected
        for block in hashes:
            current[block] = current.get(block, 0) | bit

    def expire(self, now: float) -> bool:
        """Call it before each decision. Forgets expectations of EXPECT_TTL_S to twice that age, or of a generation
        that has grown too big; true where it did, so that those which still hold can be renewed."""
        if now < self._rotate_at and len(self._expected) < EXPECT_MAX_BLOCKS:
            return False
        idle = now >= self._rotate_at + EXPECT_TTL_S
        self._expected_before = {} if idle else self._expected
        self._expected = {}
        self._rotate_at = now + EXPECT_TTL_S
        return True

    def sweep(self, shards: int = 1) -> None:
        """Rebuilds the next shards without dead bits, as long as there are any."""
        for _ in range(shards):
            if not self._sweeping:
                if not self._dead:
                    return
                self._sweeping, self._dead, self._cursor = self._dead, 0, 0
            keep = ~self._sweeping
            self._shards[self._cursor] = _masked(self._shards[self._cursor], keep)
            self._cursor += 1
            if self._cursor == SHARDS:
                self._expected = _masked(self._expected, keep)
                self._expected_before = _masked(self._expected_before, keep)
                self._free.extend(_bits_of(self._sweeping))
                self._sweeping = 0

    def _new_slot(self, replica: str, epoch: str) -> _Slot:
        if self._free:
            bit = self._free.pop()
        else:
            bit = 1 << self._bits
            self._bits += 1
        slot = _Slot(replica, epoch, bit)
        self._slots[replica] = slot
        self._by_bit[bit] = slot
        self._live |= bit
        return slot

    def _add(self, slot: _Slot, hashes: Iterable[int]) -> None:
        shards, bit = self._shards, slot.bit
        count, root = slot.count, slot.root
        for block in hashes:
            shard = shards[block % SHARDS]
            mask = shard.get(block, 0)
            if not mask & bit:
                shard[block] = mask | bit
                count += 1
                root ^= block
        slot.count, slot.root = count, root

    def _remove(self, slot: _Slot, hashes: Iterable[int]) -> None:
        keep = ~slot.bit
        for block in hashes:
            for overlay in (self._expected, self._expected_before):
                if block in overlay:
                    overlay[block] &= keep
            shard = self._shards[block % SHARDS]
            mask = shard.get(block, 0)
            if mask & slot.bit:
                slot.count -= 1
                slot.root ^= block
                if mask & keep:
                    shard[block] = mask & keep
                else:
                    del shard[block]


def _bits_of(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit


def _masked(entries: dict[int, int], keep: int) -> dict[int, int]:
    return {block: mask & keep for block, mask in entries.items() if mask & keep}
