"""Which decodes of a step begin with the same pages, and whether it pays to read those once for all of them."""

import numpy as np
from numpy.typing import NDArray

from replica.protocol.hashing import BLOCK_SIZE

Ints = NDArray[np.int32]

MAX_GROUPS = 64
MIN_ROWS = 4
_MIN_PAGES = 8
_MIN_SAVED_TOKENS = 4096
_MIN_SAVED_SHARE = 0.25
"""Of the tokens that attention would read row by row. Where a cascade pays depends on the card; these aren't measured,
and err towards plain decode attention."""


def group_prefixes(page_table: Ints, lens: Ints) -> tuple[Ints, Ints]:
    """page_table [rows, pages] of neighbours sorted by their pages, lens [rows] -> start [groups + 1] and pages
    [groups] of groups that cover all rows, those that share too little with 0 pages. No groups where it doesn't pay."""
    nothing = np.zeros(1, np.int32), np.zeros(0, np.int32)
    rows = len(lens)
    if rows < MIN_ROWS:
        return nothing
    whole = lens // BLOCK_SIZE
    differs = page_table[1:] != page_table[:-1]
    common = np.where(differs.any(1), differs.argmax(1), page_table.shape[1])
    # Pages beyond a row's own are padding, and its last one may still be filled.
    common = np.minimum(common, np.minimum(whole[1:], whole[:-1]))
    edges = np.concatenate(([0], np.flatnonzero(common < _MIN_PAGES) + 1, [rows]))
    groups: list[tuple[int, int, int]] = []
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        pages = int(common[start : end - 1].min()) if end - start >= MIN_ROWS else 0
        if groups and pages == 0 == groups[-1][2]:
            groups[-1] = (groups[-1][0], end, 0)
        else:
            groups.append((start, end, pages))
    saved = sum((end - start - 1) * pages for start, end, pages in groups) * BLOCK_SIZE
    if saved < max(_MIN_SAVED_TOKENS, _MIN_SAVED_SHARE * int(lens.sum())) or len(groups) > MAX_GROUPS:
        return nothing
    starts = [group[0] for group in groups] + [rows]
    return np.array(starts, np.int32), np.array([group[2] for group in groups], np.int32)
