from gateway.routing.base import RouteRequest
from gateway.routing.prefix_text import PrefixText
from tests.gateway.fakes import blocks
from tests.gateway.routing.views import View, candidates, placed_at, view

PATH = list(blocks(1, 8))


def choices(policy: PrefixText, hashes: list[int], *views: View) -> set[str]:
    seen = set()
    for seed in range(40):
        other = PrefixText(seed)
        other.history = policy.history
        seen.add(other.choose(RouteRequest(16 * len(hashes), hashes), candidates(*views), 0.0).choice)
    return seen


def knows(policy: PrefixText, replica: str, hashes: list[int]) -> None:
    policy.placed(RouteRequest(16 * len(hashes), hashes), placed_at(replica), 0.0)


def test_any_of_those_matched_deepest_whatever_the_load() -> None:
    policy = PrefixText()
    assert choices(policy, PATH, view("a"), view("b"), view("c")) == {"a", "b", "c"}
    for replica, count in (("a", 4), ("b", 6), ("c", 6)):
        knows(policy, replica, PATH[:count])
    assert choices(policy, PATH, view("a"), view("b", waiting=900), view("c")) == {"b", "c"}
    assert choices(policy, PATH[:4], view("a"), view("b", waiting=900), view("c")) == {"a", "b", "c"}


def test_a_chunk_is_two_blocks() -> None:
    policy = PrefixText()
    knows(policy, "a", PATH[:5])
    knows(policy, "b", PATH[:4])
    assert len(policy.history) == 3 + 2
    assert choices(policy, PATH, view("a"), view("b")) == {"a", "b"}
    assert choices(policy, PATH[:5], view("a"), view("b")) == {"a"}
