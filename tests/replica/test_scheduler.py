import random

import pytest

from replica.cache.manager import CacheManager
from replica.scheduler import Scheduler, SchedulerLimits
from replica.sequence import Batch, SamplingParams, Sequence, SequenceState


class Driver:
    """Runs the scheduler without a model: every sampled token is 7."""

    def __init__(self, num_pages: int = 64, max_step_tokens: int = 64, max_running: int = 8) -> None:
        self.cache = CacheManager(num_pages)
        self.scheduler = Scheduler(self.cache, SchedulerLimits(max_step_tokens, max_running))
        self.max_step_tokens = max_step_tokens

    def add(self, prompt: list[int], max_tokens: int = 4, name: str = "s") -> Sequence:
        sequence = Sequence(name, prompt, SamplingParams(max_tokens), namespace=0)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> Batch:
        batch = self.scheduler.schedule()
        assert batch.num_tokens <= self.max_step_tokens * 17 // 16
        sampled = [chunk.sequence for chunk in batch.chunks if chunk.samples]
        self.scheduler.commit(batch)
        for sequence in sampled:
            sequence.append(7)
            if sequence.finish_reason():
                self.scheduler.finish(sequence)
        self.check()
        return batch

    def check(self) -> None:
        self.cache.check_integrity([*self.scheduler.running, *self.scheduler.waiting])

    def run(self, limit: int = 10_000) -> int:
        steps = 0
        while self.scheduler.has_work:
            self.step()
            steps += 1
            assert steps < limit
        return steps


def test_a_long_prompt_is_prefilled_in_chunks() -> None:
    driver = Driver()
    driver.add(list(range(150)), max_tokens=1)
    assert [driver.step().num_tokens for _ in range(3)] == [64, 64, 22]
    assert not driver.scheduler.has_work


@pytest.mark.parametrize(("length", "chunks"), [(64, [64]), (68, [68]), (69, [64, 5]), (132, [64, 68])])
def test_a_short_tail_gets_no_step_of_its_own(length: int, chunks: list[int]) -> None:
    driver = Driver()
    driver.add(list(range(length)), max_tokens=1)
    assert [driver.step().num_tokens for _ in chunks] == chunks
    assert not driver.scheduler.has_work


def test_decodes_go_on_beside_a_prefill() -> None:
    driver = Driver()
    short = driver.add([1, 2, 3], max_tokens=10)
    driver.step()
    driver.add(list(range(100, 250)))
    batch = driver.step()
    assert [(chunk.sequence is short, chunk.count) for chunk in batch.chunks] == [(True, 1), (False, 63)]


def test_equal_prompts_are_prefilled_once() -> None:
    """50 agents with one system prompt: one computes it, the others wait and take it from the cache."""
    driver = Driver(num_pages=400, max_step_tokens=64, max_running=64)
    shared = list(range(208))
    agents = [driver.add([*shared, 1000 + agent, *range(20)], name=str(agent)) for agent in range(50)]
    computed = 0
    while any(agent.num_output == 0 for agent in agents):
        computed += sum(chunk.count for chunk in driver.step().chunks if not chunk.sequence.num_output > 1)
    assert sum(agent.num_cached for agent in agents) == 49 * 208
    assert computed <= 208 + 50 * (21 + 5)


def test_a_deferred_sequence_lets_others_pass() -> None:
    driver = Driver(max_step_tokens=32)
    driver.add(list(range(100)), name="leader")
    driver.step()
    driver.add(list(range(100)), name="follower")
    driver.scheduler.finish(driver.scheduler.running[0])
    # The leader has gone half-way: the follower must not wait for it any more.
    batch = driver.step()
    assert [(chunk.sequence.id, chunk.start) for chunk in batch.chunks] == [("follower", 32)]


def test_the_newest_is_preempted_and_nothing_is_lost() -> None:
    driver = Driver(num_pages=6)
    old = driver.add([1] * 33, max_tokens=40, name="old")
    new = driver.add([2] * 33, max_tokens=40, name="new")
    preempted = []
    while driver.scheduler.has_work:
        preempted += [sequence.id for sequence in driver.step().preempted]
    assert preempted
    assert set(preempted) == {"new"}
    assert old.num_output == new.num_output == 40
    assert old.num_cached == new.num_cached == 0


def admission_order(driver: Driver) -> list[str]:
    order: list[str] = []
    while driver.scheduler.has_work:
        order += [chunk.sequence.id for chunk in driver.step().chunks if chunk.sequence.id not in order]
    return order


def test_the_fewest_uncached_tokens_go_first() -> None:
    driver = Driver(max_step_tokens=16)
    shared = list(range(64))
    driver.add(shared, max_tokens=1, name="leader")
    driver.add(list(range(100, 180)), max_tokens=1, name="long")
    driver.add([*shared, 5], max_tokens=1, name="follower")
    driver.step()
    assert admission_order(driver) == ["leader", "follower", "long"]


def test_a_short_prompt_passes_a_long_one_under_way() -> None:
    driver = Driver(max_step_tokens=16)
    long = driver.add(list(range(100)), max_tokens=1)
    driver.step()
    short = driver.add([7] * 12, max_tokens=1)
    batch = driver.step()
    assert [(chunk.sequence is short, chunk.count) for chunk in batch.chunks] == [(True, 12), (False, 4)]
    assert short.state is SequenceState.FINISHED
    assert long.num_computed == 20


def test_a_prompt_under_way_is_not_overtaken_for_ever() -> None:
    driver = Driver(max_step_tokens=16, num_pages=400)
    long = driver.add(list(range(1000, 1100)), max_tokens=1)
    driver.step()
    steps = 0
    while long.state is not SequenceState.FINISHED:
        for n in range(2):
            driver.add([steps, n] * 8, max_tokens=1, name=f"short-{steps}-{n}")
        driver.step()
        steps += 1
        assert steps < 50
    assert steps > 8


def test_equals_are_served_in_order_of_arrival() -> None:
    driver = Driver(num_pages=4)
    for name in ("first", "second", "third"):
        driver.add([ord(name[0])] * 40, max_tokens=1, name=name)
    assert admission_order(driver) == ["first", "second", "third"]


def test_a_long_prompt_is_not_overtaken_for_ever() -> None:
    driver = Driver(max_step_tokens=16, num_pages=400)
    driver.add(list(range(1000, 1100)), max_tokens=1, name="long")
    steps = 0
    while not any(sequence.id == "long" for sequence in driver.scheduler.running):
        for _ in range(2):
            driver.add([steps] * 12, max_tokens=1, name=f"short-{steps}")
        driver.step()
        steps += 1
        assert steps < 50
    assert steps > 5


@pytest.mark.parametrize("max_tokens", [1, 2])
def test_short_answers(max_tokens: int) -> None:
    driver = Driver()
    sequence = driver.add([1] * 16, max_tokens=max_tokens)
    assert driver.run() == max_tokens
    assert sequence.state is SequenceState.FINISHED


def test_finish_is_harmless_when_repeated() -> None:
    driver = Driver()
    sequence = driver.add([1, 2])
    driver.scheduler.finish(sequence)
    driver.scheduler.finish(sequence)
    assert not driver.scheduler.has_work


def test_pending_tokens_count_a_shared_block_once() -> None:
    driver = Driver()
    driver.add([*range(64), 1])
    assert driver.scheduler.pending_tokens() == 65
    driver.add([*range(64), 2])
    assert driver.scheduler.pending_tokens() == 66
    driver.run()
    assert driver.scheduler.pending_tokens() == 0


def test_random_load_with_aborts_in_every_phase(seed: int) -> None:
    """Under pressure for pages; integrity is checked after each step, and at the end nothing is left."""
    rng = random.Random(seed)
    driver = Driver(num_pages=20, max_step_tokens=32, max_running=5)
    open_sequences: list[Sequence] = []
    for number in range(3000):
        if rng.random() < 0.3 and len(driver.scheduler.waiting) < 10:
            length = rng.randrange(1, 120)
            prompt = [rng.randrange(2)] * length
            open_sequences.append(driver.add(prompt, max_tokens=rng.randrange(1, 100), name=str(number)))
        if open_sequences and rng.random() < 0.1:
            driver.scheduler.finish(open_sequences.pop(rng.randrange(len(open_sequences))))
            driver.check()
        if driver.scheduler.has_work:
            driver.step()
    driver.run()
    assert driver.scheduler._claims == {}
    assert driver.cache.num_free + driver.cache.num_evictable == 20
