from random import Random

import pytest

from gateway.backlog import COVERED_TTL_S, FLIGHT_S, INTENT_TTL_S, INTENTS_MAX, Backlog
from gateway.routing.candidates import size_class

RATE = 100.0
"""Tokens per second."""


def of(tokens: int, at: float) -> Backlog:
    backlog = Backlog()
    backlog.report(tokens, at, RATE)
    return backlog


def intend(backlog: Backlog, number: int, tokens: int, at: float) -> None:
    backlog.sent(("g", number), tokens, at, RATE, is_own=False)


def lease(backlog: Backlog, name: str, tokens: int, at: float) -> None:
    backlog.sent(name, tokens, at, RATE, is_own=True)


def test_the_level_sinks_at_the_rate_and_never_below_nothing() -> None:
    backlog = of(100, 1.0)
    assert [backlog.tokens(now, RATE) for now in (1.0, 1.5, 2.0, 99.0)] == [100, 50, 0, 0]


def test_a_report_is_the_truth_of_its_moment() -> None:
    backlog = of(100, 1.0)
    intend(backlog, 1, 800, 1.2)
    backlog.report(850, 1.5, RATE)
    assert backlog.tokens(1.5, RATE) == 850
    backlog.report(20, 1.6, RATE)
    assert backlog.tokens(1.6, RATE) == 20


def test_what_was_sent_since_a_report_is_added_to_what_it_has_sunk_to() -> None:
    backlog = of(100, 1.0)
    intend(backlog, 1, 800, 1.5)
    assert backlog.tokens(1.5, RATE) == 850
    lease(backlog, "own", 30, 2.0)
    assert backlog.tokens(2.0, RATE) == 830
    assert (backlog.requests, backlog.known) == (2, 830)


def test_what_a_late_report_does_not_know_of_is_added_again() -> None:
    backlog = of(0, 1.0)
    lease(backlog, "own", 800, 2.0)
    backlog.report(60, 1.5, RATE)
    assert backlog.tokens(2.0, RATE) == pytest.approx(10 + 800)


def test_what_was_sent_just_before_a_report_is_not_in_it() -> None:
    backlog = of(0, 1.0)
    lease(backlog, "own", 800, 2.0)
    backlog.report(0, 2.0 + FLIGHT_S / 2, RATE)
    assert backlog.tokens(2.0 + FLIGHT_S / 2, RATE) == pytest.approx(800)
    backlog.report(0, 2.0 + 2 * FLIGHT_S, RATE)
    assert backlog.tokens(2.0 + 2 * FLIGHT_S, RATE) == 1


def test_a_request_that_is_not_known_to_be_done_counts_for_a_token_at_least() -> None:
    backlog = of(0, 1.0)
    lease(backlog, "own", 800, 1.0)
    intend(backlog, 1, 800, 1.0)
    assert backlog.tokens(99.0, RATE) == 2
    backlog.done("own")
    assert backlog.tokens(99.0, RATE) == 1


def test_an_intent_from_before_the_report_is_in_it() -> None:
    backlog = of(800, 1.0)
    intend(backlog, 1, 800, 0.9)
    assert backlog.tokens(1.0, RATE) == 800


def test_it_is_never_more_than_what_is_not_known_to_be_done() -> None:
    backlog = of(0, 1.0)
    intend(backlog, 1, 800, 1.1)
    intend(backlog, 2, 200, 1.1)
    backlog.report(1300, 1.5, RATE)
    assert backlog.unknown == 300
    backlog.done(("g", 1))
    assert backlog.tokens(1.5, RATE) == 500
    backlog.done(("g", 2))
    assert backlog.tokens(1.5, RATE) == 300


def test_what_is_done_counts_no_longer() -> None:
    backlog = of(0, 1.0)
    intend(backlog, 1, 800, 1.1)
    for number in (1, 1, 2):
        backlog.done(("g", number))
        assert backlog.tokens(1.1, RATE) == 0
    assert (backlog.requests, backlog.known) == (0, 0)


def test_what_others_have_sent_expires_and_what_is_ours_does_not() -> None:
    backlog = of(0, 1.0)
    intend(backlog, 1, 800, 1.1)
    lease(backlog, "own", 50, 1.1)
    assert not backlog.expire(1.0 + INTENT_TTL_S)
    assert backlog.expire(1.2 + INTENT_TTL_S)
    assert (backlog.requests, backlog.known) == (1, 50)
    assert not backlog.expire(1.2 + 100 * COVERED_TTL_S)


def test_what_a_report_covers_expires_later() -> None:
    backlog = of(0, 1.0)
    intend(backlog, 1, 800, 1.1)
    backlog.report(800, 2.0, RATE)
    assert not backlog.expire(1.0 + COVERED_TTL_S)
    assert backlog.expire(1.2 + COVERED_TTL_S)
    assert backlog.requests == 0


def test_where_nothing_waits_nobody_s_request_does() -> None:
    backlog = of(0, 1.0)
    intend(backlog, 1, 800, 1.1)
    backlog.report(800, 2.0, RATE)
    intend(backlog, 2, 70, 3.0)
    lease(backlog, "own", 50, 1.2)
    backlog.report(0, 2.5, RATE)
    assert (backlog.requests, backlog.known) == (2, 120)
    intend(backlog, 3, 60, 1.3)
    assert (backlog.requests, backlog.known) == (2, 120)


def test_who_hears_no_more_forgets_what_no_report_covers() -> None:
    backlog = of(0, 1.0)
    intend(backlog, 1, 800, 1.1)
    backlog.report(800, 2.0, RATE)
    intend(backlog, 2, 70, 2.1)
    lease(backlog, "own", 50, 2.1)
    backlog.forget_new()
    assert (backlog.requests, backlog.known) == (2, 850)


def test_its_make_up_by_size_is_known() -> None:
    backlog = of(0, 1.0)
    intend(backlog, 1, 10, 1.1)
    intend(backlog, 2, 3000, 1.1)
    lease(backlog, "own", 2100, 1.1)
    small, large = size_class(10), size_class(3000)
    assert (backlog.size_counts[small], backlog.size_counts[large]) == (1, 2)
    assert (backlog.size_tokens[small], backlog.size_tokens[large]) == (10, 5100)
    backlog.done("own")
    backlog.done(("g", 1))
    assert (backlog.size_counts.sum(), backlog.size_tokens.sum()) == (1, 3000)


def test_a_repeated_intent_counts_once_and_however_many_come_few_are_kept() -> None:
    backlog = of(0, 1.0)
    for _ in range(3):
        intend(backlog, 1, 10, 1.1)
    assert backlog.known == 10
    for number in range(2 * INTENTS_MAX):
        intend(backlog, number, 10, 1.1)
    assert backlog.known == 10 * INTENTS_MAX
    lease(backlog, "own", 10, 1.1)
    assert backlog.known == 10 * (INTENTS_MAX + 1)


def test_whatever_comes_in_whatever_order_the_count_is_sound(seed: int) -> None:
    rng, backlog, own, now = Random(seed), Backlog(), set[int](), 0.0
    for _ in range(3000):
        now += rng.random() / 20
        number = rng.randrange(40)
        match rng.randrange(6):
            case 0:
                backlog.report(rng.choice([0, rng.randrange(5000)]), now - rng.random() / 4, RATE)
            case 1 | 2:
                intend(backlog, number, rng.randrange(1000), now - rng.random() / 4)
            case 3:
                lease(backlog, f"own {number}", rng.randrange(1000), now)
                own.add(number)
            case 4:
                backlog.done(rng.choice([("g", number), f"own {number}"]))
            case _:
                backlog.expire(now)
        assert 0 <= backlog.tokens(now, RATE) <= backlog.bound
        assert backlog.size_counts.sum() == backlog.requests
        assert backlog.size_tokens.sum() == backlog.known >= 0
    for number in own:
        backlog.done(f"own {number}")
    now += 2 * COVERED_TTL_S
    backlog.expire(now)
    backlog.report(17, now, RATE)
    assert (backlog.tokens(now, RATE), backlog.requests) == (17, 0)


class Request:
    def __init__(self, number: int, tokens: int) -> None:
        self.number = number
        self.tokens = tokens
        self.left = float(tokens)


def mean_error(rng: Random, delay_s: float | None, tell_done: bool, seconds: float = 60.0) -> float:
    """Of what a gateway believes of a replica that serves others first come first served, against the truth, as a
    share of the truth's mean. `delay_s` of what others tell; None where they tell nothing."""
    step_s, speed = 0.002, 20_000.0
    backlog, queue = Backlog(), list[Request]()
    told: list[tuple[float, bool, Request]] = []
    error = truth = now = next_at = report_at = 0.0
    arrivals = 0
    while now < seconds:
        now += step_s
        if now >= next_at:
            queue.append(Request(arrivals, rng.choice([100, 800, 3000])))
            told.append((now, True, queue[-1]))
            arrivals, next_at = arrivals + 1, now + rng.expovariate(12)
        budget = step_s * speed
        while queue and budget > 0:
            computed = min(budget, queue[0].left)
            queue[0].left -= computed
            budget -= computed
            if queue[0].left <= 0:
                told.append((now, False, queue.pop(0)))
        if now >= report_at + 0.5:
            report_at = now
            backlog.report(round(sum(request.left for request in queue)), now, speed)
        while told and delay_s is not None and told[0][0] <= now - delay_s:
            at, is_new, request = told.pop(0)
            if is_new:
                backlog.sent(("g", request.number), request.tokens, at, speed, is_own=False)
            elif tell_done:
                backlog.done(("g", request.number))
        left = sum(request.left for request in queue)
        truth += left
        error += abs(backlog.tokens(now, speed) - left)
    return error / truth


def test_what_is_told_says_more_than_heartbeats_alone(seed: int) -> None:
    heartbeats, routed, all_told = (
        mean_error(Random(seed), delay, done) for delay, done in ((None, False), (0.02, False), (0.02, True))
    )
    print(f"heartbeats alone {heartbeats:.2f}, with intents {routed:.2f}, and their ends {all_told:.2f}")
    assert max(routed, all_told) < 0.5 * heartbeats
