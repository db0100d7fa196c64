import random

from replica.digest import Digest
from replica.protocol.records import xor_root


def test_changes_become_one_net_delta() -> None:
    digest = Digest("r")
    digest.change(added=(1, 2, 3), removed=())
    digest.change(added=(4,), removed=(2,))
    delta = digest.next_delta()
    assert (set(delta.added), delta.removed, delta.seq, delta.count) == ({1, 3, 4}, (), 1, 3)
    assert delta.root == 1 ^ 3 ^ 4


def test_a_block_that_goes_and_comes_back_is_no_change() -> None:
    digest = Digest("r")
    digest.change((1,), ())
    digest.next_delta()
    digest.change((), (1,))
    digest.change((1,), ())
    assert not digest.has_changes


def test_a_restart_is_a_new_epoch_from_nothing() -> None:
    digest = Digest("r")
    digest.change((1,), ())
    epoch = digest.next_delta().epoch
    digest.change((2,), ())
    digest.restart()
    assert digest.epoch != epoch
    assert not digest.has_changes
    assert digest.snapshot_due
    delta = digest.next_delta()
    assert (delta.seq, delta.count, delta.root) == (1, 0, 0)


def test_a_snapshot_is_due_when_deltas_outweigh_it() -> None:
    digest = Digest("r")
    digest.snapshot()
    digest.change(tuple(range(10_000)), ())
    digest.next_delta()
    assert digest.snapshot_due
    digest.snapshot()
    digest.change((), tuple(range(4_000)))
    digest.next_delta()
    assert digest.snapshot_due


def test_more_changes_than_an_entry_takes_are_said_by_a_snapshot() -> None:
    digest = Digest("r", max_delta_blocks=3)
    digest.change((1, 2, 3), ())
    assert digest.next_delta().added
    digest.snapshot()
    digest.change((4, 5, 6, 7), ())
    delta = digest.next_delta()
    assert (delta.seq, delta.added, delta.count) == (3, (), 7)
    assert digest.snapshot_due
    assert set(digest.snapshot().hashes) == {1, 2, 3, 4, 5, 6, 7}


def test_deltas_replayed_are_the_snapshot(seed: int) -> None:
    rng = random.Random(seed)
    digest, truth, replayed = Digest("r"), set[int](), set[int]()
    for _ in range(500):
        added = {rng.randrange(100) for _ in range(5)} - truth
        truth |= added
        removed = set(rng.sample(sorted(truth), min(3, len(truth)))) - added
        truth -= removed
        digest.change(tuple(added), tuple(removed))
        if rng.random() < 0.3:
            delta = digest.next_delta()
            assert not set(delta.added) & replayed
            assert set(delta.removed) <= replayed
            replayed = (replayed | set(delta.added)) - set(delta.removed)
            assert (delta.count, delta.root) == (len(replayed), xor_root(replayed))
            assert replayed == truth == set(digest.snapshot().hashes)
