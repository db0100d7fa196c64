"""What a policy that chooses the pages to evict promises the prefix tree, and is told by it."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from replica.cache.radix import Node


class Eviction(Protocol):
    """One tree's. Pure: it knows no time but what it is told, so equal calls give equal choices.

    Only leaves that nobody uses may go (`Node.evictable`), so what is held stays closed under prefixes whatever the
    policy. A leaf once offered may since have been taken up again, or have got children; it is offered anew when that
    is over.
    """

    def added(self, node: "Node") -> None:
        """A page newly computed: one step of whatever the policy takes for time."""
        ...

    def reused(self, node: "Node") -> None:
        """A sequence was admitted that takes this page from the tree, or will share it with those that hold it."""
        ...

    def released(self, node: "Node") -> None:
        """The last sequence that held it is gone."""
        ...

    def offer(self, node: "Node") -> None:
        """It can be evicted now: it has been released, and has no children."""
        ...

    def pop(self) -> "Node | None":
        """Which leaf to evict now: the caller will. None where none can be."""
        ...

    def candidates(self) -> Iterable["Node"]:
        """All that `pop` could come upon, and perhaps some that it would skip. For checks."""
        ...
