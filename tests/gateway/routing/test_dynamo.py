import pytest

from gateway.routing.base import RouteRequest
from gateway.routing.dynamo import Dynamo
from tests.gateway.fakes import blocks
from tests.gateway.routing.views import candidates, view

REQUEST = RouteRequest(1024, blocks(1, 64))


def test_the_cost() -> None:
    views = (
        view("a", matched_blocks=32, active_blocks=100),
        view("b", queue_tokens=160, active_blocks=40),
        view("c", matched_blocks=64, queue_tokens=1600, active_blocks=10),
    )
    decision = Dynamo().choose(REQUEST, candidates(*views), 0.0)
    # 64 - 32 + 100 + 64; 10 + 64 + 40 + 64; 100 + 64 - 63 (one token must be computed) + 10 + 64.
    assert decision.cost.tolist() == pytest.approx([196, 178, 175])
    assert decision.choice == "c"


def test_of_equal_costs_any() -> None:
    policy, seen = Dynamo(), set()
    for _ in range(40):
        decision = policy.choose(REQUEST, candidates(view("a"), view("b"), view("c", active_blocks=1)), 0.0)
        policy.placed(REQUEST, decision, 0.0)
        seen.add(decision.choice)
    assert seen == {"a", "b"}
