"""What every eviction policy promises the prefix tree. Under a whole cache, against a plain model:
tests/replica/cache/test_manager.py."""

import random

import pytest

from replica.cache.eviction.base import Eviction
from replica.cache.eviction.registry import EVICTIONS
from replica.cache.radix import Node, RadixTree
from replica.config import Eviction as Setting
from replica.protocol.hashing import pack_tokens

each_eviction = pytest.mark.parametrize("name", EVICTIONS)
NUM_PAGES = 40


def key(block: int) -> bytes:
    return pack_tokens([block] * 16)


def test_the_setting_names_all() -> None:
    assert {setting.value for setting in Setting} == set(EVICTIONS)


class User:
    """Sequences that come to a tree of their own, stay for a while and go, as the cache lets them."""

    def __init__(self, eviction: Eviction, seed: int) -> None:
        self.tree = RadixTree(eviction)
        self.rng = random.Random(seed)
        self.ends: list[Node] = []
        self.evicted: list[int] = []

    def come(self) -> None:
        path = [self.rng.randrange(3) for _ in range(self.rng.randrange(1, 7))]
        node = self.tree.root(0)
        while path and (child := self.tree.child(node, key(path[0]))) is not None:
            node, path = child, path[1:]
        self.tree.lock(node)
        for block in path:
            if self.tree.num_pages == NUM_PAGES:
                self.evict()
            if self.tree.num_pages == NUM_PAGES:
                break
            node = self.tree.insert(node, key(block), 0)
        self.ends.append(node)

    def go(self) -> None:
        self.tree.unlock(self.ends.pop(self.rng.randrange(len(self.ends))))

    def evict(self) -> None:
        evictable = self.tree.num_evictable
        node = self.tree.evict()
        assert (node is None) == (evictable == 0), "what was promised isn't found"
        if node is not None:
            assert node.locks == 0 and not node.children and not node.in_tree
            assert self.tree.num_evictable == evictable - 1
            self.evicted.append(node.hash)

    def step(self) -> None:
        if self.ends and self.rng.random() < len(self.ends) / 8:
            self.go()
        elif self.rng.random() < 0.05:
            self.evict()
        else:
            self.come()


@each_eviction
def test_only_free_leaves_go_and_all_of_them_are_found(name: str, seed: int) -> None:
    user = User(EVICTIONS[name](NUM_PAGES), seed)
    for _ in range(10_000):
        user.step()
        if user.rng.random() < 0.1:
            user.tree.check_integrity()
    assert len(user.evicted) > 1000
    while user.ends:
        user.go()
    assert user.tree.num_evictable == user.tree.num_pages
    while user.tree.num_pages:
        user.evict()
    user.evict()


@each_eviction
def test_equal_calls_give_equal_choices(name: str, seed: int) -> None:
    users = [User(EVICTIONS[name](NUM_PAGES), seed) for _ in range(2)]
    for user in users:
        for _ in range(3000):
            user.step()
    assert users[0].evicted == users[1].evicted


@each_eviction
def test_use_without_end_leaves_nothing_behind(name: str, seed: int) -> None:
    rng = random.Random(seed)
    eviction = EVICTIONS[name](NUM_PAGES)
    tree = RadixTree(eviction)
    tree.lock(tree.root(0))
    leaves = [tree.insert(tree.root(0), key(block), block) for block in range(20)]
    for leaf in leaves:
        tree.unlock(leaf)
        tree.lock(tree.root(0))
    for _ in range(10_000):
        leaf = rng.choice(leaves)
        tree.lock(leaf)
        tree.unlock(leaf)
    assert len(list(eviction.candidates())) <= 64 + 4 * NUM_PAGES
    assert {tree.evict() for _ in range(20)} == set(leaves)
