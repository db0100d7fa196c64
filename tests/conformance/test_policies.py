"""What every routing policy promises."""

from random import Random

import pytest

from gateway.routing.base import RouteRequest
from gateway.routing.registry import POLICIES, UnknownPolicy, make_policy
from tests.gateway.fakes import blocks
from tests.gateway.routing.views import View, candidates, view

REQUEST = RouteRequest(1025, blocks(1, 64))

pytestmark = pytest.mark.parametrize("name", sorted(POLICIES))


def random_views(rng: Random, count: int) -> list[View]:
    return [
        view(
            f"r{number}",
            queue_tokens=rng.choice((0, rng.randrange(10_000))),
            waiting=rng.randrange(10),
            decoding=rng.randrange(50),
            active_blocks=rng.randrange(500),
            free_blocks=rng.randrange(500),
            trust=rng.random(),
            matched_blocks=rng.choice((0, rng.randrange(65))),
        )
        for number in range(count)
    ]


def test_it_has_the_name_it_is_registered_by(name: str) -> None:
    assert make_policy(name).name == name


@pytest.mark.parametrize("seed", range(5))
def test_it_chooses_a_candidate_and_explains_all(name: str, seed: int) -> None:
    print("seed", seed)
    rng = Random(seed)
    policy = make_policy(name)
    for _ in range(50):
        views = random_views(rng, rng.randrange(1, 20))
        decision = policy.choose(REQUEST, candidates(*views), 0.0)
        policy.placed(REQUEST, decision, 0.0)
        matched = {each.id: each.matched_blocks for each in views}
        assert decision.cached_tokens == 16 * matched[decision.choice]
        assert decision.policy == name
        assert decision.rows().keys() == matched.keys()
        assert all(isinstance(value, float) for row in decision.rows().values() for value in row.values())


def test_asking_changes_nothing(name: str) -> None:
    rng = Random(3)
    asked, silent = make_policy(name), make_policy(name)
    for _ in range(30):
        views = candidates(*random_views(rng, 8))
        asked.choose(RouteRequest(1025, blocks(rng.randrange(9), 64)), views, 0.0)
        first, second = (policy.choose(REQUEST, views, 0.0) for policy in (asked, silent))
        assert first.choice == second.choice
        for policy in (asked, silent):
            policy.placed(REQUEST, first, 0.0)


def test_equal_histories_give_equal_choices_in_any_order(name: str) -> None:
    print("seed", 7)
    rng = Random(7)
    first, second = make_policy(name), make_policy(name)
    for _ in range(50):
        views = random_views(rng, 8)
        shuffled = rng.sample(views, len(views))
        one, other = (
            first.choose(REQUEST, candidates(*views), 0.0),
            second.choose(REQUEST, candidates(*shuffled), 0.0),
        )
        assert one.choice == other.choice
        assert one.rows() == other.rows()
        first.placed(REQUEST, one, 0.0)
        second.placed(REQUEST, other, 0.0)


@pytest.mark.parametrize(
    "request_", [RouteRequest(1, []), RouteRequest(16, blocks(1, 1)), RouteRequest(100_000, blocks(1, 6250))]
)
def test_any_prompt_will_do(name: str, request_: RouteRequest) -> None:
    views = candidates(view("a", matched_blocks=len(request_.hashes)), view("b"))
    decision = make_policy(name).choose(request_, views, 0.0)
    assert 0 <= decision.cached_tokens < request_.tokens


@pytest.mark.parametrize(
    "changes",
    [
        {"total_blocks": 0, "free_blocks": 0},
        {"trust": 0.0},
        {"queue_tokens": 10**9},
    ],
)
def test_it_survives_odd_replicas(name: str, changes: dict[str, object]) -> None:
    for views in ([view("a", **changes)], [view("a", **changes), view("b")], [view(x, **changes) for x in "abc"]):
        assert make_policy(name).choose(REQUEST, candidates(*views), 0.0).choice in {each.id for each in views}


def test_ties_don_t_go_by_name_or_order(name: str) -> None:
    policy = make_policy(name)
    choices = []
    for number in range(200):
        request = RouteRequest(1025, blocks(number, 64))
        decision = policy.choose(request, candidates(*map(view, "abcd")), 0.0)
        choices.append(decision.choice)
        policy.placed(request, decision, 0.0)
    assert all(choices.count(x) >= 20 for x in "abcd")


def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(UnknownPolicy, match=name):
        make_policy(name + "x")
