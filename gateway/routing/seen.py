"""Which KV blocks have ever been computed, as far as a table of bounded size remembers."""

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.routing.native.library import Library

SEEN_PLACES = 1 << 22
"""16 MiB when all is full: 67 million prompt tokens."""


class SeenBlocks:
    """A block has one place, by its hash, and is forgotten when another one comes to lie there.

    After n later blocks it is still known with probability exp(-n / places). Since hashes are chained, one that is
    known vouches for all before it, so what is forgotten in the middle of a prompt costs nothing. A block that never
    was is taken for a known one once in 2**31.
    """

    def __init__(self, places: int = SEEN_PLACES, library: Library | None = None) -> None:
        """`places`: a power of two. `library`: None to do without."""
        assert places & (places - 1) == 0
        self._library = library
        self._mask = places - 1
        # Zeros that no page is taken for until it is written.
        self._marks = np.zeros(places, np.uint32)
        self._marks_at = self._marks.ctypes.data
        self.is_empty = True

    def touch(self) -> None:
        """Takes the pages now. Else the first prompts do, and hold the loop for 40 ms in all: numpy asks for huge
        pages, and each is zeroed when it is first written to."""
        self._marks.fill(0)

    def add(self, hashes: Sequence[int]) -> None:
        self.is_empty = False
        if self._library is not None:
            packed = _packed(hashes)
            self._library.seen_add(self._marks_at, self._mask, *packed.buffer_info())
            return
        where, marks = self._split(hashes)
        self._marks[where] = marks

    def depth(self, hashes: Sequence[int]) -> int:
        """How many leading blocks of a prompt were computed before."""
        if self._library is not None:
            packed = _packed(hashes)
            return self._library.seen_depth(self._marks_at, self._mask, *packed.buffer_info())
        where, marks = self._split(hashes)
        known = np.flatnonzero(self._marks[where] == marks)
        return int(known[-1]) + 1 if len(known) else 0

    def _split(self, hashes: Sequence[int]) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        values = np.array(hashes, dtype=np.uint64)
        # The lowest bit set: an empty place is 0.
        return values & np.uint64(self._mask), (values >> np.uint64(32)).astype(np.uint32) | np.uint32(1)


def _packed(hashes: Sequence[int]) -> "array[int]":
    return hashes if isinstance(hashes, array) and hashes.typecode == "Q" else array("Q", hashes)
