from random import Random

import pytest

from gateway.routing.ladder import CAUSES, LOST_BELOW, Known, Ladder, climb
from gateway.routing.reason import Reason

ALL = Known(
    computed=1024,
    computed_without_credit=0,
    resident=1024,
    barrier="unavailable",
    usable=1024,
    chosen=1024,
    expected=1024,
    left_for=Reason.LOAD,
)


def steps(ladder: Ladder) -> tuple[int, ...]:
    return ladder.computed, ladder.resident, ladder.usable, ladder.chosen, ladder.delivered


@pytest.mark.parametrize(
    ("changes", "delivered", "losses"),
    [
        ({}, 1024, {}),
        ({"resident": 512, "usable": 512, "chosen": 512, "expected": 512}, 512, {"evicted": 512}),
        ({"usable": 256, "chosen": 256, "expected": 256}, 256, {"unavailable": 768}),
        ({"usable": 0, "chosen": 0, "expected": 0, "barrier": "draining"}, 0, {"draining": 1024}),
        ({"chosen": 192, "expected": 192}, 192, {"load": 832}),
        ({"chosen": 0, "expected": 0, "left_for": Reason.TIE}, 0, {"tie": 1024}),
        ({"chosen": 0, "expected": 0, "left_for": Reason.SPREAD}, 0, {"spread": 1024}),
        ({"chosen": 0, "expected": 0, "left_for": Reason.POLICY}, 0, {"policy": 1024}),
        ({}, 0, {"stale": 1024}),
        ({"chosen": 0, "expected": 1024}, 512, {"stale": 512}),
    ],
)
def test_each_loss_has_its_cause(changes: dict[str, object], delivered: int, losses: dict[str, int]) -> None:
    assert climb(ALL._replace(**changes), delivered).losses == losses  # type: ignore[arg-type]


def test_what_only_replicas_without_credit_computed_is_told_apart() -> None:
    known = ALL._replace(computed=256, computed_without_credit=1024, resident=0, usable=0, chosen=0, expected=0)
    assert climb(known, 0).losses == {"fingerprint": 768, "evicted": 256}


def test_a_cache_that_gives_more_than_was_known_of_shows_that_it_was_there() -> None:
    known = Known(0, 0, 0, "unavailable", 0, 0, 512, Reason.TIE)
    assert steps(climb(known, 512)) == (512,) * 5
    assert climb(known, 512).losses == {}


def test_what_was_only_expected_and_never_computed_is_no_loss() -> None:
    ladder = climb(Known(0, 0, 0, "unavailable", 0, 0, 512, Reason.TIE), 0)
    assert steps(ladder) == (0,) * 5
    assert (ladder.expected, ladder.losses) == (512, {})


@pytest.mark.parametrize("seed", range(5))
def test_losses_add_up_whatever_was_known(seed: int) -> None:
    print("seed", seed)
    rng = Random(seed)

    def number() -> int:
        return 16 * rng.choice((0, rng.randrange(65)))

    for _ in range(500):
        chosen = number()
        known = Known(
            computed=number(),
            computed_without_credit=number(),
            resident=number(),
            barrier=rng.choice(("draining", "unavailable")),
            usable=number(),
            chosen=chosen,
            expected=max(chosen, number()),
            left_for=rng.choice((Reason.LOAD, Reason.TIE, Reason.SPREAD, Reason.POLICY)),
        )
        ladder = climb(known, number())
        assert sum(ladder.losses.values()) == ladder.computed - ladder.delivered
        assert list(steps(ladder)) == sorted(steps(ladder), reverse=True)
        assert all(tokens > 0 for tokens in ladder.losses.values())
        assert ladder.losses.keys() <= set(CAUSES)
        for step, causes in LOST_BELOW.items():
            assert getattr(ladder, step) == ladder.delivered + sum(ladder.losses.get(cause, 0) for cause in causes)
