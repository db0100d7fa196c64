import pytest

from tests.gateway.routing.views import candidates, view


@pytest.mark.parametrize(
    ("reuse_tokens", "matched", "tokens", "cached"),
    [
        (16, 3, 100, 48),
        (16, 4, 64, 48),
        (32, 3, 100, 32),
        (32, 4, 64, 32),
        (32, 4, 65, 64),
        (24, 4, 100, 48),
        (1, 3, 100, 48),
        (0, 3, 100, 48),
        (784, 20, 1000, 0),
    ],
)
def test_only_whole_blocks_of_the_engine_are_reused(reuse_tokens: int, matched: int, tokens: int, cached: int) -> None:
    found = candidates(view("a", matched_blocks=matched, held_blocks=matched, reuse_tokens=reuse_tokens))
    assert found.cached_tokens(tokens).tolist() == found.held_tokens(tokens).tolist() == [cached]


def test_credit_is_what_experience_says() -> None:
    found = candidates(
        view("honest", matched_blocks=20),
        view("liar", matched_blocks=20, trust=0.25),
        view("behind", matched_blocks=20, unpromised=0.5),
        view("lost", unpromised=1.0),
    )
    assert found.credited_tokens(1025).tolist() == [320, 80, 320 + 352, 1024]
