"""What our own requests tell about an engine."""

import pytest

from adopt.traffic import Traffic
from replica.cost_model import CostModelFit


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def run(traffic: Traffic, clock: Clock, tokens: int, cached: int, seconds: float) -> None:
    ticket = traffic.begin(tokens, cached, 0)
    clock.now += seconds
    traffic.first_token(ticket)
    traffic.delivered(ticket, cached)
    traffic.end(ticket)


def test_prefill_is_fitted_by_uncached_tokens() -> None:
    clock, fit = Clock(), CostModelFit(4096)
    traffic = Traffic(fit, clock)
    for tokens, cached in [(100, 0), (1000, 0), (1000, 900), (2000, 1000), (3000, 0), (500, 16)] * 20:
        uncached = tokens - cached
        run(traffic, clock, tokens, cached, 0.02 + 2e-4 * uncached + 1e-7 * uncached * (tokens - uncached / 2))
    assert fit.model.prefill_s(2500, 500) == pytest.approx(0.02 + 2e-4 * 2000 + 1e-7 * 2000 * 1500, rel=0.05)


def test_requests_that_shared_the_engine_say_nothing() -> None:
    clock, fit = Clock(), CostModelFit(4096)
    traffic = Traffic(fit, clock)
    before = fit.model
    first = traffic.begin(100, 0, 0)
    run(traffic, clock, 100, 0, 9.0)
    clock.now += 9
    traffic.first_token(first)
    traffic.delivered(first, 0)
    traffic.end(first)
    queued = traffic.begin(100, 0, others_waiting=1)
    traffic.first_token(queued)
    traffic.delivered(queued, 0)
    assert fit.model == before


def test_tokens_are_pending_until_the_first_token() -> None:
    idle: list[int] = []
    traffic = Traffic(CostModelFit(4096), Clock(), lambda: idle.append(1))
    one, two = traffic.begin(100, 32, 0), traffic.begin(50, 0, 0)
    assert (traffic.pending_tokens, traffic.prefilling, traffic.requests) == (118, 2, 2)
    traffic.first_token(one)
    assert (traffic.pending_tokens, traffic.prefilling, traffic.requests) == (50, 1, 2)
    traffic.end(two)
    traffic.end(two)
    assert (traffic.pending_tokens, traffic.requests, idle) == (0, 1, [])
    traffic.end(one)
    assert idle == [1]
