"""A decision's reason in one word."""

from enum import StrEnum

import numpy as np

from gateway.routing.base import Decision
from gateway.routing.candidates import Candidates, Floats, Mask
from gateway.routing.wait import TIE, believed_wait_s, predicted_ttft_s


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


def reason_for(tokens: int, decision: Decision, candidates: Candidates, *, retry: bool) -> Reason:
    """`tokens`: of the prompt. `retry`: another replica has failed on it."""
    if retry:
        return Reason.RETRY
    if len(candidates) == 1:
        return Reason.ONLY
    cached = candidates.cached_tokens(tokens)
    most = cached.max()
    if most == 0:
        return Reason.COLD
    if cached[decision.place] == most:
        return Reason.HIT
    waits = believed_wait_s(tokens, candidates)
    return left_for(decision, waits, quickest(waits, cached == most))


def quickest(waits: Floats, among: Mask) -> int:
    return int(np.where(among, waits, np.inf).argmin())


def left_for(decision: Decision, waits: Floats, other: int) -> Reason:
    """Why the choice and not the other: LOAD, TIE, SPREAD or POLICY. `waits`: believed when it was decided."""
    mine, others = waits[decision.place], waits[other]
    if mine <= others * TIE and others <= mine * TIE:
        return Reason.TIE
    if mine < others:
        return Reason.LOAD
    if predicted_ttft_s(decision) is None:
        return Reason.POLICY
    return Reason.LOAD if decision.cost[decision.place] <= decision.cost[other] * TIE else Reason.SPREAD
