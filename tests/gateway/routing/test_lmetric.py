from gateway.routing.base import RouteRequest
from gateway.routing.lmetric import Lmetric
from tests.gateway.fakes import blocks
from tests.gateway.routing.views import candidates, view

REQUEST = RouteRequest(1024, blocks(1, 64))


def test_uncached_tokens_times_batch() -> None:
    views = view("a", decoding=1), view("b", matched_blocks=48, decoding=4, waiting=2), view("c", decoding=2)
    decision = Lmetric().choose(REQUEST, candidates(*views), 0.0)
    assert decision.cost.tolist() == [1024 * 2, 256 * 7, 1024 * 3]
    assert decision.choice == "b"


def test_a_busy_owner_loses_to_an_idle_replica() -> None:
    views = view("a"), view("b", matched_blocks=48, decoding=4)
    assert Lmetric().choose(REQUEST, candidates(*views), 0.0).choice == "a"


def test_equal_products_go_to_the_smaller_batch() -> None:
    for prompt in range(10):
        request = RouteRequest(1024, blocks(prompt, 64))
        views = view("a", decoding=1, matched_blocks=32), view("b")
        assert Lmetric().choose(request, candidates(*views), 0.0).choice == "b"
