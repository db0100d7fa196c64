from gateway.routing.base import RouteRequest
from gateway.routing.power_of_two import PowerOfTwo
from tests.gateway.routing.views import candidates, view

REQUEST = RouteRequest(1025, list(range(1, 65)))


def test_it_is_the_less_loaded_of_two_that_differ() -> None:
    policy = PowerOfTwo()
    views = [view(f"r{number}", waiting=number) for number in range(5)]
    choices = []
    for _ in range(2000):
        decision = policy.choose(REQUEST, candidates(*views), 0.0)
        drawn = [place for place in range(5) if decision.columns["drawn"][place]]
        assert len(drawn) == 2 and decision.place == drawn[0]
        choices.append(decision.place)
        policy.placed(REQUEST, decision, 0.0)
    # Of the ten pairs, place p is the lesser in 4 - p.
    assert choices.count(4) == 0
    for place in range(4):
        assert abs(choices.count(place) / 2000 - (4 - place) / 10) < 0.05


def test_one_replica_is_enough() -> None:
    assert PowerOfTwo().choose(REQUEST, candidates(view("a", waiting=9)), 0.0).choice == "a"
