import random

from replica.cache.eviction.lru import LRU
from replica.cache.radix import Node, RadixTree
from replica.protocol.hashing import block_hashes, pack_tokens


def key(block: int) -> bytes:
    return pack_tokens([block] * 16)


def grow(tree: RadixTree, path: list[int], first_page: int = 0) -> Node:
    """As a sequence does that comes and goes."""
    node = tree.root(0)
    tree.lock(node)
    for depth, block in enumerate(path):
        child = tree.child(node, key(block))
        if child is None:
            child = tree.insert(node, key(block), first_page + depth)
        else:
            tree.lock_child(child)
        node = child
    tree.unlock(node)
    return node


def test_nodes_carry_the_hashes_of_the_protocol() -> None:
    tokens = [token for block in (3, 1, 4) for token in [block] * 16]
    tree = RadixTree(LRU(20))
    grow(tree, [3, 1, 4])
    assert [node.hash for node in tree.nodes()] == block_hashes(tokens, 0)


def test_leaves_go_first_and_the_least_recently_used_of_them() -> None:
    tree = RadixTree(LRU(20))
    old = grow(tree, [1, 2], 10)
    new = grow(tree, [1, 3], 20)
    tree.lock(old)
    tree.unlock(old)
    assert tree.evict() is new
    assert tree.evict() is old
    last = tree.evict()
    assert last is not None
    assert last.key == key(1)
    assert tree.evict() is None
    assert tree.num_pages == 0


def test_nothing_locked_is_evicted() -> None:
    tree = RadixTree(LRU(20))
    kept = grow(tree, [1, 2])
    grow(tree, [1, 3], 10)
    tree.lock(kept)
    assert tree.num_evictable == 1
    evicted = tree.evict()
    assert evicted is not None
    assert evicted.key == key(3)
    assert tree.evict() is None
    tree.unlock(kept)
    assert tree.num_evictable == 2


def test_namespaces_share_nothing() -> None:
    tree = RadixTree(LRU(20))
    tree.insert(tree.root(1), key(5), 0)
    assert tree.child(tree.root(2), key(5)) is None


def test_stale_heap_entries_stay_bounded(seed: int) -> None:
    """Locking and unlocking for ever must not grow the heap."""
    rng = random.Random(seed)
    tree = RadixTree(LRU(20))
    leaves = [grow(tree, [block], block) for block in range(20)]
    for _ in range(10_000):
        leaf = rng.choice(leaves)
        tree.lock(leaf)
        tree.unlock(leaf)
    assert len(list(tree._eviction.candidates())) <= 64 + 4 * len(leaves)
    evicted = {tree.evict() for _ in range(20)}
    assert evicted == set(leaves)
