from gateway.routing.base import RouteRequest
from gateway.routing.uniform import Uniform
from tests.gateway.routing.views import candidates, view


def test_neither_load_nor_cache_matters() -> None:
    policy, request = Uniform(), RouteRequest(1025, list(range(1, 65)))
    choices = []
    for _ in range(1000):
        decision = policy.choose(request, candidates(view("a", waiting=90), view("b", matched_blocks=64)), 0.0)
        policy.placed(request, decision, 0.0)
        choices.append(decision.choice)
    assert 430 < choices.count("a") < 570


def test_seeds_give_other_sequences() -> None:
    def sequence(seed: int) -> list[str]:
        policy, request, choices = Uniform(seed), RouteRequest(1, []), []
        for _ in range(20):
            decision = policy.choose(request, candidates(view("a"), view("b")), 0.0)
            choices.append(decision.choice)
            policy.placed(request, decision, 0.0)
        return choices

    assert sequence(1) == sequence(1) != sequence(2)
