import random

from replica.cache.radix import Node, RadixTree
from replica.protocol.hashing import block_hashes, pack_tokens


def key(block: int) -> bytes:
    return pack_tokens([block] * 16)


def grow(tree: RadixTree, path: list[int], first_page: int = 0) -> Node:
    node = tree.root(0)
    for depth, block in enumerate(path):
        node = tree.child(node, key(block)) or tree.insert(node, key(block), first_page + depth)
    return node


def test_nodes_carry_the_hashes_of_the_protocol() -> None:
    tokens = [token for block in (3, 1, 4) for token in [block] * 16]
    tree = RadixTree()
    grow(tree, [3, 1, 4])
    assert [node.hash for node in tree.nodes()] == block_hashes(tokens, 0)


def test_leaves_go_first_and_the_least_recently_used_of_them() -> None:
    tree = RadixTree()
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
    tree = RadixTree()
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
    tree = RadixTree()
    tree.insert(tree.root(1), key(5), 0)
    assert tree.child(tree.root(2), key(5)) is None


def test_stale_heap_entries_stay_bounded(seed: int) -> None:
    """Locking and unlocking for ever must not grow the heap."""
    rng = random.Random(seed)
    tree = RadixTree()
    leaves = [grow(tree, [block], block) for block in range(20)]
    for _ in range(10_000):
        leaf = rng.choice(leaves)
        tree.lock(leaf)
        tree.unlock(leaf)
    assert len(tree._heap) <= 64 + 4 * len(leaves) + 1
    evicted = {tree.evict() for _ in range(20)}
    assert evicted == set(leaves)
