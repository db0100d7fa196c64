import pytest

from replica.cache.block_pool import BlockPool, Owner


def test_a_page_goes_from_hand_to_hand() -> None:
    pool = BlockPool(2)
    page = pool.allocate()
    assert pool.owner(page) is Owner.SEQUENCE
    pool.give_to_tree(page)
    assert (pool.num_free, pool.num_sequence, pool.num_tree) == (1, 0, 1)
    pool.free_from_tree(page)
    assert (pool.num_free, pool.num_sequence, pool.num_tree) == (2, 0, 0)


def test_freeing_twice_is_an_error() -> None:
    pool = BlockPool(2)
    page = pool.allocate()
    pool.free_from_sequence([page])
    with pytest.raises(AssertionError, match="belongs to FREE"):
        pool.free_from_sequence([page])


def test_a_wrong_owner_is_an_error() -> None:
    pool = BlockPool(1)
    page = pool.allocate()
    with pytest.raises(AssertionError, match="belongs to SEQUENCE, not to TREE"):
        pool.free_from_tree(page)
