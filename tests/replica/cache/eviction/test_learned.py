"""What is learned, and what follows from it."""

import math
import random
from collections.abc import Callable

import pytest

from replica.cache.eviction.learned import _EDGES, _GHOSTS, _HORIZON, _NUM_AGES, Learned, _gittins
from replica.cache.manager import CacheManager
from replica.sequence import SamplingParams, Sequence


def hits(eviction: str, prompts: list[list[int]], num_pages: int) -> float:
    """Share of pages found. Prompts are given as blocks."""
    cache = CacheManager(num_pages, eviction)
    found = 0
    for blocks in prompts:
        tokens = [block for block in blocks for _ in range(16)]
        sequence = Sequence("s", [*tokens, 0], SamplingParams(max_tokens=1), namespace=0)
        found += cache.admit(sequence) // 16
        assert cache.reserve(sequence, len(tokens))
        sequence.num_computed = len(tokens)
        cache.commit(sequence)
        cache.release(sequence)
    cache.check_integrity([])
    return found / sum(map(len, prompts))


def loop(_: random.Random) -> list[list[int]]:
    return [[n * 10 + k for k in range(10)] for n in range(30)] * 30


def scans_between_tenants(rng: random.Random) -> list[list[int]]:
    """20 prompts of 10 blocks, each followed by as many blocks that never come again."""
    return [
        [*(tenant * 10 + k for k in range(10)), *range(n * 10, n * 10 + 10)]
        for n, tenant in ((1000 + n, rng.randrange(20)) for n in range(1500))
    ]


def recent_only(rng: random.Random) -> list[list[int]]:
    """Each prompt comes three times within a short while and then never again."""
    return [[(n + rng.randrange(3)) * 20 + k for k in range(20)] for n in range(1500)]


@pytest.mark.parametrize(("prompts", "at_least"), [(loop, 0.5), (scans_between_tenants, 1.25), (recent_only, 0.99)])
def test_it_beats_lru_where_there_is_something_to_learn(
    prompts: Callable[[random.Random], list[list[int]]], at_least: float, seed: int
) -> None:
    """By this factor, or where LRU finds nothing at all, to this share."""
    made = prompts(random.Random(seed))
    lru = hits("lru", made, 240)
    assert hits("learned", made, 240) >= at_least * (lru or 1)


def test_the_oldest_go_first_where_nothing_ever_comes_back() -> None:
    cache = CacheManager(320, "learned")
    prompts = [Sequence("s", [n] * 160, SamplingParams(max_tokens=1), namespace=n) for n in range(200)]
    for sequence in prompts:
        cache.admit(sequence)
        assert cache.reserve(sequence, 160)
        sequence.num_computed = 160
        cache.commit(sequence)
        cache.release(sequence)
    held = cache.hashes()
    assert not any(set(sequence.hashes) & held for sequence in prompts[:150])


def test_what_it_remembers_is_bounded(seed: int) -> None:
    rng = random.Random(seed)
    eviction = Learned(32)
    cache = CacheManager(32, "learned")
    cache._tree._eviction = eviction
    for _ in range(2000):
        sequence = Sequence("s", [rng.randrange(10**6) for _ in range(100)], SamplingParams(max_tokens=1), namespace=0)
        cache.admit(sequence)
        assert cache.reserve(sequence, 100)
        sequence.num_computed = 100
        cache.commit(sequence)
        cache.release(sequence)
    assert len(eviction._ghosts) == _GHOSTS * 32
    assert len(eviction._cells) <= 32 + _HORIZON + 1
    assert sum(cell.outstanding for cell in eviction._cells) <= (_GHOSTS + 1) * 32
    assert len(eviction._heap) <= 2 * len(eviction._cells)


def test_a_value_is_the_best_ratio_over_all_horizons(seed: int) -> None:
    """The Gittins index, by trying all."""
    rng = random.Random(seed)
    hazards = [10 ** rng.uniform(-5, 1) for _ in range(_NUM_AGES)]
    for start, value in enumerate(_gittins(hazards)):
        chance = time = 0.0
        left, best = 1.0, 0.0
        for age in range(start, _NUM_AGES):
            used = left * -math.expm1(-hazards[age] * (_EDGES[age + 1] - _EDGES[age]))
            chance, time, left = chance + used, time + used / hazards[age], left - used
            best = max(best, chance / time)
        assert value == pytest.approx(best, rel=1e-6)
