"""What every KV cache promises the scheduler, and what the one with reuse promises besides."""

from collections.abc import Callable

import pytest

from replica.cache.manager import CacheManager, KVCache
from replica.cache.naive import NaiveCache
from replica.sequence import SamplingParams, Sequence

CACHES: list[Callable[[int], KVCache]] = [CacheManager, NaiveCache]
PARAMS = SamplingParams(max_tokens=100)

each_cache = pytest.mark.parametrize("new_cache", CACHES)


def make(prompt: list[int], name: str = "s", namespace: int = 0) -> Sequence:
    return Sequence(name, prompt, PARAMS, namespace)


def compute(cache: KVCache, sequence: Sequence) -> None:
    """As the scheduler would, in one chunk."""
    cache.admit(sequence)
    assert cache.reserve(sequence, len(sequence.tokens))
    sequence.num_computed = len(sequence.tokens)
    cache.commit(sequence)


@each_cache
def test_release_gives_everything_back(new_cache: Callable[[int], KVCache]) -> None:
    cache = new_cache(8)
    sequence = make(list(range(50)))
    compute(cache, sequence)
    assert len(sequence.pages) == 4
    cache.release(sequence)
    assert cache.num_free + cache.num_evictable == 8
    cache.check_integrity([])


@each_cache
def test_reserve_is_all_or_nothing(new_cache: Callable[[int], KVCache]) -> None:
    cache = new_cache(4)
    sequence = make(list(range(10)))
    cache.admit(sequence)
    assert not cache.reserve(sequence, 4 * 16 + 1)
    assert sequence.pages == []
    assert cache.reserve(sequence, 4 * 16)
    cache.check_integrity([sequence])


@each_cache
def test_releasing_what_was_never_admitted_is_harmless(new_cache: Callable[[int], KVCache]) -> None:
    cache = new_cache(4)
    cache.release(make([1]))
    assert cache.num_free == 4


@pytest.mark.parametrize(
    ("length", "cached"), [(1, 0), (15, 0), (16, 0), (17, 16), (31, 16), (32, 16), (33, 32), (160, 144)]
)
def test_a_repeated_prompt_is_cached_but_for_its_last_token(length: int, cached: int) -> None:
    cache = CacheManager(32)
    first = make(list(range(length)))
    compute(cache, first)
    cache.release(first)
    again = make(list(range(length)))
    assert cache.match(again) == cached
    assert cache.admit(again) == cached


def test_equal_blocks_computed_twice_end_up_shared() -> None:
    cache = CacheManager(8)
    a, b = make(list(range(40)), "a"), make(list(range(40)), "b")
    for sequence in (a, b):
        cache.admit(sequence)
        assert cache.reserve(sequence, 40)
        sequence.num_computed = 40
    cache.commit(a)
    cache.commit(b)
    assert a.pages[:2] == b.pages[:2]
    assert a.pages[2] != b.pages[2]
    cache.check_integrity([a, b])
    assert cache.num_free == 4


def test_namespaces_never_share() -> None:
    cache = CacheManager(8)
    compute(cache, make(list(range(40)), namespace=1))
    assert cache.match(make(list(range(40)), namespace=2)) == 0


def test_events_are_net() -> None:
    cache = CacheManager(2)
    first = make(list(range(32)))
    compute(cache, first)
    cache.release(first)
    assert set(cache.take_events().added) == cache.hashes()
    second = make(list(range(100, 132)))
    compute(cache, second)
    events = cache.take_events()
    assert set(events.removed) == set(first.hashes)
    assert set(events.added) == set(second.hashes) == cache.hashes()
    assert cache.take_events() == type(events)((), ())
