from random import Random

import numpy as np
import pytest

from gateway.routing.base import Decision, RouteRequest, decide
from gateway.routing.candidates import Candidates
from gateway.routing.regret import REGRET_CAUSES, Regret, regret
from gateway.routing.round_robin import RoundRobin
from gateway.routing.survey import survey, wait_with
from gateway.routing.ttft import Ttft
from tests.gateway.fakes import COST, blocks
from tests.gateway.routing.views import View, candidates, view

REQUEST = RouteRequest(1025, blocks(1, 64))


def judged(decision: Decision, fleet: Candidates, delivered: int) -> Regret:
    actual_s = wait_with(REQUEST.tokens, fleet, decision.place, delivered)
    return regret(decision, survey(REQUEST.tokens, fleet, decision.place), actual_s)


def forced(place: int, delivered: int, *views: View) -> Regret:
    """By a policy that knows no seconds."""
    fleet = candidates(*views)
    decision = decide(RoundRobin(), REQUEST, fleet, place, np.zeros(len(views)))
    return judged(decision, fleet, delivered)


def test_the_best_choice_leaves_nothing_to_regret() -> None:
    found = forced(0, 1024, view("a", matched_blocks=64), view("b"))
    assert (found.best, found.causes) == ("a", {})
    assert found.actual_s == found.best_s == found.believed_s == pytest.approx(COST.prefill_s(1025, 1024))


def test_what_a_cache_didn_t_deliver_is_stale() -> None:
    found = forced(0, 0, view("a", matched_blocks=64), view("b", matched_blocks=32))
    assert found.best == "b"
    assert found.causes == {"stale": pytest.approx(COST.prefill_s(1025, 0) - COST.prefill_s(1025, 512))}


def test_a_disappointment_that_was_the_same_everywhere_is_none() -> None:
    assert forced(0, 0, view("a", matched_blocks=64), view("b")).causes == {}


def test_a_policy_that_is_blind_is_to_blame_itself() -> None:
    found = forced(0, 0, view("a"), view("b", matched_blocks=64))
    assert found.causes == {"policy": pytest.approx(COST.prefill_s(1025, 0) - COST.prefill_s(1025, 1024))}


def test_equals_may_be_chosen() -> None:
    assert forced(0, 0, view("a", decoding=3), view("b")).causes.keys() == {"tie"}


def test_others_sake_is_load() -> None:
    full = view("b", matched_blocks=2, free_blocks=0, reuse=0.9)
    fleet = candidates(view("a", matched_blocks=1, free_blocks=999, reuse=0.9), full)
    decision = Ttft().choose(REQUEST, fleet, 0.0)
    found = judged(decision, fleet, 16)
    assert decision.choice == "a"
    assert found.causes.keys() == {"load"}


@pytest.mark.parametrize("seed", range(3))
def test_causes_add_up(seed: int) -> None:
    print("seed", seed)
    rng = Random(seed)
    for _ in range(300):
        views = [
            view(
                f"r{number}",
                queue_tokens=rng.randrange(2000),
                matched_blocks=rng.randrange(65),
                trust=rng.random(),
                free_blocks=rng.randrange(300),
            )
            for number in range(rng.randrange(1, 6))
        ]
        fleet = candidates(*views)
        decision = Ttft().choose(REQUEST, fleet, 0.0)
        found = judged(decision, fleet, 16 * rng.randrange(65))
        assert sum(found.causes.values()) == pytest.approx(found.actual_s - found.best_s)
        assert all(seconds > 0 for seconds in found.causes.values())
        assert found.causes.keys() <= set(REGRET_CAUSES)
