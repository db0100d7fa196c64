"""By how many seconds another choice would have been better, as far as can be known afterwards.

Known: what the choice's cache delivered. Not known: what the other caches would have delivered; they are taken at
their digests' word, discounted by trust. Queues, decodes and cost models are those that the decision saw, for all
candidates alike, so an error in them isn't regret; it shows as the error of prediction. What the choice cost other
requests isn't counted either.
"""

from typing import NamedTuple

from gateway.routing.base import Decision
from gateway.routing.reason import left_for
from gateway.routing.survey import Survey

REGRET_CAUSES = ("stale", "load", "tie", "spread", "policy")
"""stale: the choice's cache delivered less than believed. The rest is what was accepted knowingly: see reason.py."""


class Regret(NamedTuple):
    believed_s: float
    """The choice's wait as believed when it was decided."""
    actual_s: float
    """… with what its cache delivered."""
    best_s: float
    best: str
    """Who would have been quickest."""
    causes: dict[str, float]
    """They add up to actual_s − best_s; those of zero left out."""


def regret(decision: Decision, survey: Survey, actual_s: float) -> Regret:
    """`actual_s`: the choice's wait with what its cache delivered."""
    mine_s, best_s = survey.mine_s, survey.other_s
    if best_s >= actual_s:
        return Regret(mine_s, actual_s, actual_s, decision.choice, {})
    lost = actual_s - best_s
    stale = min(lost, max(0.0, actual_s - mine_s))
    causes = {"stale": stale} if stale > 0 else {}
    if lost > stale:
        causes[left_for(decision, mine_s, survey.quickest_other).value] = lost - stale
    return Regret(mine_s, actual_s, best_s, decision.candidates[survey.other], causes)
