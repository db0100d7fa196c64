"""Requests and aborts in virtual time, RYOKAN_SOAK_REQUESTS of them: a step is a tick. At the end nothing of anybody is
left."""

import gc
import os
import random

import pytest

from replica.cache.eviction.registry import EVICTIONS
from replica.cache.manager import CacheManager
from replica.sequence import Sequence, SequenceState
from tests.replica.driver import Driver, expected_answer

REQUESTS = int(os.environ.get("RYOKAN_SOAK_REQUESTS", "25000"))
NUM_PAGES = 64


def a_request(rng: random.Random, number: int) -> tuple[list[int], int, int]:
    """Prompt, max_tokens and namespace: bursts of shared prefixes, a few tenants, and many that come only once."""
    shape = rng.random()
    shared = [rng.randrange(4)] * (16 * rng.randrange(1, 4)) if shape < 0.7 else []
    own = [rng.randrange(1000) for _ in range(rng.randrange(1, 20) if shape < 0.97 else rng.randrange(100, 500))]
    namespace = number if shape > 0.9 else rng.randrange(3)
    return shared + own, 1 + int(rng.expovariate(0.2)), namespace


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_nothing_is_left_of_tens_of_thousands_of_requests(seed: int, eviction: str) -> None:
    rng = random.Random(seed)
    cache = CacheManager(NUM_PAGES, eviction)
    driver = Driver(NUM_PAGES, max_step_tokens=128, max_running=16, new_cache=lambda _: cache)
    scheduler = driver.scheduler
    live: list[Sequence] = []
    replayed: set[int] = set()
    number = steps = preempted = evicted = answered = 0
    while number < REQUESTS or scheduler.has_work:
        while number < REQUESTS and len(scheduler.waiting) < 14:
            prompt, max_tokens, namespace = a_request(rng, number)
            live.append(driver.add(prompt, max_tokens, f"soak-{number}", rng.randrange(3), namespace))
            number += 1
        if rng.random() < 0.15:
            driver.finish(rng.choice(live))
        preempted += len(driver.step(check=steps % 500 == 0).preempted)
        events = cache.take_events()
        replayed = (replayed - set(events.removed)) | set(events.added)
        steps += 1
        evicted += len(events.removed)
        assert cache.num_free + cache.num_evictable <= NUM_PAGES
        if steps % 50 == 0:
            answered += sum(is_answered(sequence) for sequence in live if sequence.state is SequenceState.FINISHED)
            live = [sequence for sequence in live if sequence.state is not SequenceState.FINISHED]
            assert replayed == cache.hashes()
            assert len(cache._tree.roots) <= NUM_PAGES + 16
            assert len(list(cache._tree._eviction.candidates())) <= 64 + 4 * NUM_PAGES
    driver.check_idle()
    assert answered > REQUESTS * 0.7
    assert preempted > REQUESTS // 100 and evicted > REQUESTS // 10
    live.clear()
    assert sequences_alive() == []


def is_answered(sequence: Sequence) -> bool:
    """Else it was aborted; what it has said is right all the same."""
    answer = sequence.tokens[len(sequence.prompt) :]
    assert answer == expected_answer(sequence.prompt, sequence.namespace, len(answer))
    return len(answer) == sequence.params.max_tokens


def sequences_alive() -> list[str]:
    gc.collect()
    return [found.id for found in gc.get_objects() if type(found) is Sequence and found.id.startswith("soak-")]
