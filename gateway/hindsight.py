"""What a decision was worth, once its replica has answered: the ladder of hits, the regret, and the shadow's choice."""

from collections.abc import Callable
from typing import NamedTuple

from gateway.metrics import Metrics
from gateway.router import Considered
from gateway.routing.base import RouteRequest
from gateway.routing.ladder import CAUSES, DRAINING, LOST_BELOW, UNAVAILABLE, Known, Ladder, climb
from gateway.routing.native.library import the_library
from gateway.routing.reason import Reason, left_for
from gateway.routing.regret import Regret, regret
from gateway.routing.seen import SeenBlocks
from gateway.routing.shadow import Compared, Shadow
from gateway.routing.survey import wait_with
from replica.protocol.hashing import BLOCK_SIZE


class Sent(NamedTuple):
    """What was known when the request went out."""

    computed: int
    """Prompt tokens that replicas with credit had computed before."""
    computed_without_credit: int
    shadow: Compared | None


class Judged(NamedTuple):
    ladder: Ladder
    regret: Regret


class Hindsight:
    """Of one model's requests."""

    def __init__(
        self, model: str, has_credit: Callable[[str], bool], metrics: Metrics, shadow: Shadow, seen: SeenBlocks
    ) -> None:
        """`has_credit`: whether a replica's digest is about the same blocks as ours."""
        self._has_credit = has_credit
        self._metrics = metrics
        self._shadow = shadow
        self._seen = seen
        self._seen_without_credit = SeenBlocks(library=the_library())
        tokens = metrics.prefix_tokens
        self._prompt, self._expected = tokens.labels(model, "prompt"), tokens.labels(model, "expected")
        self._delivered = tokens.labels(model, "delivered")
        self._lost = {cause: metrics.prefix_lost.labels(model, cause) for cause in CAUSES}
        for step, causes in LOST_BELOW.items():
            tokens.sum_up((model, step), (self._delivered, *(self._lost[cause] for cause in causes)))

    def warm_up(self) -> None:
        self._seen.touch()

    def sent(self, considered: Considered, now: float) -> Sent:
        """The request is on its way."""
        decision = considered.decision
        self._metrics.decisions.labels(decision.policy, considered.reason.value).inc()
        compared = self._shadow.compare(considered.request, decision, considered.candidates, now)
        if compared is not None:
            self._count_shadow(considered, compared)
        request = considered.request
        return Sent(_depth(self._seen, request), _depth(self._seen_without_credit, request), compared)

    def computed(self, considered: Considered) -> None:
        """Its first token is there, so its prompt has been computed."""
        if considered.request.hashes:
            credit = self._has_credit(considered.decision.choice)
            (self._seen if credit else self._seen_without_credit).add(considered.request.hashes)

    def told(self, considered: Considered, sent: Sent, delivered: int) -> Judged:
        """The replica says how many tokens came from its cache, now or later. Without that nothing is counted."""
        decision = considered.decision
        ladder = climb(_known(considered, sent), delivered)
        missed = regret(decision, considered.survey, _actual_s(considered, delivered))
        self._prompt.value += considered.request.tokens
        self._delivered.value += ladder.delivered
        self._expected.value += ladder.expected
        for cause, tokens in ladder.losses.items():
            self._lost[cause].value += tokens
        for cause, seconds in missed.causes.items():
            self._metrics.regret.labels(decision.policy, cause).inc(seconds)
        return Judged(ladder, missed)

    def _count_shadow(self, considered: Considered, compared: Compared) -> None:
        names = considered.decision.policy, compared.decision.policy
        self._metrics.shadowed.labels(*names, "yes" if compared.same else "no").inc()
        for of, wait_s, cached in (
            ("live", compared.live_wait_s, considered.decision.cached_tokens),
            ("shadow", compared.shadow_wait_s, compared.decision.cached_tokens),
        ):
            self._metrics.shadow_wait.labels(*names, of).inc(wait_s)
            self._metrics.shadow_cached.labels(*names, of).inc(cached)


def _known(considered: Considered, sent: Sent) -> Known:
    decision, survey = considered.decision, considered.survey
    usable, chosen = survey.most_held, decision.held_tokens
    resident, barrier = usable, UNAVAILABLE
    if considered.barred:
        first = considered.barred[0]
        resident, barrier = first.held_tokens, DRAINING if first.state == "draining" else UNAVAILABLE
    why = Reason.TIE
    if chosen < usable:
        why = left_for(decision, survey.mine_s, survey.quickest_with_most_held)
    computed, without_credit, _ = sent
    return Known(computed, without_credit, resident, barrier, usable, chosen, decision.cached_tokens, why)


def _actual_s(considered: Considered, delivered: int) -> float:
    """The choice's wait with what its cache gave."""
    survey = considered.survey
    if delivered == survey.my_credited:
        return survey.mine_s
    return wait_with(considered.request.tokens, considered.candidates, considered.decision.place, delivered)


def _depth(seen: SeenBlocks, request: RouteRequest) -> int:
    """In tokens that could come from a cache."""
    if seen.is_empty:
        return 0
    blocks, most = seen.depth(request.hashes), (request.tokens - 1) // BLOCK_SIZE
    return (blocks if blocks < most else most) * BLOCK_SIZE
