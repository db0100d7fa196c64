"""Any replica, evenly: what a load balancer without state does. The baseline of the published comparisons."""

import numpy as np

from gateway.routing.base import Decision, RouteRequest, decide
from gateway.routing.candidates import Candidates
from gateway.routing.draws import Draws


class Uniform(Draws):
    name = "random"

    def choose(self, request: RouteRequest, candidates: Candidates, now: float) -> Decision:
        place = candidates.rendezvous(self.draw())
        return decide(self, request, candidates, place, np.zeros(len(candidates)))
