"""A decision's reason in one word."""

from enum import StrEnum

from gateway.routing.base import Decision
from gateway.routing.survey import Quickest, Survey
from gateway.routing.wait import TIE, in_seconds


class Reason(StrEnum):
    RETRY = "retry"
    """The request failed elsewhere before."""
    ONLY = "only"
    """There was one candidate."""
    COLD = "cold"
    """No candidate has any of the prompt."""
    HIT = "hit"
    """None has more of the prompt."""
    LOAD = "load"
    """Another has more of the prompt, and would still have answered later: by its queue or decodes; or, by the policy's
    own seconds, others would have waited longer."""
    TIE = "tie"
    """Another has more of the prompt, and would have answered no sooner and no later."""
    SPREAD = "spread"
    """Another has more of the prompt and costs less by the policy's own seconds: `ttft` puts a new context where there
    is room, as long as that costs little more."""
    POLICY = "policy"
    """Another has more of the prompt and would have answered sooner, and the policy doesn't count in seconds."""


def reason_for(decision: Decision, survey: Survey, *, retry: bool) -> Reason:
    """`retry`: another replica has failed on it."""
    if retry:
        return Reason.RETRY
    if len(decision.candidates) == 1:
        return Reason.ONLY
    if survey.most_cached == 0:
        return Reason.COLD
    if survey.my_cached == survey.most_cached:
        return Reason.HIT
    return left_for(decision, survey.mine_s, survey.quickest_with_most_cached)


def left_for(decision: Decision, mine_s: float, other: Quickest) -> Reason:
    """Why the choice and not the other: LOAD, TIE, SPREAD or POLICY. `mine_s`: the choice's wait, as believed when it
    was decided."""
    if mine_s <= other.wait_s * TIE and other.wait_s <= mine_s * TIE:
        return Reason.TIE
    if mine_s < other.wait_s:
        return Reason.LOAD
    if not in_seconds(decision):
        return Reason.POLICY
    return Reason.LOAD if decision.cost[decision.place] <= decision.cost[other.place] * TIE else Reason.SPREAD
