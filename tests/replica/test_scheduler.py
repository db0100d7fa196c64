import random
from collections.abc import Callable

import pytest

from replica.config import Order
from replica.sequence import SamplingParams, Sequence, SequenceState
from tests.replica.driver import Driver, expected_answer


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
    driver.finish(driver.scheduler.running[0])
    # The leader has gone half-way: the follower must not wait for it any more.
    batch = driver.step()
    assert [(chunk.sequence.id, chunk.start) for chunk in batch.chunks] == [("follower", 32)]


def test_followers_cost_their_leader_nothing() -> None:
    driver = Driver()
    for _ in range(3):
        driver.add(list(range(50)), max_tokens=1)
    batch = driver.step()
    assert [chunk.count for chunk in batch.chunks] == [50]
    assert batch.num_deferred == 2


def test_a_block_is_claimed_until_its_first_claimant_has_it() -> None:
    """A prompt that ends with a block computes it without waiting for it, and may go before it is done."""
    driver = Driver(max_step_tokens=10)
    driver.add(list(range(32)), name="leader")
    driver.step()
    driver.step()
    second = driver.add(list(range(32)), name="second", priority=-1)
    assert driver.step().chunks[0].sequence is second
    driver.finish(second)
    driver.add(list(range(40)), name="third", priority=-1)
    assert [chunk.sequence.id for chunk in driver.step().chunks] == ["leader"]


def test_a_collision_of_hashes_only_delays() -> None:
    driver = Driver(max_step_tokens=16)
    leader = driver.add([1] * 50, max_tokens=30)
    driver.step()
    other = driver.add([2] * 50, max_tokens=5)
    other.hashes = list(leader.hashes)
    driver.run()
    assert other.tokens[50:] == expected_answer([2] * 50, 0, 5)
    driver.check_idle()


def test_pages_that_come_free_go_to_the_first_in_line() -> None:
    driver = Driver(num_pages=10, order=Order.FCFS)
    running = [driver.add([n] * 40, max_tokens=9) for n in range(2)]
    driver.step()
    driver.step()
    long = driver.add([7] * 120)
    for number in range(5):
        driver.add([10 + number] * 10, max_tokens=1)
    while any(sequence.state is SequenceState.RUNNING for sequence in running):
        assert {chunk.sequence for chunk in driver.step().chunks} <= set(running)
    assert driver.step().chunks[0].sequence is long


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
    driver.finish(sequence)
    driver.finish(sequence)
    assert not driver.scheduler.has_work


def test_pending_tokens_count_a_shared_block_once() -> None:
    driver = Driver()
    driver.add([*range(64), 1])
    assert driver.scheduler.pending_tokens() == 65
    driver.add([*range(64), 2])
    assert driver.scheduler.pending_tokens() == 66
    driver.run()
    assert driver.scheduler.pending_tokens() == 0


def waiting(driver: Driver) -> Sequence:
    return driver.add([1] * 40)


def deferred(driver: Driver) -> Sequence:
    driver.add([1] * 50)
    follower = driver.add([1] * 50)
    assert driver.step().num_deferred == 1
    return follower


def between_chunks(driver: Driver) -> Sequence:
    sequence = driver.add([1] * 150)
    driver.step()
    assert 0 < sequence.num_computed < 150
    return sequence


def first_token_pending(driver: Driver) -> Sequence:
    """All but the last token is in the cache, and a step has been scheduled."""
    driver.add([1] * 33, max_tokens=1)
    driver.run()
    sequence = driver.add([1] * 33)
    driver.scheduler.commit(driver.scheduler.schedule())
    assert sequence.num_output == 0 and sequence.num_uncomputed == 0
    return sequence


def decoding(driver: Driver) -> Sequence:
    sequence = driver.add([1] * 33, max_tokens=40)
    for _ in range(20):
        driver.step()
    assert sequence.is_decoding
    return sequence


def preempted(driver: Driver) -> Sequence:
    sequence = decoding(driver)
    driver.scheduler.preempt(sequence)
    return sequence


def finished(driver: Driver) -> Sequence:
    """The abort comes in the step that ends it anyway."""
    sequence = driver.add([1] * 33, max_tokens=1)
    driver.step()
    assert sequence.state is SequenceState.FINISHED
    return sequence


def unknown(driver: Driver) -> Sequence:
    return Sequence("unknown", [1], SamplingParams(max_tokens=1), namespace=0)


PHASES = [waiting, deferred, between_chunks, first_token_pending, decoding, preempted, finished, unknown]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("others", [False, True])
def test_abort_in_each_phase_gives_everything_back(phase: Callable[[Driver], Sequence], others: bool) -> None:
    driver = Driver()
    beside = [driver.add([n] * 50, max_tokens=60) for n in (7, 8, 9)] if others else []
    while not all(other.is_decoding for other in beside):
        driver.step()
    sequence = phase(driver)
    for _ in range(2):
        driver.finish(sequence)
        driver.check()
        assert sequence.state is SequenceState.FINISHED
        assert sequence.pages == [] and sequence.node is None and sequence.claimed == []
    driver.run()
    driver.check_idle()
    for other in beside:
        assert other.tokens[50:] == expected_answer(other.prompt, 0, 60)


@pytest.mark.parametrize("every", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("order", list(Order))
def test_forced_preemption_changes_no_answer(every: int, order: Order, seed: int) -> None:
    rng = random.Random(seed)
    driver = Driver(num_pages=40, max_step_tokens=32, order=order)
    prompts = [[rng.randrange(2)] * rng.randrange(1, 100) for _ in range(12)]
    sequences = [driver.add(prompt, max_tokens=20) for prompt in prompts]
    for number in range(1, 10_000):
        if not driver.scheduler.has_work:
            break
        driver.step()
        if number % every == 0 and driver.scheduler.running:
            driver.scheduler.preempt(rng.choice(driver.scheduler.running))
            driver.check()
    for sequence, prompt in zip(sequences, prompts, strict=True):
        assert sequence.tokens[len(prompt) :] == expected_answer(prompt, 0, 20)
    driver.check_idle()


@pytest.mark.parametrize("max_step_tokens", [1, 15, 16, 17, 64, 10_000])
def test_random_load_with_aborts_in_every_phase(seed: int, max_step_tokens: int) -> None:
    """Under pressure for pages; integrity is checked after each step, and at the end nothing is left."""
    rng = random.Random(seed)
    driver = Driver(num_pages=20, max_step_tokens=max_step_tokens, max_running=5)
    open_sequences: list[Sequence] = []
    for number in range(800):
        if rng.random() < 0.3 and len(driver.scheduler.waiting) < 10:
            prompt = [rng.randrange(2)] * rng.randrange(1, 120)
            max_tokens, priority = rng.randrange(1, 100), rng.randrange(-1, 2)
            open_sequences.append(driver.add(prompt, max_tokens, str(number), priority))
        if open_sequences and rng.random() < 0.1:
            driver.finish(open_sequences.pop(rng.randrange(len(open_sequences))))
            driver.check()
        if driver.scheduler.has_work:
            driver.step()
    driver.run()
    driver.check_idle()


def test_a_prompt_that_lacks_one_token_is_computed_once_though_another_waits_for_it() -> None:
    driver = Driver(max_step_tokens=15)
    prompt = list(range(16))
    leader, follower = driver.add(prompt), driver.add([*prompt, 90, 91, 92])
    driver.step()
    assert (leader.num_computed, follower.num_computed) == (15, 0)
    driver.step()
    assert (leader.num_output, follower.num_computed) == (1, 0)
    driver.step()
    assert follower.num_cached == 16
