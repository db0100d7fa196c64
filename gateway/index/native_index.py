"""The index in C++ (`csrc/`), through ctypes.

NOTE: the calls keep the GIL. Each is short, and one that had to take it back would wait up to 5 ms for a thread that is
tokenising.
"""

import ctypes
import sys
import weakref
from array import array
from collections.abc import Sequence
from pathlib import Path

from gateway.index.prefix_index import MAX_BLOCKS, SHARDS, Matches, PrefixIndex, Slot
from native.build import BuildError, build_library
from native.call import with_block
from replica.protocol.records import Hashes

SOURCES = Path(__file__).parent / "csrc"
FLAGS = ("-std=c++17", "-O3", "-march=native", f"-DSHARDS={SHARDS}", "-shared", "-fPIC")

MAX_SLOTS = 0xFFFE
"""Those of replicas and epochs that aren't swept yet included."""

_POINTER, _SIZE, _U64, _U32, _INT = ctypes.c_void_p, ctypes.c_long, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int
_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "index_new": (_POINTER, [_U64]),
    "index_free": (None, [_POINTER]),
    "index_live": (None, [_POINTER, _U32, _INT]),
    "index_add": (_INT, [_POINTER, _U32, _POINTER, _SIZE, _SIZE, _U64, _POINTER]),
    "index_remove": (None, [_POINTER, _U32, _POINTER, _SIZE, _SIZE, _POINTER]),
    "index_expected": (_U64, [_POINTER]),
    "index_rotate": (None, [_POINTER, _INT]),
    "index_sweep": (None, [_POINTER, _U32, _POINTER, _U32]),
    "index_hashes_of": (None, [_POINTER, _U32, _POINTER]),
    "index_size": (_U64, [_POINTER]),
    "index_bytes": (_U64, [_POINTER]),
}


def load_library() -> ctypes.PyDLL:
    """Builds it first where the cache lacks it. Raises BuildError."""
    if sys.byteorder != "little":
        raise BuildError("hashes are packed in another byte order than this machine's")
    path = build_library("index", SOURCES, FLAGS)
    try:
        library = ctypes.PyDLL(str(path))
    except OSError as error:
        raise BuildError(str(error)) from error
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class NativeIndex(PrefixIndex):
    def __init__(self, library: ctypes.PyDLL, seed: int, max_blocks: int = MAX_BLOCKS) -> None:
        """`seed`, of 64 bits, should be nobody else's to know: it keeps prompts from being chosen to collide."""
        super().__init__(max_blocks)
        self._library = library
        self._index: int = library.index_new(seed)
        # What each request calls takes a block: see prefix_index.cpp for what is in it.
        self._call_match = with_block(library.index_match, "QQqQQ")
        self._call_expect = with_block(library.index_expect, "QqQq")
        weakref.finalize(self, library.index_free, self._index)
        self._change_made = array("Q", (0, 0))
        self._groups = array("I")
        self._matched_slots = array("H")
        self._room_for_slots(64)

    def __len__(self) -> int:
        size: int = self._library.index_size(self._index)
        return size

    @property
    def bytes(self) -> int:
        size: int = self._library.index_bytes(self._index)
        return size

    def match(self, hashes: Sequence[int]) -> Matches:
        packed = _packed(hashes)
        at, count = packed.buffer_info()
        found = self._call_match(self._index, at, count, self._groups_at, self._matched_slots_at)
        groups = self._groups[: 3 * found]
        return Matches(groups, self._matched_slots[: groups[-1] if found else 0], self._replica_of)

    def _room_for_slots(self, number: int) -> None:
        self._groups = array("I", bytes(3 * 4 * number))
        self._matched_slots = array("H", bytes(2 * number))
        self._groups_at = self._groups.buffer_info()[0]
        self._matched_slots_at = self._matched_slots.buffer_info()[0]

    def _new_slot(self, replica: str, epoch: str) -> Slot:
        slot = super()._new_slot(replica, epoch)
        assert slot.number < MAX_SLOTS, "as many slots as can't be"
        if slot.number >= len(self._matched_slots):
            self._room_for_slots(2 * len(self._matched_slots))
        return slot

    def _set_live(self, slot: Slot, live: bool) -> None:
        self._library.index_live(self._index, slot.number, live)

    def _add(self, slot: Slot, hashes: Hashes, start: int, stop: int, max_blocks: int) -> bool:
        pointer, start, stop, _keep = _span(hashes, start, stop)
        change = self._change_made
        change[0] = change[1] = 0
        had_room = self._library.index_add(
            self._index, slot.number, pointer, start, stop, max_blocks, change.buffer_info()[0]
        )
        slot.count += change[0]
        slot.root ^= change[1]
        return bool(had_room)

    def _remove(self, slot: Slot, hashes: Hashes, start: int, stop: int) -> None:
        pointer, start, stop, _keep = _span(hashes, start, stop)
        change = self._change_made
        change[0] = change[1] = 0
        self._library.index_remove(self._index, slot.number, pointer, start, stop, change.buffer_info()[0])
        slot.count -= change[0]
        slot.root ^= change[1]

    def _expect(self, slot: Slot, hashes: Sequence[int]) -> None:
        packed = _packed(hashes)
        self._call_expect(self._index, slot.number, *packed.buffer_info())

    def _num_expected(self) -> int:
        number: int = self._library.index_expected(self._index)
        return number

    def _rotate(self, *, forget_all: bool) -> None:
        self._library.index_rotate(self._index, forget_all)

    def _sweep(self, shard: int, dead: list[int]) -> None:
        mask = array("Q", bytes(8 * (max(dead) // 64 + 1)))
        for number in dead:
            mask[number // 64] |= 1 << number % 64
        self._library.index_sweep(self._index, shard, mask.buffer_info()[0], len(mask))

    def _hashes_of(self, slot: Slot) -> set[int]:
        out = array("Q", bytes(8 * slot.count))
        self._library.index_hashes_of(self._index, slot.number, out.buffer_info()[0])
        return set(out)


def _packed(hashes: Sequence[int]) -> "array[int]":
    return hashes if isinstance(hashes, array) and hashes.typecode == "Q" else array("Q", hashes)


def _span(hashes: Hashes, start: int, stop: int) -> "tuple[int | bytes, int, int, array[int] | None]":
    """A pointer and from where to where; what it points to lives as long as the tuple."""
    if isinstance(hashes, bytes):
        return hashes, start, stop, None
    if isinstance(hashes, array) and hashes.typecode == "Q":
        return hashes.buffer_info()[0], start, stop, hashes
    packed = array("Q", hashes[start:stop])
    return packed.buffer_info()[0], 0, stop - start, packed
