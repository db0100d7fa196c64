"""What every routing policy promises."""

from dataclasses import replace
from random import Random

import pytest

from gateway.routing.base import ReplicaView, RouteRequest
from gateway.routing.registry import POLICIES, UnknownPolicy, make_policy
from replica.protocol.records import CostModel
from tests.gateway.fakes import COST, blocks

REQUEST = RouteRequest(1025, blocks(1, 64))

pytestmark = pytest.mark.parametrize("name", sorted(POLICIES))


def view(replica: str, **changes: object) -> ReplicaView:
    plain = ReplicaView(
        id=replica,
        epoch="e",
        queue_tokens=0,
        decoding=0,
        cost=COST,
        free_blocks=100,
        total_blocks=1000,
        max_context=4096,
        trust=1.0,
        reuse=0.5,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def random_views(rng: Random, count: int) -> list[ReplicaView]:
    return [
        view(
            f"r{number}",
            queue_tokens=rng.choice((0, rng.randrange(10_000))),
            decoding=rng.randrange(50),
            free_blocks=rng.randrange(1000),
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
        decision = policy.choose(REQUEST, views, 0.0)
        by_id = {each.id: each for each in views}
        assert decision.choice in by_id
        assert decision.cached_tokens == by_id[decision.choice].cached_tokens(REQUEST)
        assert decision.policy == name
        assert decision.terms.keys() == by_id.keys()
        assert all(isinstance(value, float) for row in decision.terms.values() for value in row.values())


def test_equal_histories_give_equal_choices_in_any_order(name: str) -> None:
    print("seed", 7)
    rng = Random(7)
    first, second = make_policy(name), make_policy(name)
    for _ in range(50):
        views = random_views(rng, 8)
        shuffled = rng.sample(views, len(views))
        assert first.choose(REQUEST, views, 0.0) == second.choose(REQUEST, shuffled, 0.0)


@pytest.mark.parametrize(
    "request_", [RouteRequest(1, []), RouteRequest(16, blocks(1, 1)), RouteRequest(100_000, blocks(1, 6250))]
)
def test_any_prompt_will_do(name: str, request_: RouteRequest) -> None:
    views = [view("a", matched_blocks=len(request_.hashes)), view("b")]
    decision = make_policy(name).choose(request_, views, 0.0)
    assert 0 <= decision.cached_tokens < request_.tokens


@pytest.mark.parametrize(
    "changes",
    [
        {"cost": CostModel(0, 0, 0, 0, 0)},
        {"cost": CostModel(0, 0, 0, 0, 512)},
        {"total_blocks": 0, "free_blocks": 0},
        {"trust": 0.0},
        {"queue_tokens": 10**9},
    ],
)
def test_it_survives_odd_replicas(name: str, changes: dict[str, object]) -> None:
    for views in ([view("a", **changes)], [view("a", **changes), view("b")], [view(x, **changes) for x in "abc"]):
        assert make_policy(name).choose(REQUEST, views, 0.0).choice in {each.id for each in views}


def test_ties_don_t_go_by_name_or_order(name: str) -> None:
    policy = make_policy(name)
    choices = [
        policy.choose(RouteRequest(1025, blocks(number, 64)), [view(x) for x in "abcd"], 0.0).choice
        for number in range(200)
    ]
    assert all(choices.count(x) >= 20 for x in "abcd")


def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(UnknownPolicy, match=name):
        make_policy(name + "x")
