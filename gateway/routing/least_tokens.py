"""The replica with the fewest queued uncached tokens. Blind to caches: the baseline that knows load only."""

from collections.abc import Sequence

from gateway.routing.base import Decision, ReplicaView, RouteRequest, last_hash, rendezvous


class LeastTokens:
    name = "least_tokens"

    def choose(self, request: RouteRequest, candidates: Sequence[ReplicaView], now: float) -> Decision:
        least = min(view.queue_tokens for view in candidates)
        chosen = rendezvous(last_hash(request), [view for view in candidates if view.queue_tokens == least])
        terms = {
            view.id: {
                "queue_tokens": float(view.queue_tokens),
                "own_tokens": float(request.tokens),
                "total_tokens": float(view.queue_tokens + request.tokens),
            }
            for view in candidates
        }
        return Decision(chosen.id, chosen.cached_tokens(request), self.name, terms)
