from gateway.routing.base import RouteRequest
from gateway.routing.least_requests import LeastRequests
from tests.gateway.routing.views import candidates, view

REQUEST = RouteRequest(1025, list(range(1, 65)))


def test_waiting_and_decoding_requests_count_alike_and_tokens_don_t() -> None:
    views = view("a", waiting=3), view("b", decoding=1, waiting=1, queue_tokens=9000), view("c", decoding=3)
    decision = LeastRequests().choose(REQUEST, candidates(*views), 0.0)
    assert decision.choice == "b"
    assert decision.cost.tolist() == [3, 2, 3]
