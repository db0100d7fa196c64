"""By how many seconds another choice would have been better, as far as can be known afterwards.

Known: what the choice's cache delivered. Not known: what the other caches would have delivered; they are taken at
their digests' word, discounted by trust. Queues, decodes and cost models are those that the decision saw, for all
candidates alike, so an error in them isn't regret; it shows as the error of prediction. What the choice cost other
requests isn't counted either.
"""

from dataclasses import dataclass

import numpy as np

from gateway.routing.base import Decision
from gateway.routing.candidates import Candidates, Floats
from gateway.routing.reason import left_for
from gateway.routing.wait import wait_s

REGRET_CAUSES = ("stale", "load", "tie", "spread", "policy")
"""stale: the choice's cache delivered less than believed. The rest is what was accepted knowingly: see reason.py."""


@dataclass(frozen=True, slots=True)
class Regret:
    believed_s: float
    """The choice's wait as believed when it was decided."""
    actual_s: float
    """… with what its cache delivered."""
    best_s: float
    best: str
    """Who would have been quickest."""
    causes: dict[str, float]
    """They add up to actual_s − best_s; those of zero left out."""


def waits(tokens: int, decision: Decision, candidates: Candidates, delivered: int) -> tuple[Floats, Floats]:
    """Of each candidate: as believed when it was decided, and with what the choice's cache delivered."""
    believed = candidates.credited_tokens(tokens)
    known = np.stack([believed, believed])
    known[1, decision.place] = delivered
    before, after = wait_s(tokens, candidates, known)
    return before, after


def regret(decision: Decision, before: Floats, after: Floats) -> Regret:
    """`before`, `after`: see `waits`."""
    believed, actual, best = float(before[decision.place]), float(after[decision.place]), int(after.argmin())
    lost = actual - float(after[best])
    stale = min(lost, max(0.0, actual - believed))
    causes = {"stale": stale}
    if lost > stale:
        causes[left_for(decision, before, best).value] = lost - stale
    return Regret(
        believed_s=believed,
        actual_s=actual,
        best_s=float(after[best]),
        best=decision.candidates[best],
        causes={cause: seconds for cause, seconds in causes.items() if seconds > 0},
    )
