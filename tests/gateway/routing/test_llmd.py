import pytest

from gateway.routing.base import RouteRequest
from gateway.routing.llmd import Llmd
from tests.gateway.fakes import blocks
from tests.gateway.routing.views import candidates, view

REQUEST = RouteRequest(1025, blocks(1, 64))


def test_the_weighted_sum() -> None:
    views = (
        view("a", waiting=4, active_blocks=250, matched_blocks=64),
        view("b", waiting=0, active_blocks=500, matched_blocks=16),
        view("c", waiting=1, active_blocks=0),
    )
    decision = Llmd().choose(REQUEST, candidates(*views), 0.0)
    # 2 * 0 + 2 * 0.75 + 3 * 1; 2 * 1 + 2 * 0.5 + 3 * 0.25; 2 * 0.75 + 2 * 1 + 0.
    assert decision.cost.tolist() == pytest.approx([-4.5, -3.75, -3.5])
    assert decision.choice == "a"
    assert decision.rows()["b"]["prefix_score"] == 0.25


def test_equal_queues_all_score_one() -> None:
    decision = Llmd().choose(REQUEST, candidates(view("a", waiting=7), view("b", waiting=7)), 0.0)
    assert decision.columns["queue_score"].tolist() == [1, 1]


def test_a_replica_that_doesn_t_say_is_taken_for_empty() -> None:
    decision = Llmd().choose(REQUEST, candidates(view("a", total_blocks=0, active_blocks=9)), 0.0)
    assert decision.columns["kv_score"].tolist() == [1]
