"""Least recently used first; of those last used together the deepest. The oracle, and what engines commonly do."""

import heapq
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replica.cache.radix import Node


class LRU:
    """A heap whose stale entries are skipped."""

    def __init__(self, num_pages: int) -> None:
        self._max_entries = 64 + 4 * num_pages
        self._heap: list[tuple[int, int, int, Node]] = []
        self._num_offers = 0

    def added(self, node: "Node") -> None:
        pass

    def reused(self, node: "Node") -> None:
        pass

    def released(self, node: "Node") -> None:
        pass

    def offer(self, node: "Node") -> None:
        self._num_offers += 1
        heapq.heappush(self._heap, (node.last_used, -node.depth, self._num_offers, node))
        if len(self._heap) > self._max_entries:
            self._heap = list({id(entry[3]): entry for entry in self._heap if _fresh(entry)}.values())
            heapq.heapify(self._heap)

    def pop(self) -> "Node | None":
        while self._heap:
            entry = heapq.heappop(self._heap)
            if _fresh(entry):
                return entry[3]
        return None

    def candidates(self) -> Iterable["Node"]:
        return (entry[3] for entry in self._heap if _fresh(entry))


def _fresh(entry: "tuple[int, int, int, Node]") -> bool:
    last_used, _, _, node = entry
    return node.last_used == last_used and node.evictable
