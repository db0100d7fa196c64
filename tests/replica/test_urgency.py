"""Priorities, orders, and the bound on everybody's wait, over the real scheduler and cache."""

import random

import pytest

from replica.config import Order
from replica.sequence import SamplingParams, Sequence, SequenceState
from replica.urgency import MAX_PREEMPTIONS, PATIENCE_STEPS, PRIORITY_DISCOUNT, Urgency
from tests.replica.driver import Driver, expected_answer

each_order = pytest.mark.parametrize("order", list(Order))
STEP = 16


def prefill_order(driver: Driver) -> list[str]:
    order: list[str] = []
    while driver.scheduler.has_work:
        order += [chunk.sequence.id for chunk in driver.step().chunks if chunk.sequence.id not in order]
    return order


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (Order.SHORTEST, ["short", "cached", "long"]),
        (Order.LPM, ["cached", "long", "short"]),
        (Order.FCFS, ["long", "short", "cached"]),
    ],
)
def test_orders(order: Order, expected: list[str]) -> None:
    driver = Driver(max_step_tokens=STEP, order=order)
    driver.add(list(range(64)), max_tokens=1, name="warm")
    driver.run()
    driver.add(list(range(100, 180)), max_tokens=1, name="long")
    driver.add([200] * 16, max_tokens=1, name="short")
    driver.add([*range(64), *range(300, 320)], max_tokens=1, name="cached")
    assert prefill_order(driver) == expected


@each_order
def test_priority_comes_before_the_order(order: Order) -> None:
    driver = Driver(max_step_tokens=STEP, order=order)
    for number, priority in enumerate([0, 2**70, 3, -(2**70), -1]):
        driver.add([number] * (16 + number), max_tokens=1, name=str(priority), priority=priority)
    assert prefill_order(driver) == [str(priority) for priority in (-(2**70), -1, 0, 3, 2**70)]


@each_order
def test_a_high_priority_is_seen_behind_a_long_queue(order: Order) -> None:
    driver = Driver(max_step_tokens=STEP, order=order)
    for number in range(200):
        driver.add([number] * 16, name=str(number), priority=1)
    driver.add([999] * 16, name="urgent")
    assert [chunk.sequence.id for chunk in driver.step().chunks] == ["urgent"]


def start(driver: Driver, priorities: list[int], length: int = 30, max_tokens: int = 200) -> list[Sequence]:
    sequences = []
    for number, priority in enumerate(priorities):
        sequences.append(driver.add([number] * length, max_tokens, f"{number}", priority))
        while sequences[-1].num_output == 0:
            driver.step()
    return sequences


def test_a_place_is_taken_from_the_newest_of_the_lowest_priority() -> None:
    driver = Driver(max_running=4)
    running = start(driver, [1, 2, 2, 0])
    urgent = driver.add([99] * 20, priority=1)
    assert driver.step().preempted == (running[2],)
    assert urgent.num_output == 1
    driver.run()
    assert [sequence.tokens[30:] for sequence in running] == [expected_answer([n] * 30, 0, 200) for n in range(4)]


def test_no_place_is_taken_from_an_equal() -> None:
    driver = Driver(max_running=2)
    start(driver, [0, 0], max_tokens=20)
    driver.add([99] * 20)
    while driver.scheduler.has_work:
        assert driver.step().preempted == ()


def test_pages_are_taken_from_lower_priorities_only_where_they_are_enough() -> None:
    driver = Driver(num_pages=12)
    start(driver, [0, 1], length=60, max_tokens=4)
    low = start(driver, [1], length=40, max_tokens=30)
    too_long = driver.add([99] * 170, max_tokens=1)
    driver.step()
    assert too_long.state is SequenceState.WAITING
    assert low[0].num_preemptions == 0
    driver.finish(too_long)
    fits = driver.add([98] * 140, max_tokens=1)
    batch = driver.step()
    assert low[0] in batch.preempted
    assert fits.num_computed > 0


def test_nobody_is_displaced_more_than_three_times() -> None:
    driver = Driver(max_running=1, max_step_tokens=STEP)
    low = driver.add([1] * 40, max_tokens=10, priority=9)
    for number in range(200):
        if driver.scheduler.waiting == [] or low.state is SequenceState.RUNNING:
            driver.add([2, number] * 8, max_tokens=3, priority=-number)
        driver.step()
        if low.state is SequenceState.FINISHED:
            break
    assert low.state is SequenceState.FINISHED
    assert low.num_preemptions == MAX_PREEMPTIONS
    assert low.tokens[40:] == expected_answer(low.prompt, 0, 10)


def test_a_deferred_sequence_lends_its_place_to_the_one_it_waits_for() -> None:
    driver = Driver(max_step_tokens=STEP, num_pages=400)
    leader = driver.add(list(range(100)), max_tokens=1, priority=9)
    driver.step()
    driver.add(list(range(200, 400)), max_tokens=1, priority=5)
    urgent = driver.add([*range(100), 1], max_tokens=1, priority=0)
    steps = 0
    while urgent.state is not SequenceState.FINISHED:
        assert driver.step().chunks[0].sequence.priority in (9, 0)
        steps += 1
    assert steps == 6
    assert urgent.num_cached == 96
    assert leader.num_computed == 96


@each_order
@pytest.mark.parametrize("older", [0, 3])
def test_the_bound_on_the_wait_behind_higher_priorities(order: Order, older: int, seed: int) -> None:
    """They arrive faster than they can be served, for ever."""
    rng = random.Random(seed)
    driver = Driver(max_step_tokens=STEP, num_pages=400, order=order)
    for number in range(older):
        driver.add([1000 + number] * 40, max_tokens=1, priority=7)
    low = driver.add([2000] * 40, max_tokens=1, priority=rng.choice([5, 7]))
    passed, longest, number = 0, 40, 0
    full_steps = PATIENCE_STEPS * PRIORITY_DISCOUNT * STEP
    while low.state is not SequenceState.FINISHED:
        # More than are compared in a step.
        while len(driver.scheduler.waiting) < 80:
            number += 1
            driver.add([number, 1] * rng.randrange(1, longest // 2), max_tokens=1, priority=rng.randrange(-9, 3))
        passed += sum(chunk.count for chunk in driver.step().chunks if chunk.sequence.priority < 5)
        assert passed <= (older + 1) * (full_steps + STEP + longest) + STEP + longest
    assert passed > full_steps // 2


@each_order
def test_the_bound_on_the_wait_behind_equals(order: Order, seed: int) -> None:
    """Shorter prompts, better cached ones, for ever; those of lower priority count as well."""
    rng = random.Random(seed)
    driver = Driver(max_step_tokens=STEP, num_pages=400, order=order)
    driver.add([1] * 30, max_tokens=1)
    driver.run()
    older = [driver.add([2000 + number] * 100, max_tokens=1) for number in range(4)]
    passed = number = 0
    while any(sequence.state is not SequenceState.FINISHED for sequence in older):
        while sum(sequence.priority == 0 for sequence in driver.scheduler.waiting) < 20:
            number += 1
            driver.add([1] * 16 + [number] * rng.randrange(1, 10), max_tokens=1, priority=rng.randrange(2))
        passed += sum(chunk.count for chunk in driver.step().chunks if chunk.sequence not in older)
        assert passed <= PATIENCE_STEPS * STEP + 2 * (STEP + 100)
    assert order is not Order.SHORTEST or passed > PATIENCE_STEPS * STEP // 2


def test_whom_an_admission_costs_patience() -> None:
    urgency = Urgency(Order.SHORTEST, max_step_tokens=STEP)
    sequences = [Sequence(str(n), [n] * 80, SamplingParams(max_tokens=1), 0) for n in range(6)]
    for arrival, (sequence, priority) in enumerate(zip(sequences, [0, 1, 2, 2, 1, 0], strict=True), 1):
        sequence.arrival, sequence.priority = arrival, priority
    assert not urgency.charge(sequences[4], sequences)
    # Higher and equal: in full. Lower: the oldest, an eighth. Itself and what came later: nothing.
    assert [sequence.overtaken_tokens for sequence in sequences] == [80, 80, 10, 0, 0, 0]
    assert urgency.charge(sequences[4], sequences)
    assert [urgency.is_due(sequence) for sequence in sequences] == [True, True, False, False, False, False]


def test_decodes_are_never_preempted_for_lower_priorities(seed: int) -> None:
    """But for those that are due by their preemptions, which count as of the highest."""
    rng = random.Random(seed)
    driver = Driver(num_pages=24, max_step_tokens=32, max_running=6)
    preempted = 0
    for _ in range(3000):
        if len(driver.scheduler.waiting) < 4:
            driver.add([rng.randrange(3)] * rng.randrange(1, 80), rng.randrange(1, 60), priority=rng.randrange(4))
        batch = driver.step()
        preempted += len(batch.preempted)
        for victim in batch.preempted:
            for sequence in driver.scheduler.running:
                assert driver.scheduler._urgency.is_due(sequence) or sequence.priority <= victim.priority
    assert preempted > 50
    driver.run()
    driver.check_idle()
