"""What a decision was worth, once its replica has answered: the ladder of hits, the regret, and the shadow's choice."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.metrics import Metrics
from gateway.router import Considered
from gateway.routing.ladder import CAUSES, STEPS, Barrier, Known, Ladder, climb
from gateway.routing.native.library import the_library
from gateway.routing.reason import Reason, left_for
from gateway.routing.regret import Regret, regret
from gateway.routing.seen import SeenBlocks
from gateway.routing.shadow import Compared, Shadow
from gateway.routing.survey import wait_with
from replica.protocol.hashing import BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class Sent:
    """What was known when the request went out."""

    computed: int
    """Prompt tokens that replicas with credit had computed before."""
    computed_without_credit: int
    shadow: Compared | None


@dataclass(frozen=True, slots=True)
class Judged:
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
        self._steps = {step: metrics.prefix_tokens.labels(model, step) for step in ("prompt", *STEPS)}
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
        return Sent(self._depth(self._seen, considered), self._depth(self._seen_without_credit, considered), compared)

    def computed(self, considered: Considered) -> None:
        """Its first token is there, so its prompt has been computed."""
        if considered.request.hashes:
            credit = self._has_credit(considered.decision.choice)
            (self._seen if credit else self._seen_without_credit).add(considered.request.hashes)

    def told(self, considered: Considered, sent: Sent, delivered: int) -> Judged:
        """The replica says how many tokens came from its cache, now or later. Without that nothing is counted."""
        decision = considered.decision
        actual_s = wait_with(considered.request.tokens, considered.candidates, decision.place, delivered)
        ladder = climb(self._known(considered, sent), delivered)
        judged = Judged(ladder, regret(decision, considered.survey, actual_s))
        self._count(considered, judged)
        return judged

    def _known(self, considered: Considered, sent: Sent) -> Known:
        decision, survey = considered.decision, considered.survey
        usable = survey.most_held
        barred = considered.barred[:1]
        barrier: Barrier = "draining" if barred and barred[0].state == "draining" else "unavailable"
        return Known(
            computed=sent.computed,
            computed_without_credit=sent.computed_without_credit,
            resident=barred[0].held_tokens if barred else usable,
            barrier=barrier,
            usable=usable,
            chosen=decision.held_tokens,
            expected=decision.cached_tokens,
            left_for=Reason.TIE
            if decision.held_tokens >= usable
            else left_for(decision, survey.mine_s, survey.with_most_held),
        )

    @staticmethod
    def _depth(seen: SeenBlocks, considered: Considered) -> int:
        request = considered.request
        if not request.hashes:
            return 0
        return min(seen.depth(request.hashes), (request.tokens - 1) // BLOCK_SIZE) * BLOCK_SIZE

    def _count(self, considered: Considered, judged: Judged) -> None:
        ladder = judged.ladder
        self._steps["prompt"].inc(considered.request.tokens)
        for step in STEPS:
            self._steps[step].inc(getattr(ladder, step))
        for cause, tokens in ladder.losses.items():
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
