"""Evicts what has been seen to be used again least, for the room that it takes.

Pages are classed by how often they have been used (doubling: 1, 2, 3, 4 to 7, ...) and by their age since. For each
class and age it counts how many pages came to that age, and how many were used again then; those evicted before are
remembered for a while by their hashes, so what is counted doesn't depend on what was kept. A page's value is the most
hits per unit of time and room that keeping it up to some later age promises: its Gittins index (Gittins 1979), as "hit
density" is in LHD (Beckmann et al., NSDI 2018), here over the best horizon. So a page whose kind mostly comes back
around a certain age is kept for that, past newer ones; and where the newest come back first, this is LRU.

Time is pages added, in turnovers of the whole cache, so nothing in here depends on a clock, on speed or on size.
"""

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replica.cache.radix import Node

_SLICES = 16
"""In a turnover of the cache. Pages of one class last used within the same slice are of one value."""
_HORIZON = 8 * _SLICES
"""The age up to which uses are counted; older pages go first."""
_GHOSTS = 8
"""Evicted pages that are remembered, for each page of the cache."""
_CLASSES = 6
_DECAY = 0.5 ** (1 / (16 * _SLICES))
"""By slice: what was counted 16 turnovers ago counts half."""
_PRIOR = 0.25
"""The experience that is taken for granted, in pages for each page of the cache: of all together, that of LRU; of a
class, that of all together. Pages come back by whole requests, so a few pages are no evidence."""


def _edges() -> list[int]:
    """Ages are told apart by an eighth to a quarter of themselves; from 0 up to the horizon, in slices."""
    edges = [0]
    while edges[-1] < _HORIZON:
        edges.append(edges[-1] + max(1, edges[-1] // 4))
    return edges


_EDGES = _edges()
_NUM_AGES = len(_EDGES) - 1
_AGE = [age for age in range(_NUM_AGES) for _ in range(_EDGES[age], _EDGES[age + 1])]
"""Age in slices -> index of its interval between edges."""


class Cell:
    """The pages of one class that were last used in one slice of time."""

    __slots__ = ("born", "kind", "leaves", "listed", "outstanding", "value")

    def __init__(self, kind: int, born: int, value: float) -> None:
        self.kind = kind
        self.born = born
        self.outstanding = 0
        """Held or remembered, and not used again yet."""
        self.leaves: OrderedDict[Node, None] = OrderedDict()
        """Those that can be evicted. First in, first out: so all requests of a cell lose their ends in turn, as the
        parent of what has gone queues up again at the back."""
        self.value = value
        self.listed = True
        """An old one without leaves isn't, until it has some again."""


class Learned:
    def __init__(self, num_pages: int) -> None:
        self._slice_pages = max(1, num_pages // _SLICES)
        self._prior = _PRIOR * num_pages
        self._num_added = 0
        self._now = 0
        """In slices."""
        self._max_ghosts = _GHOSTS * num_pages
        self._ghosts: OrderedDict[int, tuple[int, Cell]] = OrderedDict()
        self._cells: list[Cell] = []
        self._newest: dict[int, Cell] = {}
        """Of each class the cell of this slice."""
        self._heap: list[tuple[float, int, int, Cell]] = []
        self._reuses = [[0.0] * _NUM_AGES for _ in range(_CLASSES)]
        self._exposed = [[0.0] * _NUM_AGES for _ in range(_CLASSES)]
        self._values = self._estimate()

    def added(self, node: "Node") -> None:
        ghost = self._ghosts.pop(node.hash, None)
        if ghost is not None:
            node.uses += ghost[0]
            self._count_reuse(ghost[1])
        self._num_added += 1
        if self._num_added >= self._slice_pages:
            self._num_added = 0
            self._begin_slice()

    def reused(self, node: "Node") -> None:
        if node.cell is not None:
            self._count_reuse(node.cell)
            node.cell.leaves.pop(node, None)
            node.cell = None

    def released(self, node: "Node") -> None:
        if node.cell is not None:
            node.cell.outstanding -= 1
            node.cell.leaves.pop(node, None)
        uses = node.uses
        kind = uses - 1 if uses < 4 else min(_CLASSES - 1, uses.bit_length())
        node.cell = cell = self._newest.get(kind) or self._new_cell(kind)
        cell.outstanding += 1

    def offer(self, node: "Node") -> None:
        cell = node.cell
        assert cell is not None, "it was released before"
        if not cell.listed:
            cell.listed, cell.value = True, self._value(cell)
            self._cells.append(cell)
        if not cell.leaves:
            heapq.heappush(self._heap, (cell.value, cell.born, cell.kind, cell))
        cell.leaves[node] = None

    def pop(self) -> "Node | None":
        while self._heap:
            cell = self._heap[0][3]
            while cell.leaves:
                node, _ = cell.leaves.popitem(last=False)
                if node.evictable:
                    self._remember(node, cell)
                    return node
            heapq.heappop(self._heap)
        return None

    def candidates(self) -> Iterable["Node"]:
        return (node for _, _, _, cell in self._heap for node in cell.leaves)

    def _new_cell(self, kind: int) -> Cell:
        cell = self._newest[kind] = Cell(kind, self._now, self._values[kind][0])
        self._cells.append(cell)
        return cell

    def _remember(self, node: "Node", cell: Cell) -> None:
        self._ghosts[node.hash] = (node.uses, cell)
        if len(self._ghosts) > self._max_ghosts:
            _, (_, forgotten) = self._ghosts.popitem(last=False)
            forgotten.outstanding -= 1

    def _count_reuse(self, cell: Cell) -> None:
        cell.outstanding -= 1
        age = self._now - cell.born
        if age < _HORIZON:
            self._reuses[cell.kind][_AGE[age]] += 1

    def _begin_slice(self) -> None:
        """Counts what has come through the slice now over without being used again, and values all anew."""
        for counts in (*self._reuses, *self._exposed):
            counts[:] = [count * _DECAY for count in counts]
        for cell in self._cells:
            age = self._now - cell.born
            if age < _HORIZON:
                self._exposed[cell.kind][_AGE[age]] += cell.outstanding
        self._values = self._estimate()
        self._now += 1
        self._newest = {}
        for cell in self._cells:
            cell.value = self._value(cell)
            cell.listed = bool(cell.leaves) or (cell.outstanding > 0 and self._now - cell.born < _HORIZON)
        self._cells = [cell for cell in self._cells if cell.listed]
        self._heap = [(cell.value, cell.born, cell.kind, cell) for cell in self._cells if cell.leaves]
        heapq.heapify(self._heap)

    def _value(self, cell: Cell) -> float:
        age = self._now - cell.born
        return self._values[cell.kind][_AGE[age]] if age < _HORIZON else 0.0

    def _estimate(self) -> list[list[float]]:
        """Values by class and age. What isn't known yet of an age follows from the one before: the chance to be used in
        a slice falls as 1/t, which by itself makes the order that of LRU."""
        everyone, level = [], 1.0
        for age in range(_NUM_AGES):
            reuses, exposed = (sum(counts[age] for counts in table) for table in (self._reuses, self._exposed))
            hazard = (self._prior * level / (1 + _EDGES[age]) + reuses) / (self._prior + exposed)
            everyone.append(hazard)
            level = hazard * (1 + _EDGES[age])
        return [
            _gittins(
                [(r + self._prior * e) / (x + self._prior) for r, x, e in zip(reuses, exposed, everyone, strict=True)]
            )
            for reuses, exposed in zip(self._reuses, self._exposed, strict=True)
        ]


def _gittins(hazards: list[float]) -> list[float]:
    """For each age the highest ratio, over all later ages to keep a page up to, of its chance to be used by then to the
    mean time that it's held, in slices. An age is joined with what follows as long as that is worth more."""
    values = []
    later: list[tuple[float, float, float]] = []
    for age in reversed(range(_NUM_AGES)):
        chance = -math.expm1(-hazards[age] * (_EDGES[age + 1] - _EDGES[age]))
        time, left = chance / hazards[age], 1 - chance
        while later and later[-1][0] * time > chance * later[-1][1]:
            next_chance, next_time, next_left = later.pop()
            chance, time, left = chance + left * next_chance, time + left * next_time, left * next_left
        later.append((chance, time, left))
        values.append(chance / time)
    return values[::-1]
