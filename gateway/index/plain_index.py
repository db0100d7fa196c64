"""The index in plain Python: block hash -> bitmask of slots, in dictionaries.

The oracle of the native one, and what serves where that can't be built.
"""

import sys
from collections.abc import Iterator, Sequence

from gateway.index.prefix_index import MAX_BLOCKS, SHARDS, Match, Matches, PrefixIndex, Slot
from replica.protocol.records import Hashes, unpack_hashes


class PlainIndex(PrefixIndex):
    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        super().__init__(max_blocks)
        self._shards: list[dict[int, int]] = [{} for _ in range(SHARDS)]
        self._live = 0
        self._expected: dict[int, int] = {}
        self._expected_before: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    @property
    def bytes(self) -> int:
        entries = [*self._shards, self._expected, self._expected_before]
        numbers = sys.getsizeof(1 << 63) + sys.getsizeof(1 << len(self._replica_of))
        return sum(map(sys.getsizeof, entries)) + numbers * sum(map(len, entries))

    def match(self, hashes: Sequence[int]) -> Matches:
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
                for number in _numbers_in(held ^ still_held):
                    held_depth[number] = depth
                held = still_held
            # NOTE: a replica may hold a block whose parent it only expects, so the two walks narrow separately.
            still_either = either & (holders | current.get(block, 0) | before.get(block, 0))
            if still_either != either:
                self._end(result, either ^ still_either, held_depth, depth)
                either = still_either
            depth += 1
        for number in _numbers_in(held):
            held_depth[number] = depth
        self._end(result, either, held_depth, depth)
        return Matches.of(result)

    def _end(self, result: dict[str, Match], slots: int, held_depth: dict[int, int], depth: int) -> None:
        if depth == 0:
            return
        for number in _numbers_in(slots):
            result[self._replica_of[number]] = Match(held_depth.get(number, depth), depth)

    def _set_live(self, slot: Slot, live: bool) -> None:
        bit = 1 << slot.number
        self._live = self._live | bit if live else self._live & ~bit

    def _add(self, slot: Slot, hashes: Hashes, start: int, stop: int, max_blocks: int) -> bool:
        shards, bit = self._shards, 1 << slot.number
        count, root = slot.count, slot.root
        room = max_blocks - len(self)
        for block in _numbers(hashes, start, stop):
            shard = shards[block % SHARDS]
            mask = shard.get(block, 0)
            if not mask & bit:
                if not mask:
                    if room <= 0:
                        return False
                    room -= 1
                shard[block] = mask | bit
                count += 1
                root ^= block
        slot.count, slot.root = count, root
        return True

    def _remove(self, slot: Slot, hashes: Hashes, start: int, stop: int) -> None:
        bit = 1 << slot.number
        for block in _numbers(hashes, start, stop):
            for overlay in (self._expected, self._expected_before):
                _take_out(overlay, block, bit)
            if _take_out(self._shards[block % SHARDS], block, bit):
                slot.count -= 1
                slot.root ^= block

    def _expect(self, slot: Slot, hashes: Sequence[int]) -> None:
        bit, current = 1 << slot.number, self._expected
        for block in hashes:
            current[block] = current.get(block, 0) | bit

    def _num_expected(self) -> int:
        return len(self._expected)

    def _rotate(self, *, forget_all: bool) -> None:
        self._expected_before = {} if forget_all else self._expected
        self._expected = {}

    def _sweep(self, shard: int, dead: list[int]) -> None:
        keep = ~sum(1 << number for number in dead)
        self._shards[shard] = _masked(self._shards[shard], keep)
        if shard == SHARDS - 1:
            self._expected = _masked(self._expected, keep)
            self._expected_before = _masked(self._expected_before, keep)

    def _hashes_of(self, slot: Slot) -> set[int]:
        bit = 1 << slot.number
        return {block for shard in self._shards for block, mask in shard.items() if mask & bit}


def _numbers(hashes: Hashes, start: int, stop: int) -> Sequence[int]:
    return unpack_hashes(hashes[8 * start : 8 * stop] if isinstance(hashes, bytes) else hashes[start:stop])


def _take_out(entries: dict[int, int], block: int, bit: int) -> bool:
    mask = entries.get(block, 0)
    if not mask & bit:
        return False
    if mask == bit:
        del entries[block]
    else:
        entries[block] = mask ^ bit
    return True


def _numbers_in(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit.bit_length() - 1
        mask ^= bit


def _masked(entries: dict[int, int], keep: int) -> dict[int, int]:
    return {block: mask & keep for block, mask in entries.items() if mask & keep}
