from random import Random

import pytest

import gateway.routing.prefix_history as module
from gateway.routing.prefix_history import PrefixHistory
from tests.gateway.fakes import blocks


def test_a_match_is_of_leading_blocks() -> None:
    history, path = PrefixHistory(), list(blocks(1, 6))
    assert history.add("a", path[:3]) == 0
    assert history.add("b", path) == 0
    assert history.add("b", path[:2] + list(blocks(2, 2))) == 2
    assert history.add("c", path[1:]) == 0
    assert history.matched(path, ["c", "b", "nobody", "a"]).tolist() == [0, 6, 0, 3]
    assert history.matched([], ["a", "b"]).tolist() == [0, 0]
    assert history.prompts(["a", "b", "nobody"]).tolist() == [1, 2, 0]


def test_it_equals_plain_sets() -> None:
    print("seed", 5)
    rng, history, sets = Random(5), PrefixHistory(), dict[str, set[int]]()
    paths = [list(blocks(number % 3, 4)) + list(blocks(10 + number, 8)) for number in range(12)]
    for _ in range(500):
        path = rng.choice(paths)[: rng.randrange(13)]
        replica = f"r{rng.randrange(30)}"
        held = sets.setdefault(replica, set())
        assert history.add(replica, path) == leading(held, path)
        held.update(path)
        asked = rng.choice(paths)
        names = rng.sample(sorted(sets), min(5, len(sets)))
        assert history.matched(asked, names).tolist() == [leading(sets[name], asked) for name in names]
    assert len(history) == sum(map(len, sets.values()))


def leading(held: set[int], path: list[int]) -> int:
    return next((depth for depth, block in enumerate(path) if block not in held), len(path))


def test_what_was_longest_unused_goes_first_and_from_its_end() -> None:
    history, old, new = PrefixHistory(), list(blocks(1, 4)), list(blocks(2, 4))
    history.add("a", old)
    history.add("a", new)
    history.trim(6)
    assert [history.matched(path, ["a"])[0] for path in (old, new)] == [2, 4]
    history.add("a", old[:1])
    history.trim(3)
    assert [history.matched(path, ["a"])[0] for path in (old, new)] == [1, 2]
    history.trim(0)
    assert len(history) == 0 and not history._holders


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BLOCKS", 1000)
    monkeypatch.setattr(module, "MAX_REPLICAS", 20)
    rng, history = Random(1), PrefixHistory()
    for number in range(300):
        history.add(f"r{rng.randrange(100)}", blocks(number, rng.randrange(1, 100)))
        assert len(history) == sum(len(sent.blocks) for sent in history._sent.values()) <= 1000
        assert len(history._holders) <= 1000 and len(history._sent) <= 20 and history._numbers <= 21
    last = list(blocks(500, 2000))
    history.add("last", last)
    assert history.matched(last, ["last"])[0] == 1000 // len(history._sent) == 50
