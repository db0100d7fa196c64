import numpy as np
import pytest

from gateway.routing.base import RouteRequest
from gateway.routing.least_tokens import LeastTokens
from gateway.routing.ttft import Ttft
from gateway.routing.wait import believed_wait_s, predicted_ttft_s, wait_s
from tests.gateway.fakes import COST, blocks
from tests.gateway.routing.views import candidates, view

REQUEST = RouteRequest(1025, blocks(1, 64))


def test_an_idle_replica_is_waited_for_as_its_cost_model_says() -> None:
    fleet = candidates(view("a", matched_blocks=32), view("b"))
    waits = wait_s(1025, fleet, fleet.cached_tokens(1025))
    assert waits == pytest.approx([COST.prefill_s(1025, 512), COST.prefill_s(1025, 0)])


def test_trust_discounts_what_is_believed() -> None:
    lied, plain = candidates(view("a", matched_blocks=64, trust=0.5)), candidates(view("a", matched_blocks=32))
    assert believed_wait_s(1025, lied) == pytest.approx(believed_wait_s(1025, plain))


def test_several_guesses_at_once() -> None:
    fleet = candidates(view("a", queue_tokens=700, decoding=3), view("b"))
    guesses = np.array([[0.0, 0.0], [16.0, 512.0]])
    both = wait_s(1025, fleet, guesses)
    assert both == pytest.approx(np.stack([wait_s(1025, fleet, guess) for guess in guesses]))


def test_the_prediction_is_the_choice_s_own_wait_by_policies_that_count_in_seconds() -> None:
    fleet = candidates(view("a", queue_tokens=900, decoding=9, matched_blocks=32, trust=0.9), view("b", decoding=9))
    decision = Ttft().choose(REQUEST, fleet, 0.0)
    assert predicted_ttft_s(decision) == pytest.approx(believed_wait_s(1025, fleet)[decision.place])
    assert predicted_ttft_s(LeastTokens().choose(REQUEST, fleet, 0.0)) is None


def test_who_waits_for_kv_waits_for_an_answer_s_end_each_though_few_tokens_are_queued() -> None:
    full = {"active_blocks": 1000, "free_blocks": 0, "decoding": 20, "stay_s": 10.0, "max_running": 0}
    fleet = candidates(view("a", waiting=6, **full), view("b", **full))
    waits = wait_s(17, fleet, np.array([16.0, 16.0]))
    assert waits[0] - waits[1] == pytest.approx(6 * 10.0 / 20)
