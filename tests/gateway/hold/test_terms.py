"""What a request may say about its waiting."""

from math import inf

import pytest

from gateway.hold.terms import TIMEOUT, terms_of
from replica.protocol.openai import RequestError


def test_a_timeout_is_a_deadline_for_the_first_byte() -> None:
    assert terms_of({TIMEOUT: "2.5"}, 0, 100.0).deadline == 102.5
    assert terms_of({}, 0, 100.0).deadline == inf


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon", "", "1e999", "5s"])
def test_a_timeout_that_is_no_time_is_named(value: str) -> None:
    with pytest.raises(RequestError, match=TIMEOUT) as refused:
        terms_of({TIMEOUT: value}, 0, 0.0)
    assert refused.value.param == TIMEOUT


def test_priorities_beyond_the_classes_are_the_last_class() -> None:
    assert [terms_of({}, priority, 0.0).priority for priority in (-(1 << 40), -3, 0, 1 << 40)] == [-8, -3, 0, 8]
    assert terms_of({}, 0, 0.0, tenant="t").tenant == "t"
