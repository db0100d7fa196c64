"""The KV cache again, as plain dicts and lists that are searched from end to end, and a cache checked against it."""

from dataclasses import dataclass, field
from typing import Any

from replica.cache.manager import CacheEvents, CacheManager
from replica.protocol.hashing import block_hashes
from replica.sequence import Sequence

Prefix = tuple[Any, ...]
"""Namespace and whole blocks; the first of a tenant's own says whose it is."""


@dataclass(slots=True)
class Block:
    page: int
    hash: int
    last_used: int


@dataclass(slots=True)
class PlainCache:
    """What is held, for whom, and in which order it must go."""

    num_pages: int
    held: dict[Prefix, Block] = field(default_factory=dict)
    pages: dict[Sequence, list[int]] = field(default_factory=dict)
    in_tree: dict[Sequence, int] = field(default_factory=dict)
    """How many of a live sequence's pages are the tree's."""
    now: int = 0

    def match(self, sequence: Sequence) -> int:
        blocks = 0
        while (blocks + 1) * 16 < len(sequence.tokens) and _prefix(sequence, blocks + 1) in self.held:
            blocks += 1
        return blocks * 16

    def admit(self, sequence: Sequence) -> None:
        self.now += 1
        path = [self.held[_prefix(sequence, n + 1)] for n in range(self.match(sequence) // 16)]
        for block in path:
            block.last_used = self.now
        self.pages[sequence] = [block.page for block in path]
        self.in_tree[sequence] = len(path)

    def free(self) -> set[int]:
        used = {block.page for block in self.held.values()}
        used |= {page for pages in self.pages.values() for page in pages}
        return set(range(self.num_pages)) - used

    def locked(self) -> set[Prefix]:
        return {_prefix(sequence, n + 1) for sequence, count in self.in_tree.items() for n in range(count)}

    def missing(self, sequence: Sequence, num_tokens: int) -> int:
        """How many blocks must go to make room."""
        return max(0, -(-num_tokens // 16) - len(self.pages[sequence]) - len(self.free()))

    def evictions(self, sequence: Sequence, num_tokens: int) -> list[Prefix] | None:
        """Which blocks go by LRU, one by one, to make room; None where there can't be enough."""
        missing = self.missing(sequence, num_tokens)
        rest, locked = dict(self.held), self.locked()
        gone: list[Prefix] = []
        while missing > len(gone):
            leaves = [p for p in rest if p not in locked and not any(q[:-1] == p for q in rest)]
            if not leaves:
                return None
            gone.append(min(leaves, key=lambda prefix: rest[prefix].last_used))
            del rest[gone[-1]]
        return gone

    def check_evictions(self, gone: list[Prefix], num_missing: int) -> None:
        """Any policy may choose, but exactly as many as are missing, none in use, and no block before its children."""
        rest = self.held.keys() - set(gone)
        assert len(gone) == num_missing
        assert not set(gone) & self.locked()
        assert all(len(prefix) == 2 or prefix[:-1] in rest for prefix in rest)

    def commit(self, sequence: Sequence) -> None:
        pages = self.pages[sequence]
        for n in range(self.in_tree[sequence], sequence.num_computed // 16):
            self.now += 1
            prefix = _prefix(sequence, n + 1)
            if prefix not in self.held:
                self.held[prefix] = Block(pages[n], sequence_hashes(sequence, n + 1)[-1], 0)
            self.held[prefix].last_used = self.now
            pages[n] = self.held[prefix].page
            self.in_tree[sequence] = n + 1

    def release(self, sequence: Sequence) -> None:
        self.now += 1
        for n in range(self.in_tree.pop(sequence, 0)):
            self.held[_prefix(sequence, n + 1)].last_used = self.now
        self.pages.pop(sequence, None)


def _prefix(sequence: Sequence, blocks: int) -> Prefix:
    rows: list[Any] = [tuple(sequence.tokens[n * 16 : n * 16 + 16]) for n in range(blocks)]
    if sequence.fork is not None and sequence.fork.block < blocks:
        rows[sequence.fork.block] = (rows[sequence.fork.block], sequence.fork.tag)
    return (sequence.namespace, *rows)


def sequence_hashes(sequence: Sequence, blocks: int) -> list[int]:
    return block_hashes(sequence.tokens[: blocks * 16], sequence.namespace, sequence.fork)


class CheckedCache(CacheManager):
    """Does all that is done to it also to the plain model, and compares: by LRU also what is evicted."""

    def __init__(self, num_pages: int, eviction: str = "lru") -> None:
        super().__init__(num_pages, eviction)
        self.eviction = eviction
        self.plain = PlainCache(num_pages)
        self.replayed: set[int] = set()
        self.num_evicted = 0

    def match(self, sequence: Sequence) -> int:
        matched = super().match(sequence)
        if sequence not in self.plain.pages:
            assert matched == self.plain.match(sequence)
        return matched

    def admit(self, sequence: Sequence) -> int:
        expected = self.plain.match(sequence)
        self.plain.admit(sequence)
        assert super().admit(sequence) == expected
        self._compare(sequence)
        return expected

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        gone = self.plain.evictions(sequence, num_tokens)
        missing = self.plain.missing(sequence, num_tokens)
        done = super().reserve(sequence, num_tokens)
        assert done == (gone is not None)
        if gone is not None and self.eviction != "lru":
            left = self.hashes()
            gone = [prefix for prefix, block in self.plain.held.items() if block.hash not in left]
            self.plain.check_evictions(gone, missing)
        if gone is not None:
            free = self.plain.free() | {self.plain.held.pop(prefix).page for prefix in gone}
            fresh = sequence.pages[len(self.plain.pages[sequence]) :]
            assert set(fresh) <= free, "a page in use was handed out"
            self.plain.pages[sequence] += fresh
            self.num_evicted += len(gone)
        self._compare(sequence)
        return done

    def commit(self, sequence: Sequence) -> None:
        self.plain.commit(sequence)
        super().commit(sequence)
        self._compare(sequence)

    def release(self, sequence: Sequence) -> None:
        if sequence in self.plain.pages:
            self.plain.release(sequence)
        super().release(sequence)
        self._compare(sequence)

    def take_events(self) -> CacheEvents:
        events = super().take_events()
        assert not set(events.added) & self.replayed
        assert set(events.removed) <= self.replayed
        self.replayed = (self.replayed - set(events.removed)) | set(events.added)
        return events

    def _compare(self, sequence: Sequence) -> None:
        self.take_events()
        plain = self.plain
        assert self.replayed == self.hashes() == {block.hash for block in plain.held.values()}
        assert sequence.pages == plain.pages.get(sequence, [])
        assert sequence.num_tree_pages == plain.in_tree.get(sequence, 0)
        assert self.num_free == len(plain.free())
        assert self.num_evictable == len(plain.held.keys() - plain.locked())
