"""What became of the prompt tokens that a fleet has computed before: the steps from there to what a cache gave.

    computed    by any replica, ever, as far as this gateway saw and remembers
    resident    in some replica's cache when it was decided, by the digests
    usable      … of a replica that could be chosen
    chosen      … of the one that was
    delivered   by its engine

Each step down is a loss with a cause, and they add up to computed − delivered. A step is never lower than one below it:
a cache that gives more than its digest had said (because somebody else's prompt was just finished there) shows that so
much was there.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from gateway.routing.reason import Reason

STEPS = ("computed", "resident", "usable", "chosen", "delivered", "expected")
"""Fields of a Ladder that are counted."""

CAUSES = ("evicted", "fingerprint", "draining", "unavailable", "load", "tie", "spread", "policy", "stale")
"""Of a loss.

evicted: no digest holds it any more, or the replica that held it is gone.
fingerprint: computed only by replicas that get no credit for their caches; what those hold now can't be known.
draining, unavailable: held by a replica that couldn't be chosen.
load, tie, spread, policy: a candidate had more and was left, for this reason (see reason.py).
stale: predicted for the choice, and not delivered.
"""

LOST_BELOW = {
    "chosen": ("stale",),
    "usable": ("stale", "load", "tie", "spread", "policy"),
    "resident": ("stale", "load", "tie", "spread", "policy", "draining", "unavailable"),
    "computed": CAUSES,
}
"""The causes of losses between a step and what was delivered: the step is their sum and that."""

Barrier = Literal["draining", "unavailable"]
DRAINING: Barrier = "draining"
UNAVAILABLE: Barrier = "unavailable"


class Known(NamedTuple):
    """Prompt tokens that could come from a cache, in whole blocks: what was known when it was decided."""

    computed: int
    """Before, by replicas with credit."""
    computed_without_credit: int
    resident: int
    barrier: Barrier
    """Why whoever holds more than any candidate couldn't be chosen."""
    usable: int
    chosen: int
    """By the choice's digest."""
    expected: int
    """At the choice, with what is just being computed there for others; at least `chosen`."""
    left_for: Reason


class Ladder(NamedTuple):
    computed: int
    resident: int
    usable: int
    chosen: int
    delivered: int
    expected: int
    """Not a step: what the choice was only expected to have by then. So far the order is that of STEPS."""
    losses: Mapping[str, int]
    """By cause, those of zero left out."""


def climb(known: Known, delivered: int) -> Ladder:
    computed, without_credit, resident, barrier, usable, chosen, expected, left_for = known
    # NOTE: `max` would take as long as all the rest.
    # What is expected at the choice counts as predicted as far as it is certain that it had been computed.
    predicted = expected if expected < usable else usable
    predicted = chosen if chosen > predicted else predicted
    predicted = delivered if delivered > predicted else predicted
    usable = predicted if predicted > usable else usable
    resident = usable if usable > resident else resident
    credited = resident if resident > computed else computed
    computed = without_credit if without_credit > credited else credited
    losses = {}
    if computed > delivered:
        lost = (
            ("fingerprint", computed - credited),
            ("evicted", credited - resident),
            (barrier, resident - usable),
            (left_for.value, usable - predicted),
            ("stale", predicted - delivered),
        )
        losses = {cause: tokens for cause, tokens in lost if tokens}
    only_expected = expected - chosen if expected > chosen else 0
    return Ladder(computed, resident, usable, predicted, delivered, only_expected, losses)
