"""The replica with the fewest requests in flight, whatever their size: `least_conn` of the usual proxies.

Those count the connections of one proxy; here other gateways' requests count as well, as of the last load report.
"""

from gateway.routing.base import Decision, RouteRequest, Stateless, decide, last_hash
from gateway.routing.candidates import Candidates


class LeastRequests(Stateless):
    name = "least_requests"

    def choose(self, request: RouteRequest, candidates: Candidates, now: float) -> Decision:
        requests = candidates.requests
        place = candidates.rendezvous(last_hash(request), requests == requests.min())
        return decide(self, request, candidates, place, requests)
