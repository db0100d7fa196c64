"""LMetric: uncached tokens times batch size. No knobs: units and weights cancel out in a comparison of products.

After Zhang et al., "LMetric: Simple is Better" (arXiv 2603.15202, March 2026). The batch counts the request itself, so
that an idle replica's product isn't 0 whatever it has to compute, as in the implementations in SGLang's model gateway
(`lmetric.rs`, acaa759) and Dynamo. Equal products go to the smaller batch, as in the former; the paper doesn't say.
After that a rendezvous hash decides, where it takes the first.
"""

from gateway.routing.base import Decision, RouteRequest, Stateless, decide, last_hash
from gateway.routing.candidates import Candidates


class Lmetric(Stateless):
    name = "lmetric"

    def choose(self, request: RouteRequest, candidates: Candidates, now: float) -> Decision:
        uncached = request.tokens - candidates.cached_tokens(request.tokens)
        batch = candidates.requests + 1
        cost = uncached * batch
        least = cost == cost.min()
        place = candidates.rendezvous(last_hash(request), least & (batch == batch[least].min()))
        return decide(self, request, candidates, place, cost, uncached_tokens=uncached, batch=batch)
