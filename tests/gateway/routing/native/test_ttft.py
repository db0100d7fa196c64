"""`ttft` in C++ beside `ttft` in numpy."""

from random import Random

import numpy as np
import pytest

from gateway.routing.base import Decision, RouteRequest
from gateway.routing.native.ttft import NativeTerms
from gateway.routing.ttft import Ttft
from gateway.routing.wait import predicted_ttft_s
from tests.gateway.fakes import blocks
from tests.gateway.routing.native.fleets import both, random_fleet, random_request
from tests.gateway.routing.views import view


def assert_alike(native: Decision, plain: Decision) -> None:
    assert isinstance(native.columns, NativeTerms) and not isinstance(plain.columns, NativeTerms)
    assert set(native.columns) == set(plain.columns)
    for name, column in plain.columns.items():
        np.testing.assert_allclose(native.columns[name], column, rtol=1e-9, atol=1e-15, err_msg=name)
    np.testing.assert_allclose(native.cost, plain.cost, rtol=1e-9)
    assert native.choice == plain.choice
    assert (native.cached_tokens, native.held_tokens) == (plain.cached_tokens, plain.held_tokens)
    mine, other = predicted_ttft_s(native), predicted_ttft_s(plain)
    assert mine is not None and other is not None
    assert mine == pytest.approx(other, rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_terms_and_choices_are_those_of_numpy(seed: int) -> None:
    """What each remembers of the requests before is part of it."""
    print("seed", seed)
    rng = Random(seed)
    native, plain = Ttft(), Ttft()
    now = 0.0
    for _ in range(60):
        now += rng.random()
        request = random_request(rng)
        fast, slow = both(random_fleet(rng, request))
        mine, other = native.choose(request, fast, now), plain.choose(request, slow, now)
        assert_alike(mine, other)
        native.placed(request, mine, now)
        plain.placed(request, other, now)


def test_equals_are_told_apart_by_the_same_hash() -> None:
    for number in range(100):
        request = RouteRequest(1025, blocks(number, 64))
        fast, slow = both([view(name) for name in "abcdefgh"])
        assert_alike(Ttft().choose(request, fast, 0.0), Ttft().choose(request, slow, 0.0))


def test_a_prompt_of_one_token_on_one_replica() -> None:
    fast, slow = both([view("a")])
    request = RouteRequest(1, [])
    assert_alike(Ttft().choose(request, fast, 0.0), Ttft().choose(request, slow, 0.0))
