"""The prefix cache against a plain model, under the scheduler and by itself."""

import random
from functools import partial

import pytest

from replica.cache.eviction.registry import EVICTIONS
from replica.cache.manager import CacheManager
from replica.protocol.hashing import Fork
from replica.sequence import SamplingParams, Sequence
from tests.replica.cache.plain_model import CheckedCache
from tests.replica.driver import Driver

each_eviction = pytest.mark.parametrize("eviction", EVICTIONS)


def a_prompt(rng: random.Random) -> list[int]:
    """Of a tiny alphabet of blocks, so that prefixes meet often."""
    tokens = [token for _ in range(rng.randrange(1, 6)) for token in [rng.randrange(3)] * 16]
    return tokens[: len(tokens) - rng.randrange(16)]


def an_owner(rng: random.Random) -> tuple[int, Fork | None]:
    """One of two namespaces, or a tenant whose own blocks lie below public ones."""
    return rng.choice([(0, None), (1, None), *((0, Fork(rng.randrange(1, 4), tag)) for tag in (b"a", b"b"))])


@each_eviction
def test_random_operations_under_the_scheduler(seed: int, eviction: str) -> None:
    """10,000 of them. After each one pages, matches, locks, evictions and events are what the plain model says."""
    rng = random.Random(seed)
    cache = CheckedCache(24, eviction)
    driver = Driver(num_pages=24, max_step_tokens=32, max_running=5, new_cache=lambda _: cache)
    open_sequences: list[Sequence] = []
    preempted = 0
    for number in range(10_000):
        action = rng.random()
        if action < 0.25 and len(driver.scheduler.waiting) < 6:
            max_tokens, priority, owner = rng.randrange(1, 30), rng.randrange(2), an_owner(rng)
            open_sequences.append(driver.add(a_prompt(rng), max_tokens, str(number), priority, *owner))
        elif action < 0.3 and open_sequences:
            driver.finish(open_sequences.pop(rng.randrange(len(open_sequences))))
        elif action < 0.33 and driver.scheduler.running:
            driver.scheduler.preempt(rng.choice(driver.scheduler.running))
        elif driver.scheduler.has_work:
            preempted += len(driver.step(check=number % 10 == 0).preempted)
    driver.run()
    driver.check_idle()
    assert cache.num_evicted > 500
    assert preempted > 20


@each_eviction
def test_random_operations_by_themselves(seed: int, eviction: str) -> None:
    """Also chunks that stop within a block, and a reservation that is refused."""
    rng = random.Random(seed)
    cache = CheckedCache(24, eviction)
    live: list[Sequence] = []
    for _ in range(3000):
        if live and (len(live) > 4 or rng.random() < 0.5):
            advance(rng, cache, live)
        else:
            namespace, fork = an_owner(rng)
            sequence = Sequence("s", a_prompt(rng), SamplingParams(max_tokens=100), namespace, fork=fork)
            cache.match(sequence)
            cache.admit(sequence)
            live.append(sequence)
        cache.check_integrity(live)


def advance(rng: random.Random, cache: CheckedCache, live: list[Sequence]) -> None:
    """One of: compute some tokens, add a token, release."""
    sequence = rng.choice(live)
    action = rng.random()
    if action < 0.4 and sequence.num_uncomputed:
        target = sequence.num_computed + rng.randint(1, sequence.num_uncomputed)
        if cache.reserve(sequence, target):
            sequence.num_computed = target
            cache.commit(sequence)
    elif action < 0.6 and sequence.num_uncomputed == 0:
        sequence.append(rng.randrange(3))
    else:
        cache.release(sequence)
        live.remove(sequence)


@each_eviction
def test_a_remembered_match_is_what_a_fresh_one_is(seed: int, eviction: str) -> None:
    """Waiting sequences look again and again while others fill the tree and drive each other out of it."""
    rng = random.Random(seed)
    cache = CacheManager(24, eviction)
    new = partial(Sequence, "s", params=SamplingParams(max_tokens=9))
    owners = [an_owner(rng) for _ in range(20)]
    waiting = [new(prompt=a_prompt(rng), namespace=namespace, fork=fork) for namespace, fork in owners]
    lengths: set[int] = set()
    for _ in range(2000):
        namespace, fork = an_owner(rng)
        passing = new(prompt=a_prompt(rng), namespace=namespace, fork=fork)
        cache.admit(passing)
        assert cache.reserve(passing, len(passing.tokens))
        passing.num_computed = len(passing.tokens)
        cache.commit(passing)
        cache.release(passing)
        for sequence in rng.sample(waiting, 5):
            fresh = new(prompt=sequence.prompt, namespace=sequence.namespace, fork=sequence.fork)
            lengths.add(cache.match(sequence))
            assert cache.match(sequence) == cache.match(fresh)
    assert len(lengths) > 3


@each_eviction
def test_nothing_is_left_of_a_tenant_who_is_gone(eviction: str) -> None:
    """A namespace for each request must not make the tree grow: not when refused, nor aborted, nor evicted."""
    cache = CacheManager(8, eviction)
    for namespace in range(1000):
        sequence = Sequence("s", [1] * 40, SamplingParams(max_tokens=1), namespace)
        assert cache.match(sequence) == 0
        cache.admit(sequence)
        if namespace % 3 == 0:
            assert not cache.reserve(sequence, 1000)
        else:
            assert cache.reserve(sequence, 40)
        if namespace % 3 == 1:
            sequence.num_computed = 40
            cache.commit(sequence)
        cache.release(sequence)
        cache.check_integrity([])
    assert len(cache._tree.roots) <= 4
    assert len(list(cache._tree._eviction.candidates())) <= 64 + 4 * 8


@each_eviction
def test_a_root_in_use_outlives_its_nodes(eviction: str) -> None:
    """A sequence that has begun while its namespace had nodes must find them evicted and still commit."""
    cache = CacheManager(4, eviction)
    first, second = (Sequence("s", [n] * 32, SamplingParams(max_tokens=1), namespace=5) for n in (1, 2))
    compute(cache, first)
    cache.release(first)
    cache.admit(second)
    evict_all(cache)
    assert cache.num_evictable == 0
    assert cache.reserve(second, 32)
    second.num_computed = 32
    cache.commit(second)
    cache.check_integrity([second])
    assert cache.match(Sequence("s", [2] * 33, SamplingParams(max_tokens=1), namespace=5)) == 32


def compute(cache: CacheManager, sequence: Sequence) -> None:
    cache.admit(sequence)
    assert cache.reserve(sequence, len(sequence.tokens))
    sequence.num_computed = len(sequence.tokens)
    cache.commit(sequence)


def evict_all(cache: CacheManager) -> None:
    greedy = Sequence("s", [9], SamplingParams(max_tokens=1), namespace=9)
    cache.admit(greedy)
    assert cache.reserve(greedy, cache.num_pages * 16)
    cache.release(greedy)
