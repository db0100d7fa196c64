from random import Random

import pytest

from gateway.routing.base import RouteRequest
from gateway.routing.survey import Quickest, Survey, survey, wait_with
from tests.gateway.fakes import COST, blocks
from tests.gateway.routing.native.fleets import both, random_fleet, random_request
from tests.gateway.routing.views import candidates, view

REQUEST = RouteRequest(1025, blocks(1, 64))


def test_who_had_more_and_who_was_quicker() -> None:
    fleet = candidates(
        view("a", matched_blocks=32, held_blocks=8),
        view("b", matched_blocks=64, queue_tokens=9000),
        view("c", matched_blocks=64, queue_tokens=900, held_blocks=9),
    )
    found = survey(REQUEST.tokens, fleet, 0)
    assert (found.my_cached, found.most_cached, found.most_held) == (512, 1024, 144)
    assert (found.with_most_cached, found.with_most_held, found.other) == (2, 2, 2)
    assert found.mine_s == pytest.approx(COST.prefill_s(1025, 512))
    assert survey(REQUEST.tokens, fleet, 2).quickest_other == Quickest(0, found.mine_s)


def test_alone_there_is_no_other() -> None:
    assert survey(REQUEST.tokens, candidates(view("a")), 0).quickest_other == Quickest(-1, float("inf"))


@pytest.mark.parametrize("seed", range(10))
def test_native_and_numpy_see_the_same(seed: int) -> None:
    print("seed", seed)
    rng = Random(seed)
    for _ in range(100):
        request = random_request(rng)
        views = random_fleet(rng, request)
        native, plain = both(views)
        place = rng.randrange(len(views))
        mine, other = survey(request.tokens, native, place), survey(request.tokens, plain, place)
        assert (mine.most_cached, mine.my_cached, mine.most_held) == (
            *(other.most_cached, other.my_cached, other.most_held),
        )
        assert mine.mine_s == pytest.approx(other.mine_s, rel=1e-9)
        assert mine.my_credited == pytest.approx(other.my_credited, rel=1e-9)
        assert wait_with(request.tokens, native, place, mine.my_credited) == mine.mine_s
        for one, another in zip(quickest(mine), quickest(other), strict=True):
            assert one.place == another.place
            assert one.wait_s == pytest.approx(another.wait_s, rel=1e-9)
        cached = rng.randrange(request.tokens)
        expected = wait_with(request.tokens, plain, place, cached)
        assert wait_with(request.tokens, native, place, cached) == pytest.approx(expected, rel=1e-9)


def quickest(found: Survey) -> list[Quickest]:
    return [found.quickest_with_most_cached, found.quickest_with_most_held, found.quickest_other]
