"""How much may wait before requests are refused. Pure."""

from dataclasses import dataclass

from gateway.hold.shares import Shares
from gateway.routing.candidates import Candidates


@dataclass(frozen=True, slots=True)
class Bounds:
    """None: no bound."""

    max_tokens: int | None = None
    """Uncached prompt tokens that wait, here and at the replicas."""
    max_s: float | None = None
    """Instead, what the fleet prefills in so many seconds."""

    def limit_tokens(self, candidates: Candidates) -> float | None:
        if self.max_tokens is not None:
            return self.max_tokens
        return None if self.max_s is None else self.max_s * candidates.figures.tokens_per_s

    def overfull_s(self, candidates: Candidates, held: int, tokens: int) -> float:
        """In how many seconds there is room for so many more tokens; 0: there is. Where nothing waits, any prompt gets
        in."""
        figures = candidates.figures
        waiting = held + figures.queued
        if waiting <= 0:
            return 0.0
        limit = self.limit_tokens(candidates)
        if limit is None:
            return 0.0
        over = waiting + tokens - limit
        if over <= 0:
            return 0.0
        return (over if over < waiting else waiting) / figures.tokens_per_s

    def exceeds_share(self, candidates: Candidates, shares: Shares, tenant: str, tokens: int) -> bool:
        """Of what may wait: a tenant that fills the queue is refused, and others still get in. All together may exceed
        the limit by what the others' shares are, so never by as much again."""
        limit = self.limit_tokens(candidates)
        own = shares.open_tokens(tenant)
        tenants = shares.tenants + (own == 0)
        return limit is not None and (tenants == 1 or own + tokens > limit / tenants)


UNBOUNDED = Bounds()
