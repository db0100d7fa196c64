from random import Random

import pytest

from gateway.index.prefix_index import EXPECT_MAX_BLOCKS, EXPECT_TTL_S, SHARDS, Applied, Match, PrefixIndex
from replica.protocol.records import Delta, Snapshot, xor_root
from tests.gateway.fakes import blocks
from tests.gateway.index.naive_index import NaiveIndex


def delta(seq: int, held: set[int], added: list[int], removed: list[int] | None = None, **changes: object) -> Delta:
    """A right delta to the state `held`, but for the changes."""
    fields = {"replica": "a", "epoch": "e1", "count": len(held), "root": xor_root(held)}
    return Delta(seq=seq, added=tuple(added), removed=tuple(removed or []), **(fields | changes))  # type: ignore[arg-type]


def snapshot(hashes: list[int], epoch: str = "e1", seq: int = 1) -> Snapshot:
    return Snapshot(epoch, seq, "0-0", tuple(hashes))


def test_a_match_is_the_longest_prefix_of_each_replica() -> None:
    index, path = PrefixIndex(), list(blocks(1, 6))
    index.load("a", snapshot(path[:2]))
    index.load("b", snapshot(path[:5]))
    index.load("c", snapshot(path[1:]))
    assert index.match(path) == {"a": Match(2, 2), "b": Match(5, 5)}
    assert index.match(path[:1]) == {"a": Match(1, 1), "b": Match(1, 1)}
    assert index.match([]) == {}
    assert index.match(list(blocks(2, 3))) == {}


def test_the_first_delta_of_an_epoch_starts_from_nothing() -> None:
    index, path = PrefixIndex(), list(blocks(1, 3))
    assert index.apply(delta(1, set(path), path)) is Applied.OK
    assert index.position("a") == ("e1", 1)
    assert index.apply(delta(1, set(path[:1]), path[:1], epoch="e2")) is Applied.OK
    assert index.hashes_of("a") == set(path[:1])


@pytest.mark.parametrize(
    ("bad", "verdict"),
    [
        (delta(3, {1, 2}, [2]), Applied.GAP),
        (delta(2, {1, 2}, [2], epoch="e2"), Applied.EPOCH),
        (delta(2, {1, 2}, [2], root=99), Applied.ROOT),
        (delta(2, {1, 2}, [2], count=3), Applied.ROOT),
    ],
)
def test_a_replica_in_doubt_gets_no_credit_until_it_is_loaded(bad: Delta, verdict: Applied) -> None:
    index = PrefixIndex()
    index.load("a", snapshot([1]))
    index.load("b", snapshot([1]))
    assert index.apply(bad) is verdict
    assert index.position("a") is None
    assert index.match([1]) == {"b": Match(1, 1)}
    index.expect("a", [1])
    assert index.match([1]) == {"b": Match(1, 1)}
    index.load("a", snapshot([1]))
    assert index.match([1])["a"] == Match(1, 1)


def test_an_old_delta_is_ignored() -> None:
    index = PrefixIndex()
    index.load("a", snapshot([1], seq=5))
    assert index.apply(delta(5, {1, 2}, [2])) is Applied.STALE
    assert index.hashes_of("a") == {1}


def test_expected_blocks_count_until_they_time_out() -> None:
    index, path = PrefixIndex(), list(blocks(1, 4))
    index.load("a", snapshot(path[:1]))
    index.expire(100.0)
    index.expect("a", path)
    assert index.match(path) == {"a": Match(1, 4)}
    index.expire(100.0 + EXPECT_TTL_S)
    assert index.match(path) == {"a": Match(1, 4)}
    index.expire(100.0 + 2 * EXPECT_TTL_S)
    assert index.match(path) == {"a": Match(1, 1)}


def test_eviction_ends_an_expectation() -> None:
    index = PrefixIndex()
    index.load("a", snapshot([1, 2]))
    index.expect("a", [1, 2])
    assert index.apply(delta(2, {1}, [], [2])) is Applied.OK
    assert index.match([1, 2]) == {"a": Match(1, 1)}


def test_expectations_are_bounded() -> None:
    index = PrefixIndex()
    index.load("a", snapshot([]))
    for number in range(4):
        index.expire(1.0)
        index.expect("a", range(number * EXPECT_MAX_BLOCKS, (number + 1) * EXPECT_MAX_BLOCKS))
    assert index.match([3 * EXPECT_MAX_BLOCKS])
    assert not index.match([0])


def test_dead_bits_are_swept_and_used_again() -> None:
    index = PrefixIndex()
    for epoch in range(50):
        index.load("a", snapshot(list(blocks(epoch, 500)), epoch=str(epoch)))
        index.sweep(SHARDS)
    index.drop("a")
    index.sweep(2 * SHARDS)
    assert len(index) == 0
    assert index._bits <= 3


@pytest.mark.parametrize("seed", range(20))
def test_it_equals_sets_whatever_happens(seed: int) -> None:
    print("seed", seed)
    rng = Random(seed)
    index, naive = PrefixIndex(), NaiveIndex()
    paths = [list(blocks(number, 12)) for number in range(6)]
    paths += [paths[0][:6] + path[6:] for path in paths[1:3]]
    truth: dict[str, tuple[str, int, set[int]]] = {name: (f"{name}0", 0, set()) for name in "abcde"}
    for step in range(400):
        name = rng.choice("abcde")
        epoch, seq, held = truth[name]
        kind = rng.random()
        if kind < 0.05:
            truth[name] = (f"{name}{step}", 0, set())
        elif kind < 0.15:
            for each in (index, naive):
                each.load(name, Snapshot(epoch, seq, "0-0", tuple(held)))
        elif kind < 0.18:
            for each in (index, naive):
                each.drop(name)
        elif kind < 0.35:
            path = rng.choice(paths)[: rng.randrange(13)]
            for each in (index, naive):
                each.expect(name, path)
        else:
            added = set(rng.choice(paths)[: rng.randrange(13)]) - held
            removed = set(rng.sample(sorted(held), rng.randrange(len(held) // 2 + 1)))
            held = (held - removed) | added
            lie = rng.random() < 0.03
            record = Delta(name, epoch, seq + 1, tuple(added), tuple(removed), len(held) + lie, xor_root(held))
            truth[name] = (epoch, seq + 1, held)
            if rng.random() < 0.9:
                assert index.apply(record) is naive.apply(record)
        index.sweep(rng.choice((0, 1, SHARDS)))
        path = rng.choice(paths)
        assert index.match(path) == naive.match(path), f"step {step}"
        assert {r: index.hashes_of(r) for r in index.replicas()} == naive.held
        assert {r: index.blocks(r) for r in index.replicas()} == {r: len(h) for r, h in naive.held.items()}
