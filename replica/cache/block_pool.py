"""Who owns each page of the KV cache."""

from collections.abc import Iterable
from enum import IntEnum


class Owner(IntEnum):
    FREE = 0
    SEQUENCE = 1
    TREE = 2


class BlockPool:
    """Hands out pages and records their one owner. Every change of hands is asserted: a page freed twice, or taken
    from a wrong owner, is a bug that would otherwise show as garbage in somebody's answer."""

    def __init__(self, num_pages: int) -> None:
        assert num_pages > 0
        self._owner = [Owner.FREE] * num_pages
        # A stack: the page freed last is likeliest to be in the CPU's caches still.
        self._free = list(range(num_pages - 1, -1, -1))
        self._tree_pages = 0

    @property
    def num_pages(self) -> int:
        return len(self._owner)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_tree(self) -> int:
        return self._tree_pages

    @property
    def num_sequence(self) -> int:
        return self.num_pages - self.num_free - self.num_tree

    def owner(self, page: int) -> Owner:
        return self._owner[page]

    def allocate(self) -> int:
        """A free page, now a sequence's. The caller has checked `num_free`."""
        page = self._free.pop()
        self._owner[page] = Owner.SEQUENCE
        return page

    def give_to_tree(self, page: int) -> None:
        self._move(page, Owner.SEQUENCE, Owner.TREE)
        self._tree_pages += 1

    def free_from_sequence(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._move(page, Owner.SEQUENCE, Owner.FREE)
            self._free.append(page)

    def free_from_tree(self, page: int) -> None:
        self._move(page, Owner.TREE, Owner.FREE)
        self._tree_pages -= 1
        self._free.append(page)

    def _move(self, page: int, source: Owner, target: Owner) -> None:
        owner = self._owner[page]
        assert owner is source, f"page {page} belongs to {owner.name}, not to {source.name}"
        self._owner[page] = target

    def __repr__(self) -> str:
        return f"BlockPool(free={self.num_free} sequence={self.num_sequence} tree={self.num_tree})"
