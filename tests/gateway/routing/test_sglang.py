from gateway.routing.base import RouteRequest
from gateway.routing.sglang import Sglang, SglangLibrary
from tests.gateway.fakes import blocks
from tests.gateway.routing.views import View, candidates, placed_at, view

PATH = list(blocks(1, 64))


def choose(policy: Sglang, hashes: list[int], *views: View) -> str:
    return policy.choose(RouteRequest(16 * len(hashes), hashes), candidates(*views), 0.0).choice


def knows(policy: Sglang, replica: str, hashes: list[int], now: float = 0.0) -> Sglang:
    policy.placed(RouteRequest(16 * len(hashes), hashes), placed_at(replica), now)
    return policy


def test_a_match_above_the_threshold_goes_where_it_was_sent() -> None:
    # 20 of 64 blocks are 31 %: enough for the command line's 0.3, too little for the library's 0.5.
    views = view("a"), view("b", waiting=5)
    assert choose(knows(Sglang(), "b", PATH[:20]), PATH, *views) == "b"
    assert choose(knows(SglangLibrary(), "b", PATH[:20]), PATH, *views) == "a"
    assert choose(knows(SglangLibrary(), "b", PATH[:33]), PATH, *views) == "b"
    assert choose(knows(Sglang(), "b", PATH[:19]), PATH, *views) == "a"


def test_an_imbalanced_fleet_ignores_all_prefixes() -> None:
    # 64 and 1.5: both must be exceeded.
    policy = knows(Sglang(), "b", PATH)
    assert choose(policy, PATH, view("a"), view("b", decoding=64)) == "b"
    assert choose(policy, PATH, view("a"), view("b", decoding=65)) == "a"
    assert choose(policy, PATH, view("a", decoding=130), view("b", decoding=195)) == "b"
    assert choose(policy, PATH, view("a", decoding=130), view("b", decoding=196)) == "a"
    # The gate is the fleet's: another replica's load closes it for this one.
    assert choose(policy, PATH, view("a"), view("b", decoding=1), view("c", decoding=70)) == "a"


def test_a_miss_goes_to_the_fewest_requests_then_to_the_one_that_got_fewest_then_to_the_first() -> None:
    policy = Sglang()
    assert choose(policy, PATH, view("b"), view("a"), view("c", waiting=1)) == "a"
    knows(policy, "a", list(blocks(2, 8)))
    assert choose(policy, PATH, view("b"), view("a"), view("c", waiting=1)) == "b"


def test_the_tree_is_cut_at_intervals() -> None:
    # 10,000 characters are 156 blocks; cut at the first placement, and 30 s later.
    policy = knows(SglangLibrary(), "a", list(blocks(1, 400)))
    assert len(policy.history) == 156
    knows(policy, "a", list(blocks(2, 400)), now=29.0)
    assert len(policy.history) == 556
    knows(policy, "a", list(blocks(3, 1)), now=30.0)
    assert len(policy.history) == 156
