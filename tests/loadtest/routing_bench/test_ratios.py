import math

import pytest

from loadtest.routing_bench.ratios import gains, geometric_mean, over_best_other, ratio, worst

MEANS = {
    "easy": {"ttft": 1.0, "llmd": 2.0, "session": 4.0},
    "hard": {"ttft": 3.0, "llmd": 4.0, "session": 2.5},
}
P90S = {"easy": {"ttft": 2.2, "llmd": 2.0, "session": 9.0}}


def test_every_time_is_over_the_best_of_the_others() -> None:
    assert over_best_other(MEANS["easy"]) == {"ttft": 0.5, "llmd": 1.0, "session": 2.0}
    assert over_best_other(MEANS["hard"]) == {"ttft": 1.2, "llmd": 1.6, "session": 1.0}


def test_the_worst_is_found_over_all_tables_with_who_was_better() -> None:
    found = worst(MEANS, P90S)
    assert (found.ratio, found.workload, found.best) == (1.2, "hard", "session")
    found = worst({"easy": MEANS["easy"]}, P90S)
    assert found.ratio == pytest.approx(1.1) and (found.workload, found.best) == ("easy", "llmd")


def test_a_gain_is_over_the_geometric_mean_of_workloads() -> None:
    found = gains(MEANS)
    assert set(found) == {"llmd", "session"}
    assert found["llmd"] == pytest.approx(math.sqrt(2 * 4 / 3) - 1)
    assert found["session"] == pytest.approx(math.sqrt(4 * 2.5 / 3) - 1)


def test_geometric_mean() -> None:
    assert geometric_mean([1, 2, 4]) == pytest.approx(2)
    assert geometric_mean([0, 5]) == 0
    assert geometric_mean([5, math.inf]) == math.inf


def test_what_never_ended_is_worse_than_all_that_did() -> None:
    assert ratio(math.inf, 2.0) == math.inf
    assert ratio(math.inf, math.inf) == ratio(0.0, 0.0) == 1.0
    assert ratio(1.0, 0.0) == math.inf
