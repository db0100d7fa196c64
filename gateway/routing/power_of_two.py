"""Of two replicas drawn at random, the one with the fewer requests in flight (Mitzenmacher 2001).

As in SGLang's router (`power_of_two.rs`, 065f331, 2026), the first of the pair wins a tie. That one compares tokens
where its load monitor has them for both; ours compares requests, as Ray Serve and the vLLM router do.
"""

import numpy as np

from gateway.routing.base import Decision, RouteRequest, decide
from gateway.routing.candidates import Candidates
from gateway.routing.draws import Draws


class PowerOfTwo(Draws):
    name = "power_of_two"

    def choose(self, request: RouteRequest, candidates: Candidates, now: float) -> Decision:
        key = self.draw()
        requests = candidates.requests
        drawn = np.zeros(len(candidates))
        first = place = candidates.rendezvous(key)
        drawn[first] = 1.0
        if len(candidates) > 1:
            second = candidates.rendezvous(key, drawn == 0)
            drawn[second] = 1.0
            place = second if requests[second] < requests[first] else first
        return decide(self, request, candidates, place, requests, drawn=drawn)
