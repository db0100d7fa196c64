"""What every index does, whoever keeps the sets."""

from array import array
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from gateway.index.native_index import NativeIndex, load_library
from gateway.index.plain_index import PlainIndex
from gateway.index.prefix_index import (
    EXPECT_MAX_BLOCKS,
    EXPECT_TTL_S,
    MAX_BLOCKS,
    SHARDS,
    STEP_BLOCKS,
    Applied,
    Match,
    PrefixIndex,
)
from replica.protocol.records import Delta, Hashes, Snapshot, pack_hashes, xor_root
from tests.gateway.fakes import blocks
from tests.gateway.index.naive_index import NaiveIndex

Make = Callable[..., PrefixIndex]


@pytest.fixture(params=["plain", "native"])
def make(request: pytest.FixtureRequest) -> Make:
    def native(max_blocks: int = MAX_BLOCKS) -> PrefixIndex:
        return NativeIndex(load_library(), seed=7, max_blocks=max_blocks)

    return PlainIndex if request.param == "plain" else native


def delta(seq: int, held: set[int], added: list[int], removed: list[int] | None = None, **changes: object) -> Delta:
    """A right delta to the state `held`, but for the changes."""
    fields = {"replica": "a", "epoch": "e1", "count": len(held), "root": xor_root(held)}
    return Delta(seq=seq, added=tuple(added), removed=tuple(removed or []), **(fields | changes))  # type: ignore[arg-type]


def snapshot(hashes: list[int], epoch: str = "e1", seq: int = 1) -> Snapshot:
    return Snapshot(epoch, seq, "0-0", tuple(hashes))


def test_a_match_is_the_longest_prefix_of_each_replica(make: Make) -> None:
    index, path = make(), list(blocks(1, 6))
    index.load("a", snapshot(path[:2]))
    index.load("b", snapshot(path[:5]))
    index.load("c", snapshot(path[1:]))
    assert index.match(path) == {"a": Match(2, 2), "b": Match(5, 5)}
    assert index.match(path[:1]) == {"a": Match(1, 1), "b": Match(1, 1)}
    assert index.match([]) == {}
    assert index.match(list(blocks(2, 3))) == {}


def test_the_first_delta_of_an_epoch_starts_from_nothing(make: Make) -> None:
    index, path = make(), list(blocks(1, 3))
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
def test_a_replica_in_doubt_gets_no_credit_until_it_is_loaded(make: Make, bad: Delta, verdict: Applied) -> None:
    index = make()
    index.load("a", snapshot([1]))
    index.load("b", snapshot([1]))
    assert index.apply(bad) is verdict
    assert index.position("a") is None
    assert index.match([1]) == {"b": Match(1, 1)}
    index.expect("a", [1])
    assert index.match([1]) == {"b": Match(1, 1)}
    index.load("a", snapshot([1]))
    assert index.match([1])["a"] == Match(1, 1)


def test_an_old_delta_is_ignored(make: Make) -> None:
    index = make()
    index.load("a", snapshot([1], seq=5))
    assert index.apply(delta(5, {1, 2}, [2])) is Applied.STALE
    assert index.hashes_of("a") == {1}


def test_expected_blocks_count_until_they_time_out(make: Make) -> None:
    index, path = make(), list(blocks(1, 4))
    index.load("a", snapshot(path[:1]))
    index.expire(100.0)
    index.expect("a", path)
    assert index.match(path) == {"a": Match(1, 4)}
    index.expire(100.0 + EXPECT_TTL_S)
    assert index.match(path) == {"a": Match(1, 4)}
    index.expire(100.0 + 2 * EXPECT_TTL_S)
    assert index.match(path) == {"a": Match(1, 1)}


def test_eviction_ends_an_expectation(make: Make) -> None:
    index = make()
    index.load("a", snapshot([1, 2]))
    index.expect("a", [1, 2])
    assert index.apply(delta(2, {1}, [], [2])) is Applied.OK
    assert index.match([1, 2]) == {"a": Match(1, 1)}


def test_expectations_are_bounded(make: Make) -> None:
    index = make()
    index.load("a", snapshot([]))
    for number in range(4):
        index.expire(1.0)
        index.expect("a", range(number * EXPECT_MAX_BLOCKS, (number + 1) * EXPECT_MAX_BLOCKS))
    assert index.match([3 * EXPECT_MAX_BLOCKS])
    assert not index.match([0])


def test_dead_bits_are_swept_and_used_again(make: Make) -> None:
    index = make()
    for epoch in range(50):
        index.load("a", snapshot(list(blocks(epoch, 500)), epoch=str(epoch)))
        index.sweep(SHARDS)
    index.drop("a")
    index.sweep(2 * SHARDS)
    assert len(index) == 0
    assert len(index._replica_of) <= 3


@pytest.mark.parametrize("seed", range(20))
def test_it_equals_sets_whatever_happens(make: Make, seed: int) -> None:
    print("seed", seed)
    rng = Random(seed)
    index, naive = make(), NaiveIndex()
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


def packings(hashes: list[int]) -> list[Hashes]:
    return [tuple(hashes), hashes, array("Q", hashes), pack_hashes(hashes)]


@pytest.mark.parametrize("kind", range(4))
def test_hashes_may_come_in_any_form(make: Make, kind: int) -> None:
    index, path, other = make(), list(blocks(1, 300)), list(blocks(2, 10))
    index.load("a", Snapshot("e1", 1, "0-0", packings(path[:200] + other)[kind]))
    fields = (packings(path[200:])[kind], packings(other)[kind])
    held = set(path)
    record = Delta("a", "e1", 2, *fields, len(held), xor_root(held))
    assert index.apply(record) is Applied.OK
    assert index.hashes_of("a") == held
    prompts = packings(path)[:3]
    assert [index.match(prompt) for prompt in prompts] == [{"a": Match(300, 300)}] * 3


def test_a_snapshot_that_is_not_as_it_claims_is_not_loaded(make: Make) -> None:
    index, path = make(), list(blocks(1, 5))
    whole = (5, xor_root(path))
    for claimed in ((4, whole[1]), (5, whole[1] ^ 1)):
        assert index.load("a", replace(snapshot(path), claimed=claimed)) is Applied.ROOT
        assert index.position("a") is None and not index.match(path)
    assert index.load("a", replace(snapshot(path), claimed=whole)) is Applied.OK


def test_a_replica_in_the_middle_of_a_long_change_is_not_here(make: Make) -> None:
    index, path = make(), list(blocks(1, 3 * STEP_BLOCKS))
    for steps in (
        index.load_in_steps("a", snapshot(path[: 2 * STEP_BLOCKS])),
        index.apply_in_steps(delta(2, set(path[5:]), path[2 * STEP_BLOCKS :], path[:5])),
    ):
        pauses = 0
        for _ in steps:
            pauses += 1
            assert index.position("a") is None and not index.match(path) and index.replicas() == ()
        assert pauses == 1
    assert index.position("a") == ("e1", 2)
    assert index.hashes_of("a") == set(path[5:])


def test_a_change_of_up_to_one_step_has_no_pause(make: Make) -> None:
    index, path = make(), list(blocks(1, STEP_BLOCKS))
    assert list(index.load_in_steps("a", snapshot(path[:9]))) == []
    assert list(index.apply_in_steps(delta(2, set(path[9:]), path[9:], path[:9]))) == []
    assert index.position("a") == ("e1", 2)


@pytest.mark.parametrize("end", ["drop", "load", "close"])
def test_a_long_change_that_is_overtaken_comes_to_nothing(make: Make, end: str) -> None:
    index, path = make(), list(blocks(1, 3 * STEP_BLOCKS))
    steps = index.load_in_steps("a", snapshot(path))
    next(steps)
    if end == "drop":
        index.drop("a")
    elif end == "load":
        index.load("a", snapshot(path[:7], epoch="e2"))
    else:
        steps.close()
    assert list(steps) == []
    assert index.hashes_of("a") == (set(path[:7]) if end == "load" else set())
    index.drop("a")
    index.sweep(2 * SHARDS)
    assert len(index) == 0


def test_a_replica_that_finds_no_room_is_left_out_until_there_is(make: Make) -> None:
    index, path = make(max_blocks=100), list(blocks(1, 150))
    for replica in "ab":
        assert index.load(replica, snapshot(path[:95])) is Applied.OK
    assert index.load("c", snapshot(path[:96])) is Applied.FULL
    assert index.apply(delta(2, set(path[:100]), path[95:100])) is Applied.OK
    assert index.apply(delta(2, set(path[:101]), path[95:101], replica="b")) is Applied.FULL
    assert index.replicas() == ("a",)
    assert index.match(path[:64]) == {"a": Match(64, 64)}
    assert len(index) == 100
    index.drop("a")
    index.sweep(2 * SHARDS)
    assert index.load("c", snapshot(path[55:])) is Applied.OK


@pytest.mark.parametrize("replicas", [3, 4, 5, 64, 65, 300])
def test_any_number_of_replicas_may_hold_a_block(make: Make, replicas: int) -> None:
    index, path = make(), list(blocks(1, 200))
    depths = {f"r{number}": 1 + number * 37 % 200 for number in range(replicas)}
    for replica, depth in depths.items():
        index.load(replica, snapshot(path[:depth]))
        index.expect(replica, path[: min(200, depth + 3)])
    assert index.match(path) == {replica: Match(depth, min(200, depth + 3)) for replica, depth in depths.items()}
    for replica in list(depths)[::2]:
        index.drop(replica)
        del depths[replica]
    index.sweep(2 * SHARDS)
    index.expire(1.0)
    index.expire(1.0 + 3 * EXPECT_TTL_S)
    for replica, depth in depths.items():
        assert index.apply(delta(2, set(path[: depth - 1]), [], path[depth - 1 : depth], replica=replica)) == "ok"
    expected = {replica: Match(depth - 1, depth - 1) for replica, depth in depths.items() if depth > 1}
    assert index.match(path) == expected
    for replica in depths:
        index.drop(replica)
    index.sweep(2 * SHARDS)
    assert len(index) == 0
