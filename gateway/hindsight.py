"""What a decision was worth, once its replica has answered: the ladder of hits, the regret, and the shadow's choice."""

from collections.abc import Callable
from typing import NamedTuple

from gateway.metrics import Metrics
from gateway.router import Considered
from gateway.routing.base import RouteRequest
from gateway.routing.ladder import CAUSES, DRAINING, STEPS, UNAVAILABLE, Known, Ladder, climb
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
        self._prompt, *self._steps = (metrics.prefix_tokens.labels(model, step) for step in ("prompt", *STEPS))
        self._lost = {cause: metrics.prefix_lost.labels(model, cause) for cause in CAUSES}

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
        ladder = climb(self._known(considered, sent), delivered)
        judged = Judged(ladder, regret(considered.decision, considered.survey, _actual_s(considered, delivered)))
        self._count(considered, judged)
        return judged

    def _known(self, considered: Considered, sent: Sent) -> Known:
        decision, survey, barred = considered.decision, considered.survey, considered.barred
        usable, chosen = survey.most_held, decision.held_tokens
        resident, barrier = usable, UNAVAILABLE
        if barred:
            resident = barred[0].held_tokens
            barrier = DRAINING if barred[0].state == "draining" else UNAVAILABLE
        why = Reason.TIE
        if chosen < usable:
            why = left_for(decision, survey.mine_s, survey.quickest_with_most_held)
        computed, without_credit, _ = sent
        return Known(computed, without_credit, resident, barrier, usable, chosen, decision.cached_tokens, why)

    def _count(self, considered: Considered, judged: Judged) -> None:
        *steps, losses = judged.ladder
        self._prompt.value += considered.request.tokens
        for count, tokens in zip(self._steps, steps, strict=True):
            count.value += tokens
        for cause, tokens in losses.items():
            self._lost[cause].inc(tokens)
        for cause, seconds in judged.regret.causes.items():
            self._metrics.regret.labels(considered.decision.policy, cause).inc(seconds)

    def _count_shadow(self, considered: Considered, compared: Compared) -> None:
        names = considered.decision.policy, compared.decision.policy
        self._metrics.shadowed.labels(*names, "yes" if compared.same else "no").inc()
        for of, wait_s, cached in (
            ("live", compared.live_wait_s, considered.decision.cached_tokens),
            ("shadow", compared.shadow_wait_s, compared.decision.cached_tokens),
        ):
            self._metrics.shadow_wait.labels(*names, of).inc(wait_s)
            self._metrics.shadow_cached.labels(*names, of).inc(cached)


def _actual_s(considered: Considered, delivered: int) -> float:
    """The choice's wait with what its cache gave."""
    survey = considered.survey
    if delivered == survey.my_credited:
        return survey.mine_s
    return wait_with(considered.request.tokens, considered.candidates, considered.decision.place, delivered)


def _depth(seen: SeenBlocks, request: RouteRequest) -> int:
    """In tokens that could come from a cache."""
    if seen.is_empty or not request.hashes:
        return 0
    return min(seen.depth(request.hashes), (request.tokens - 1) // BLOCK_SIZE) * BLOCK_SIZE
