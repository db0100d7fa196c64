from collections import Counter

from gateway.routing.base import RouteRequest
from gateway.routing.draws import Draws
from tests.gateway.routing.views import candidates, placed_at, view


def test_a_draw_changes_when_a_request_is_placed_and_only_then() -> None:
    draws = Draws()
    seen = set()
    for _ in range(100):
        assert draws.draw() == draws.draw()
        seen.add(draws.draw())
        draws.placed(RouteRequest(1, []), placed_at("a"), 0.0)
    assert len(seen) == 100


def test_seeds_differ_and_repeat() -> None:
    assert Draws(1).draw() == Draws(1).draw() != Draws(2).draw()


def test_draws_are_even() -> None:
    draws, fleet = Draws(), candidates(*(view(f"r{number}") for number in range(10)))
    counts = Counter[int]()
    for _ in range(2000):
        counts[fleet.rendezvous(draws.draw())] += 1
        draws.placed(RouteRequest(1, []), placed_at(""), 0.0)
    assert set(counts) == set(range(10))
    assert all(140 < count < 260 for count in counts.values()), counts
