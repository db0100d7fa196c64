import pytest

from gateway.routing.base import RouteRequest
from gateway.routing.round_robin import RoundRobin
from gateway.routing.shadow import Shadow
from gateway.routing.ttft import Ttft
from tests.gateway.fakes import COST, blocks
from tests.gateway.routing.views import candidates, view

REQUEST = RouteRequest(1025, blocks(1, 64))
FLEET = candidates(view("a", matched_blocks=64), view("b"))


def test_without_a_shadow_nothing_is_compared() -> None:
    shadow = Shadow()
    assert shadow.compare(REQUEST, Ttft().choose(REQUEST, FLEET, 0.0), FLEET, 0.0) is None
    assert shadow.tally is None


def test_both_choices_are_compared_in_seconds_whatever_they_decide_by() -> None:
    shadow = Shadow(RoundRobin())
    live = Ttft().choose(REQUEST, FLEET, 0.0)
    first = shadow.compare(REQUEST, live, FLEET, 1.0)
    second = shadow.compare(REQUEST, live, FLEET, 2.0)
    assert first is not None and second is not None
    # The turn goes on as if it ruled, though the live policy never moved.
    assert [first.decision.choice, second.decision.choice] == ["a", "b"]
    assert [first.same, second.same] == [True, False]
    assert second.live_wait_s == pytest.approx(COST.prefill_s(1025, 1024))
    assert second.shadow_wait_s == pytest.approx(COST.prefill_s(1025, 0))
    tally = shadow.tally
    assert tally is not None
    assert (tally.live, tally.since, tally.requests, tally.disagreements) == ("ttft", 1.0, 2, 1)
    assert tally.cached_tokens == {"live": 2048, "shadow": 1024}
    assert tally.wait_s["shadow"] > tally.wait_s["live"]


def test_another_live_policy_or_shadow_begins_a_new_tally() -> None:
    shadow = Shadow(RoundRobin())
    shadow.compare(REQUEST, Ttft().choose(REQUEST, FLEET, 0.0), FLEET, 1.0)
    shadow.compare(REQUEST, RoundRobin().choose(REQUEST, FLEET, 0.0), FLEET, 2.0)
    assert shadow.tally is not None and (shadow.tally.live, shadow.tally.requests) == ("round_robin", 1)
    shadow.use(Ttft())
    assert shadow.tally is None
