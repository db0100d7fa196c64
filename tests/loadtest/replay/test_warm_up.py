import pytest

from loadtest.errors import CompareError
from loadtest.replay.warm_up import WarmUp, parse_warm_up


def test_seconds_or_a_share() -> None:
    assert parse_warm_up("20s") == WarmUp(seconds=20.0) and parse_warm_up("2.5%") == WarmUp(share=0.025)
    assert [WarmUp(seconds=20).is_over(0, at, 10) for at in (0.0, 19.9, 20.0)] == [False, False, True]
    assert [WarmUp(share=0.25).is_over(number, 0.0, 8) for number in (0, 1, 2)] == [False, False, True]


@pytest.mark.parametrize("text", ["", "20", "s", "-1s", "100%", "x%", "infs", "nans"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(CompareError, match="--warm-up"):
        parse_warm_up(text)
