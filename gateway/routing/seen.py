"""Which KV blocks have ever been computed, as far as a table of bounded size remembers."""

from collections.abc import Sequence

import numpy as np

SEEN_PLACES = 1 << 22
"""16 MiB when all is full: 67 million prompt tokens."""


class SeenBlocks:
    """A block has one place, by its hash, and is forgotten when another one comes to lie there.

    After n later blocks it is still known with probability exp(-n / places). Since hashes are chained, one that is
    known vouches for all before it, so what is forgotten in the middle of a prompt costs nothing. A block that never
    was is taken for a known one once in 2**31.
    """

    def __init__(self, places: int = SEEN_PLACES) -> None:
        """`places`: a power of two."""
        assert places & (places - 1) == 0
        self._mask = np.uint64(places - 1)
        self._marks = np.zeros(places, np.uint32)
        self._empty = True

    def add(self, hashes: Sequence[int]) -> None:
        where, marks = self._split(hashes)
        self._marks[where] = marks
        self._empty = False

    def depth(self, hashes: Sequence[int]) -> int:
        """How many leading blocks of a prompt were computed before."""
        if self._empty:
            return 0
        where, marks = self._split(hashes)
        known = np.flatnonzero(self._marks[where] == marks)
        return int(known[-1]) + 1 if len(known) else 0

    def _split(self, hashes: Sequence[int]) -> "tuple[np.ndarray, np.ndarray]":
        values = np.array(hashes, dtype=np.uint64)
        # The lowest bit set: an empty place is 0.
        return values & self._mask, (values >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
