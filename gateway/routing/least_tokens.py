"""The replica with the fewest queued uncached tokens. Blind to caches: the baseline that knows load only."""

from gateway.routing.base import Decision, RouteRequest, Stateless, decide, last_hash
from gateway.routing.candidates import Candidates


class LeastTokens(Stateless):
    name = "least_tokens"

    def choose(self, request: RouteRequest, candidates: Candidates, now: float) -> Decision:
        queue = candidates.queue_tokens
        place = candidates.rendezvous(last_hash(request), queue == queue.min())
        return decide(self, request, candidates, place, queue)
