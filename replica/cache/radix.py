"""The prefix tree: which pages hold the KV of which token prefixes.

One page is one edge, so nodes are never split, and a child is found by the exact tokens of its page (packed as bytes),
so a hash collision can't hand out wrong KV. Each namespace (tenant salt, adapter) has a root of its own.

A node's `locks` counts the live sequences whose path runs through it; a node without locks has no locked descendants
and may be evicted once it is a leaf. Leaves go least recently used first, from a heap whose stale entries are skipped.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from replica.protocol.hashing import child_hash


@dataclass(eq=False, slots=True)
class Node:
    parent: "Node | None"
    key: bytes
    page: int
    hash: int
    depth: int
    locks: int = 0
    last_used: int = 0
    children: dict[bytes, "Node"] = field(default_factory=dict)


class RadixTree:
    """Knows pages by number only; who owns them is the caller's to keep (see CacheManager)."""

    def __init__(self) -> None:
        self._roots: dict[int, Node] = {}
        self._heap: list[tuple[int, int, int, Node]] = []
        self._tick = 0
        self._heap_entries = 0
        self._num_nodes = 0
        self._num_unlocked = 0

    @property
    def num_pages(self) -> int:
        return self._num_nodes

    @property
    def num_evictable(self) -> int:
        """Pages that eviction could free, leaf by leaf."""
        return self._num_unlocked

    def root(self, namespace: int) -> Node:
        if namespace not in self._roots:
            self._roots[namespace] = Node(parent=None, key=b"", page=-1, hash=namespace, depth=0)
        return self._roots[namespace]

    def child(self, node: Node, key: bytes) -> Node | None:
        return node.children.get(key)

    def insert(self, parent: Node, key: bytes, page: int) -> Node:
        """Adds a page below `parent`, unlocked. The caller has looked and found no such child."""
        assert key not in parent.children
        node = Node(parent, key, page, child_hash(parent.hash, key), parent.depth + 1)
        parent.children[key] = node
        self._num_nodes += 1
        self._num_unlocked += 1
        self._touch(node)
        self._offer(node)
        return node

    def lock(self, node: Node) -> None:
        """For a sequence whose path, so far unlocked, ends here."""
        self._tick += 1
        for step in _path(node):
            self._lock_one(step)
            step.last_used = self._tick

    def lock_child(self, child: Node) -> None:
        """Extends a sequence's locked path by one node, which is a child of its end."""
        self._lock_one(child)
        self._touch(child)

    def unlock(self, node: Node) -> None:
        self._tick += 1
        for step in _path(node):
            step.locks -= 1
            step.last_used = self._tick
            assert step.locks >= 0
            if step.locks == 0:
                self._num_unlocked += 1
                self._offer(step)

    def evict(self) -> Node | None:
        """Removes the least recently used unlocked leaf and returns it, or None where all is locked."""
        while self._heap:
            last_used, _, _, node = heapq.heappop(self._heap)
            if node.last_used != last_used or not _evictable(node):
                continue
            self._remove(node)
            return node
        return None

    def nodes(self) -> Iterator[Node]:
        """All nodes but the roots, parents first."""
        stack = [node for root in self._roots.values() for node in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _lock_one(self, node: Node) -> None:
        if node.locks == 0:
            self._num_unlocked -= 1
        node.locks += 1

    def _touch(self, node: Node) -> None:
        self._tick += 1
        node.last_used = self._tick

    def _offer(self, node: Node) -> None:
        """Puts a node that can be evicted now on the heap; of those used at the same tick the deepest goes first."""
        if _evictable(node):
            self._heap_entries += 1
            heapq.heappush(self._heap, (node.last_used, -node.depth, self._heap_entries, node))
            if len(self._heap) > 64 + 4 * self._num_nodes:
                self._drop_stale_entries()

    def _drop_stale_entries(self) -> None:
        newest = {
            id(entry[3]): entry for entry in self._heap if entry[0] == entry[3].last_used and _evictable(entry[3])
        }
        self._heap = list(newest.values())
        heapq.heapify(self._heap)

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.key]
        node.parent = None
        self._num_nodes -= 1
        self._num_unlocked -= 1
        if parent.parent is not None:
            self._offer(parent)


def _path(node: Node) -> Iterator[Node]:
    """From a node up to, and without, its root."""
    step = node
    while step.parent is not None:
        yield step
        step = step.parent


def _evictable(node: Node) -> bool:
    return node.locks == 0 and not node.children and node.parent is not None
