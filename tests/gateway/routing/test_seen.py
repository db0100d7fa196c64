import resource
from random import Random

import pytest

from gateway.routing.native.library import Library, load_library
from gateway.routing.seen import SeenBlocks
from tests.gateway.fakes import blocks


@pytest.fixture(params=["native", "numpy"])
def library(request: pytest.FixtureRequest) -> Library | None:
    return load_library() if request.param == "native" else None


def test_it_knows_what_was_computed_and_how_far(library: Library | None) -> None:
    seen = SeenBlocks(1 << 12, library)
    path, other = list(blocks(1, 64)), list(blocks(2, 64))
    assert seen.depth(path) == 0
    seen.add(path[:40])
    assert seen.depth(path) == 40
    assert seen.depth(path[:10]) == 10
    assert seen.depth([*path[:20], *other]) == 20
    assert seen.depth(other) == 0
    assert seen.depth([]) == 0


def test_it_forgets_old_blocks_at_the_rate_that_it_says(library: Library | None) -> None:
    print("seed", 5)
    rng = Random(5)
    places = 1 << 12
    seen = SeenBlocks(places, library)
    old = [rng.getrandbits(64) for _ in range(1000)]
    seen.add(old)
    for _ in range(places):
        seen.add([rng.getrandbits(64)])
    kept = sum(seen.depth([block]) for block in old)
    # exp(-1) of those that were there, and some of the 1,000 had fallen on each other.
    assert 250 < kept < 420


def test_a_hole_in_the_middle_costs_nothing(library: Library | None) -> None:
    seen = SeenBlocks(1 << 12, library)
    path = list(blocks(1, 64))
    seen.add(path)
    seen.add([path[10] ^ (1 << 40)])
    assert seen.depth(path[:11]) == 10
    assert seen.depth(path) == 64


def test_both_remember_the_same() -> None:
    print("seed", 6)
    rng = Random(6)
    native, plain = SeenBlocks(1 << 8, load_library()), SeenBlocks(1 << 8)
    for _ in range(300):
        path = list(blocks(rng.randrange(20), rng.randrange(200)))
        if rng.random() < 0.3:
            native.add(path)
            plain.add(path)
        assert native.depth(path) == plain.depth(path)


def test_what_was_touched_has_its_pages() -> None:
    """New pages cost the first prompts milliseconds."""
    seen = SeenBlocks()
    seen.touch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    seen._marks[::1024] = 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 5
