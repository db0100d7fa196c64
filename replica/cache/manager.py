"""The KV cache as the scheduler sees it: pages for sequences, prefixes shared through the tree.

A sequence's life here: `admit` (reuse what the tree holds), `reserve` (pages for the next chunk), `commit` (whole pages
just computed go into the tree, only now), `release`. What the tree gains and loses is kept as events for the publisher.
"""

from dataclasses import dataclass
from typing import Protocol

from replica.cache.block_pool import BlockPool, Owner
from replica.cache.eviction.registry import EVICTIONS
from replica.cache.radix import Node, RadixTree
from replica.protocol.hashing import BLOCK_SIZE
from replica.sequence import Sequence


@dataclass(frozen=True, slots=True)
class CacheEvents:
    """Block hashes that the tree has gained and lost, net, since they were last taken."""

    added: tuple[int, ...]
    removed: tuple[int, ...]


class KVCache(Protocol):
    """What the scheduler needs. `NaiveCache` is the one without reuse."""

    @property
    def num_pages(self) -> int: ...
    @property
    def num_free(self) -> int: ...
    @property
    def num_evictable(self) -> int: ...
    def match(self, sequence: Sequence) -> int:
        """Prompt tokens that `admit` would take from the tree now. Changes nothing."""
        ...

    def admit(self, sequence: Sequence) -> int:
        """Gives a sequence without pages those that the tree holds of its tokens, locked. Returns their tokens."""
        ...

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Makes room for the first `num_tokens` tokens, evicting if need be. False, and nothing changed, where there
        is none."""
        ...

    def commit(self, sequence: Sequence) -> None:
        """The forward has written the KV of `num_computed` tokens."""
        ...

    def release(self, sequence: Sequence) -> None:
        """Takes all pages back; those in the tree stay there."""
        ...

    def take_events(self) -> CacheEvents: ...
    def check_integrity(self, live: list[Sequence]) -> None:
        """Raises AssertionError where a page is lost, owned twice, or locked by nobody alive."""
        ...


class CacheManager:
    def __init__(self, num_pages: int, eviction: str = "lru") -> None:
        """`eviction` is a name in replica/cache/eviction/registry.py."""
        self._pool = BlockPool(num_pages)
        self._tree = RadixTree(EVICTIONS[eviction](num_pages))
        self._added: set[int] = set()
        self._removed: set[int] = set()

    @property
    def num_pages(self) -> int:
        return self._pool.num_pages

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    @property
    def num_evictable(self) -> int:
        return self._tree.num_evictable

    def match(self, sequence: Sequence) -> int:
        node = self._deepest(sequence)
        return 0 if node is None else node.depth * BLOCK_SIZE

    def admit(self, sequence: Sequence) -> int:
        assert sequence.node is None and not sequence.pages
        node = self._deepest(sequence) or self._tree.root(sequence.namespace)
        self._tree.lock(node)
        pages: list[int] = []
        step = node
        while step.parent is not None:
            pages.append(step.page)
            step = step.parent
        sequence.node = node
        sequence.pages = pages[::-1]
        sequence.num_tree_pages = len(pages)
        sequence.num_computed = len(pages) * BLOCK_SIZE
        return sequence.num_computed

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        missing = -(-num_tokens // BLOCK_SIZE) - len(sequence.pages)
        if missing > self._pool.num_free + self._tree.num_evictable:
            return False
        for _ in range(missing):
            if self._pool.num_free == 0:
                self._evict_one()
            sequence.pages.append(self._pool.allocate())
        return True

    def commit(self, sequence: Sequence) -> None:
        assert sequence.node is not None
        for index in range(sequence.num_tree_pages, sequence.num_computed // BLOCK_SIZE):
            self._commit_page(sequence, index)

    def _commit_page(self, sequence: Sequence, index: int) -> None:
        parent = sequence.node
        assert parent is not None
        key = sequence.block(index)
        page = sequence.pages[index]
        node = self._tree.child(parent, key)
        if node is None:
            self._pool.give_to_tree(page)
            node = self._tree.insert(parent, key, page)
            self._note_added(node.hash)
        else:
            # Another sequence computed the same block meanwhile: point at the tree's page first, then free our own.
            sequence.pages[index] = node.page
            self._pool.free_from_sequence([page])
            self._tree.lock_child(node)
        sequence.node = node
        sequence.num_tree_pages = index + 1

    def release(self, sequence: Sequence) -> None:
        sequence.match_hint = None
        if sequence.node is None:
            return
        # The tail first, so that it is handed out again last.
        self._pool.free_from_sequence(reversed(sequence.pages[sequence.num_tree_pages :]))
        self._tree.unlock(sequence.node)
        sequence.node = None
        sequence.pages = []
        sequence.num_tree_pages = 0
        sequence.num_computed = 0

    def take_events(self) -> CacheEvents:
        events = CacheEvents(tuple(self._added), tuple(self._removed))
        self._added.clear()
        self._removed.clear()
        return events

    def hashes(self) -> set[int]:
        """Of all blocks held: what any reader of our events must arrive at."""
        return {node.hash for node in self._tree.nodes()}

    def check_integrity(self, live: list[Sequence]) -> None:
        pool, tree = self._pool, self._tree
        nodes = list(tree.nodes())
        own = [page for sequence in live for page in sequence.pages[sequence.num_tree_pages :]]
        pages = [node.page for node in nodes] + own
        assert len(set(pages)) == len(pages), "a page has two owners"
        assert all(pool.owner(node.page) is Owner.TREE for node in nodes)
        assert all(pool.owner(page) is Owner.SEQUENCE for page in own)
        assert pool.num_tree == len(nodes) == tree.num_pages, f"{pool} but {len(nodes)} nodes"
        assert pool.num_sequence == len(own), f"{pool} but sequences hold {len(own)}"
        users: dict[int, int] = {}
        for sequence in live:
            step = sequence.node
            for index in range(sequence.num_tree_pages - 1, -1, -1):
                assert step is not None
                assert sequence.pages[index] == step.page, "a sequence's page differs from the tree's"
                users[id(step)] = users.get(id(step), 0) + 1
                step = step.parent
            if step is not None:
                assert step.hash == sequence.namespace and step.parent is None, "a sequence's path has another length"
                users[id(step)] = users.get(id(step), 0) + 1
        assert all(node.locks == users.get(id(node), 0) for node in (*nodes, *tree.roots)), "locks differ from users"
        tree.check_integrity()

    def _deepest(self, sequence: Sequence) -> Node | None:
        """At most all tokens but one: the last must be computed to get logits; none where all of them must."""
        num_blocks = 0 if sequence.lacks_prompt_logprobs else (len(sequence.tokens) - 1) // BLOCK_SIZE
        node = self._tree.deepest(sequence.namespace, sequence.packed, num_blocks, sequence.match_hint, sequence.fork)
        sequence.match_hint = node
        return node

    def _evict_one(self) -> None:
        node = self._tree.evict()
        assert node is not None, "num_evictable promised an unlocked leaf"
        self._pool.free_from_tree(node.page)
        self._note_removed(node.hash)

    def _note_added(self, block: int) -> None:
        if block in self._removed:
            self._removed.remove(block)
        else:
            self._added.add(block)

    def _note_removed(self, block: int) -> None:
        if block in self._added:
            self._added.remove(block)
        else:
            self._removed.add(block)
