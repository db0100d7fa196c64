"""The prefix tree: which pages hold the KV of which token prefixes.

One page is one edge, so nodes are never split, and a child is found by the exact tokens of its page (packed as bytes),
so a hash collision can't hand out wrong KV. Each namespace (tenant salt, adapter) has a root of its own, which goes
with its last node and last user: a tenant that is seen once leaves nothing behind. Below public blocks, which lie in
the namespace without a salt, a tenant's own begin with a key that holds the tenant's namespace too: nobody else finds
them.

A node's `locks` counts the live sequences whose path runs through it; a node without locks has no locked descendants
and may be evicted once it is a leaf. Which leaf goes first is an eviction policy's to say.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from replica.cache.eviction.base import Eviction
from replica.cache.eviction.learned import Cell
from replica.protocol.hashing import BLOCK_SIZE, Fork, child_hash

_BLOCK_BYTES = 4 * BLOCK_SIZE


@dataclass(eq=False, slots=True)
class Node:
    parent: "Node | None"
    """Kept when the node leaves the tree: see `RadixTree.deepest`."""
    key: bytes
    page: int
    hash: int
    depth: int
    in_tree: bool = True
    locks: int = 0
    last_used: int = 0
    uses: int = 1
    """Admissions that took this page, and the computing of it."""
    cell: Cell | None = None
    """Where the policy `learned` keeps it."""
    children: dict[bytes, "Node"] = field(default_factory=dict)

    @property
    def evictable(self) -> bool:
        return self.locks == 0 and not self.children and self.in_tree


class RadixTree:
    """Knows pages by number only; who owns them is the caller's to keep (see CacheManager)."""

    def __init__(self, eviction: Eviction) -> None:
        self._roots: dict[int, Node] = {}
        self._eviction = eviction
        self._tick = 0
        self._num_nodes = 0
        self._num_unlocked = 0

    @property
    def num_pages(self) -> int:
        return self._num_nodes

    @property
    def num_evictable(self) -> int:
        """Pages that eviction could free, leaf by leaf."""
        return self._num_unlocked

    @property
    def roots(self) -> list[Node]:
        return list(self._roots.values())

    def root(self, namespace: int) -> Node:
        """The caller locks it or inserts below it, or it would stay for ever."""
        if namespace not in self._roots:
            self._roots[namespace] = Node(parent=None, key=b"", page=-1, hash=namespace, depth=0)
        return self._roots[namespace]

    def child(self, node: Node, key: bytes) -> Node | None:
        return node.children.get(key)

    def deepest(
        self, namespace: int, packed: bytearray, num_blocks: int, hint: Node | None, fork: Fork | None = None
    ) -> Node | None:
        """Where the longest prefix held of `packed` tokens ends, looking at `num_blocks` blocks at most.

        `hint` is an earlier answer for these tokens. The path to it is theirs whatever has happened to the tree since,
        and what is in the tree has all its ancestors there too. So going up while the tree has lost nodes, and then
        down while it has gained some, gives what a walk from the root would, mostly after a single look.
        """
        node = hint
        while node is not None and (not node.in_tree or node.depth > num_blocks):
            node = node.parent
        if node is None:
            node = self._roots.get(namespace)
            if node is None:
                return None
        start = node.depth * _BLOCK_BYTES
        end = num_blocks * _BLOCK_BYTES
        fork_at, tag = (-1, b"") if fork is None else (fork.block * _BLOCK_BYTES, fork.tag)
        if start == end:
            return node
        child = node.children.get(bytes(packed[start : start + _BLOCK_BYTES]) + (tag if start == fork_at else b""))
        if child is None:
            return node
        # Slices of bytes are half as dear as those of a bytearray, but the copy isn't worth it for a single look.
        tokens = bytes(packed)
        while child is not None:
            node = child
            start += _BLOCK_BYTES
            if start == end:
                break
            key = tokens[start : start + _BLOCK_BYTES]
            child = node.children.get(key + tag if start == fork_at else key)
        return node

    def insert(self, parent: Node, key: bytes, page: int) -> Node:
        """Extends a sequence's locked path, which ends at `parent`, by a new page. The caller has looked and found no
        such child."""
        assert parent.in_tree and key not in parent.children
        node = Node(parent, key, page, child_hash(parent.hash, key), parent.depth + 1)
        parent.children[key] = node
        node.locks = 1
        self._num_nodes += 1
        self._touch(node)
        self._eviction.added(node)
        return node

    def lock(self, node: Node) -> None:
        """For a sequence whose path, so far unlocked, ends here."""
        self._tick += 1
        step = node
        while step.parent is not None:
            self._lock_one(step)
            step.last_used = self._tick
            step.uses += 1
            self._eviction.reused(step)
            step = step.parent
        step.locks += 1

    def lock_child(self, child: Node) -> None:
        """Extends a sequence's locked path by a node that is there, a child of its end."""
        self._lock_one(child)
        self._touch(child)

    def unlock(self, node: Node) -> None:
        self._tick += 1
        step = node
        while step.parent is not None:
            step.locks -= 1
            step.last_used = self._tick
            assert step.locks >= 0
            if step.locks == 0:
                self._num_unlocked += 1
                self._eviction.released(step)
                self._offer(step)
            step = step.parent
        step.locks -= 1
        assert step.locks >= 0
        self._drop_if_unused(step)

    def evict(self) -> Node | None:
        """Removes the unlocked leaf that the policy names and returns it, or None where all is locked."""
        node = self._eviction.pop()
        if node is not None:
            self._remove(node)
        return node

    def nodes(self) -> Iterator[Node]:
        """All nodes but the roots, parents first."""
        stack = [node for root in self._roots.values() for node in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def check_integrity(self) -> None:
        """Raises AssertionError where links, counts or the policy's leaves don't fit what is there."""
        nodes = list(self.nodes())
        findable = {id(node) for node in self._eviction.candidates()}
        unlocked = 0
        for node in nodes:
            if node.children:
                _check_children(node)
            elif node.locks == 0:
                assert id(node) in findable, "a leaf that eviction would never find"
            unlocked += node.locks == 0
            assert node.in_tree
        assert len(nodes) == self._num_nodes
        assert unlocked == self._num_unlocked
        for namespace, root in self._roots.items():
            assert root.in_tree and root.hash == namespace and root.parent is None
            assert root.children or root.locks, "a root without nodes and without users"
            _check_children(root)

    def _lock_one(self, node: Node) -> None:
        if node.locks == 0:
            self._num_unlocked -= 1
        node.locks += 1

    def _touch(self, node: Node) -> None:
        self._tick += 1
        node.last_used = self._tick

    def _offer(self, node: Node) -> None:
        if node.evictable:
            self._eviction.offer(node)

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.key]
        node.in_tree = False
        self._num_nodes -= 1
        self._num_unlocked -= 1
        if parent.parent is not None:
            self._offer(parent)
        else:
            self._drop_if_unused(parent)

    def _drop_if_unused(self, root: Node) -> None:
        if not root.children and root.locks == 0:
            del self._roots[root.hash]
            root.in_tree = False


def _check_children(node: Node) -> None:
    locks = 0
    for key, child in node.children.items():
        assert child.parent is node and child.key == key and child.depth == node.depth + 1
        locks += child.locks
    assert node.locks >= locks, "a user of a node is no user of its parent"
