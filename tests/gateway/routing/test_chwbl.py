from collections import Counter

from gateway.routing.base import RouteRequest
from gateway.routing.candidates import id_hash
from gateway.routing.chwbl import POINTS, Chwbl
from tests.gateway.fakes import blocks
from tests.gateway.routing.views import View, candidates, view

LOADED = [view(x, decoding=8) for x in "abcd"]


def choose(request: RouteRequest, *views: View, policy: Chwbl | None = None) -> str:
    return (policy or Chwbl()).choose(request, candidates(*views), 0.0).choice


def prompt(opening: int, question: int = 0) -> RouteRequest:
    return RouteRequest(1025, [*blocks(opening, 16), *blocks(1000 + question, 48)])


def mixed(value: int) -> int:
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31


def walk(key: int, names: list[str]) -> list[str]:
    """Replicas in the order of their first points from the key on: the ring written out."""
    points = [(mixed((id_hash(x) + n * 0x9E3779B97F4A7C15) % 2**64), x) for x in names for n in range(1, POINTS + 1)]
    ring = sorted((point, name) for point, name in points)
    turned = [name for point, name in ring if point >= key] + [name for point, name in ring if point < key]
    return list(dict.fromkeys(turned))


def test_it_is_the_first_on_the_ring_within_the_bound() -> None:
    for opening in range(30):
        first, second, third, _ = walk(prompt(opening).hashes[15], list("abcd"))
        assert choose(prompt(opening), *LOADED) == first
        # 39 in flight: the bound is 40 / 4 * 1.25 = 12.5, and 12 with the request itself.
        loads = {first: 12, second: 12, third: 11}
        views = [view(x, decoding=loads.get(x, 4)) for x in "abcd"]
        assert choose(prompt(opening), *views) == third
        loads[second] = 11
        views = [view(x, decoding=loads.get(x, 5)) for x in "abcd"]
        assert choose(prompt(opening), *views) == second


def test_with_few_requests_nobody_is_within_the_bound_and_the_first_takes_all() -> None:
    # 3 in flight: the bound is 4 / 8 * 1.25 < 1.
    names = list("abcdefgh")
    first = walk(prompt(1).hashes[15], names)[0]
    assert choose(prompt(1), *(view(x, decoding=3 * (x == first)) for x in names)) == first


def test_prompts_that_begin_alike_go_together_and_others_spread() -> None:
    counts = Counter(choose(prompt(opening), *LOADED) for opening in range(400))
    assert all(60 < counts[x] < 140 for x in "abcd"), counts
    assert {choose(prompt(1, question), *LOADED) for question in range(20)} == {choose(prompt(1), *LOADED)}


def test_a_replica_that_comes_or_goes_moves_its_own_keys_only() -> None:
    policy = Chwbl()
    before = [choose(prompt(opening), *LOADED, policy=policy) for opening in range(200)]
    fewer = [choose(prompt(opening), *LOADED[:3], policy=policy) for opening in range(200)]
    assert all(old in (new, "d") for old, new in zip(before, fewer, strict=True))
    more = [choose(prompt(opening), *LOADED, view("e", decoding=8), policy=policy) for opening in range(200)]
    assert all(new in (old, "e") for old, new in zip(before, more, strict=True))
    assert "e" in more


def test_what_the_ring_has_known_changes_nothing_and_is_bounded() -> None:
    policy = Chwbl()
    for number in range(30):
        choose(prompt(1), view(f"gone{number}"), view("a"), policy=policy)
        assert choose(prompt(number), *LOADED, policy=policy) == choose(prompt(number), *LOADED)
    assert policy._ring.known() <= 13
