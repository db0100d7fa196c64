from collections.abc import Mapping

import numpy as np
import pytest

from gateway.routing.base import Decision, RouteRequest, decide
from gateway.routing.reason import Reason, left_for, reason_for
from gateway.routing.round_robin import RoundRobin
from gateway.routing.survey import Quickest, survey
from gateway.routing.ttft import Ttft
from tests.gateway.fakes import blocks
from tests.gateway.routing.views import View, candidates, view

REQUEST = RouteRequest(1025, blocks(1, 64))


def chosen(place: int, *views: View, retry: bool = False) -> str:
    """The reason where the choice is forced, by a policy that knows no seconds."""
    fleet = candidates(*views)
    decision = decide(RoundRobin(), REQUEST, fleet, place, np.zeros(len(views)))
    return reason_for(decision, survey(REQUEST.tokens, fleet, place), retry=retry).value


@pytest.mark.parametrize(
    ("reason", "place", "views"),
    [
        ("only", 0, [view("a", matched_blocks=9)]),
        ("cold", 0, [view("a"), view("b")]),
        ("hit", 0, [view("a", matched_blocks=9), view("b", matched_blocks=8)]),
        ("hit", 0, [view("a", matched_blocks=9), view("b", matched_blocks=9)]),
        ("load", 0, [view("a"), view("b", matched_blocks=9, queue_tokens=3000)]),
        ("tie", 0, [view("a", matched_blocks=32), view("b", matched_blocks=33, queue_tokens=2)]),
        ("policy", 0, [view("a"), view("b", matched_blocks=64)]),
        ("policy", 0, [view("a"), view("b", matched_blocks=64, queue_tokens=10**9), view("c", matched_blocks=64)]),
    ],
)
def test_reasons(reason: str, place: int, views: list[View]) -> None:
    assert chosen(place, *views) == reason


def test_a_retry_comes_first() -> None:
    assert chosen(0, view("a", matched_blocks=9), retry=True) == "retry"


def test_a_better_match_left_for_others_sake_is_left_for_load() -> None:
    """By ttft's cost, in which others' waits count, and not by the prompt's own wait."""
    full = view("b", matched_blocks=2, free_blocks=0, reuse=0.9)
    fleet = candidates(view("a", matched_blocks=1, free_blocks=999, reuse=0.9), full)
    decision = Ttft().choose(REQUEST, fleet, 0.0)
    assert decision.choice == "a"
    assert reason_for(decision, survey(REQUEST.tokens, fleet, decision.place), retry=False) is Reason.LOAD


def test_a_new_context_is_spread() -> None:
    fleet = candidates(view("a", matched_blocks=2, free_blocks=0, reuse=0.0), view("b", free_blocks=900, reuse=0.0))
    decision = Ttft().choose(REQUEST, fleet, 0.0)
    assert decision.choice == "b"
    assert reason_for(decision, survey(REQUEST.tokens, fleet, decision.place), retry=False) is Reason.SPREAD


def seconds(cost: list[float], columns: Mapping[str, list[float]]) -> Decision:
    arrays = {name: np.array(column) for name, column in columns.items()}
    return Decision("p", ("a", "b"), 0, np.array(cost), arrays, 0, 0)


@pytest.mark.parametrize(
    ("waits", "reason"),
    [([1.0, 1.0], "tie"), ([1.005, 1.0], "tie"), ([1.0, 1.005], "tie"), ([1.0, 2.0], "load"), ([2.0, 1.0], "policy")],
)
def test_why_the_other_was_left(waits: list[float], reason: str) -> None:
    assert left_for(seconds([0.0, 9.0], {}), waits[0], Quickest(1, waits[1])).value == reason
