import pytest

import gateway.routing.preble as module
from gateway.routing.base import RouteRequest
from gateway.routing.preble import Preble
from replica.protocol.records import CostModel
from tests.gateway.fakes import blocks
from tests.gateway.routing.views import View, candidates, placed_at, view

COST = CostModel(c0=0.0, c_lin=1e-3, c_att=0.0, c_dec=1e-3, max_step_tokens=512)
PATH = list(blocks(1, 60))


def at(replica: str, **changes: object) -> View:
    return view(replica, cost=COST, **changes)


def request(hashes: list[int]) -> RouteRequest:
    return RouteRequest(16 * len(hashes), hashes)


def choose(policy: Preble, hashes: list[int], *views: View, now: float = 0.0) -> str:
    return policy.choose(request(hashes), candidates(*views), now).choice


def test_more_than_half_cached_is_exploited_and_half_is_not() -> None:
    policy = Preble()
    policy.placed(request(PATH[:31]), placed_at("b"), 0.0)
    # Load: 496 tokens in the window for 0.496 s, and 10 decodes of 45 tokens at 10 ms a step for 4.5 s.
    views = at("a"), at("b", decoding=10)
    assert choose(policy, PATH, *views) == "b"
    assert choose(policy, [*PATH[:31], *blocks(2, 31)], *views) == "a"


def test_of_those_sent_the_most_the_least_loaded_wins() -> None:
    policy = Preble()
    for replica, count in (("a", 60), ("b", 60), ("c", 40)):
        policy.placed(request(PATH[:count]), placed_at(replica), 0.0)
    assert choose(policy, PATH, at("a", decoding=2), at("b", decoding=1), at("c")) == "b"


def test_exploring_adds_load_eviction_and_prefill() -> None:
    policy = Preble()
    policy.placed(request(PATH[:20]), placed_at("a"), 0.0)
    views = at("a"), at("b", decoding=2), at("c", free_blocks=50, reuse=0.5)
    decision = policy.choose(request(PATH), candidates(*views), 0.0)
    rows = decision.rows()
    # a: 320 tokens were sent there, and 640 of 960 are left.
    assert (rows["a"]["load_s"], rows["a"]["prefill_s"]) == pytest.approx((0.32, 0.64))
    # b: 2 decodes * 45 tokens * 2 ms.
    assert (rows["b"]["load_s"], rows["b"]["prefill_s"]) == pytest.approx((0.18, 0.96))
    # c: 10 blocks go, half of them would have been used.
    assert rows["c"]["eviction_s"] == pytest.approx(10 * 16 * 1e-3 * 0.5)
    assert [rows[x]["cost"] for x in "abc"] == pytest.approx([0.96, 1.14, 1.04])
    assert decision.choice == "a"


def test_load_is_forgotten_after_three_minutes() -> None:
    policy = Preble()
    policy.placed(request(PATH), placed_at("a"), 0.0)
    policy.placed(request(list(blocks(2, 10))), placed_at("a"), 100.0)
    for now, seconds in ((179.0, 1.12), (181.0, 0.16), (281.0, 0.0)):
        decision = policy.choose(request(PATH), candidates(at("a")), now)
        assert decision.rows()["a"]["load_s"] == pytest.approx(seconds)
    policy.placed(request(list(blocks(3, 10))), placed_at("b"), 300.0)
    assert policy._tokens == {"b": 160} and len(policy._window) == 1


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WINDOW", 5)
    policy = Preble()
    for _ in range(7):
        policy.placed(request(PATH), placed_at("again"), 0.0)
    for number in range(20):
        policy.placed(request(list(blocks(number, 10))), placed_at(f"r{number}"), 0.0)
    assert len(policy._window) == 5
    assert policy._tokens == {f"r{number}": 160 for number in range(15, 20)}
