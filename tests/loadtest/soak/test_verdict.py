from dataclasses import replace

import pytest

from loadtest.soak.verdict import Ledger, Outcome, Sample, problems


def sample(at_s: float = 0.0, mib: float = 100.0, descriptors: int = 20, tasks: int = 5, threads: int = 8) -> Sample:
    return Sample(at_s, mib, descriptors, threads, tasks)


GOOD = Outcome(
    before=sample(),
    during=[sample(at, mib) for at, mib in enumerate((100, 190, 200, 205, 204, 206, 207, 208))],
    after=sample(mib=208, descriptors=50, tasks=8),
    answered=1000,
    left=100,
    broken=10,
    failed=5,
    in_flight=0.0,
    queue_tokens=0.0,
    ledgers={"r0": Ledger(0, 0, 0, 0), "r1": Ledger(0, 0, 0, 0)},
)


def test_a_good_end() -> None:
    assert problems(GOOD) == []
    assert GOOD.growth_mib == pytest.approx(207.5 - 202.5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"answered": 0, "failed": 0}, "not one"),
        ({"failed": 6}, "6 of 1006 requests failed"),
        ({"during": [sample(at, 100 + 15 * at) for at in range(8)]}, "memory grew by 60 MiB"),
        ({"after": sample(descriptors=53)}, "33 more descriptors"),
        ({"after": sample(tasks=10)}, "5 more tasks"),
        ({"after": sample(threads=13)}, "5 more threads"),
        ({"in_flight": 1.0}, "1 requests and 0 queued tokens"),
        ({"queue_tokens": 7.0}, "0 requests and 7 queued tokens"),
        ({"ledgers": {"r1": Ledger(0, 0, 0, 3)}}, "r1"),
        ({"ledgers": {"r1": Ledger(1, 0, 0, 0)}}, "r1"),
    ],
)
def test_a_problem_is_named(changes: dict[str, object], words: str) -> None:
    (found,) = problems(replace(GOOD, **changes))  # type: ignore[arg-type]
    assert words in found


def test_too_few_samples() -> None:
    with pytest.raises(ValueError, match="four"):
        problems(replace(GOOD, during=[sample()] * 3))
