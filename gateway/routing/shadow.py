"""A second policy that decides along with the live one and moves no traffic.

It sees the same candidates, so the loads and caches that the live policy has made; only what it remembers is as if it
ruled. So the first request that it would have sent elsewhere is compared fairly, and a long run of them roughly.
"""

from dataclasses import dataclass, field

from gateway.routing.base import Decision, Policy, RouteRequest
from gateway.routing.candidates import Candidates
from gateway.routing.survey import survey


@dataclass(slots=True)
class Tally:
    """Sums over the requests that both have decided."""

    live: str
    since: float
    requests: int = 0
    disagreements: int = 0
    wait_s: dict[str, float] = field(default_factory=lambda: {"live": 0.0, "shadow": 0.0})
    cached_tokens: dict[str, int] = field(default_factory=lambda: {"live": 0, "shadow": 0})


@dataclass(frozen=True, slots=True)
class Compared:
    decision: Decision
    """The shadow's."""
    same: bool
    live_wait_s: float
    """Predicted time to first token of both choices, in the terms of wait.py."""
    shadow_wait_s: float


class Shadow:
    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy
        self.tally: Tally | None = None

    def use(self, policy: Policy | None) -> None:
        """Begins anew, with this one or with none."""
        self.policy, self.tally = policy, None

    def compare(self, request: RouteRequest, live: Decision, candidates: Candidates, now: float) -> Compared | None:
        """Takes a decision along with the live one; None where there is no shadow."""
        if self.policy is None:
            return None
        decision = self.policy.choose(request, candidates, now)
        self.policy.placed(request, decision, now)
        live_s, shadow_s = (survey(request.tokens, candidates, each.place).mine_s for each in (live, decision))
        compared = Compared(
            decision=decision,
            same=decision.place == live.place,
            live_wait_s=live_s,
            shadow_wait_s=shadow_s,
        )
        self._count(live, compared, now)
        return compared

    def _count(self, live: Decision, compared: Compared, now: float) -> None:
        if self.tally is None or self.tally.live != live.policy:
            self.tally = Tally(live.policy, now)
        tally = self.tally
        tally.requests += 1
        tally.disagreements += not compared.same
        tally.wait_s["live"] += compared.live_wait_s
        tally.wait_s["shadow"] += compared.shadow_wait_s
        tally.cached_tokens["live"] += live.cached_tokens
        tally.cached_tokens["shadow"] += compared.decision.cached_tokens
