import json
from collections.abc import Sequence

import numpy as np
import pytest

from loadtest.client import RequestRecord
from loadtest.metrics import Figures, compare_figures, max_over_mean, median_figures, percentile, ratio, summarise


def record(
    sent: float, first: float, end: float, output: int = 11, replica: str = "a", **other: object
) -> RequestRecord:
    made = RequestRecord([], sent_s=sent, due_s=sent, first_token_s=first, end_s=end, output_tokens=output)
    made.replica, made.prompt_tokens, made.cached_tokens, made.predicted_tokens = replica, 100, 64, 80
    for name, value in other.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("values", [[5.0], [3, 1, 2], [0.5, 0.1, 0.9, 0.4, 0.4]])
def test_percentiles_are_numpys(values: Sequence[float]) -> None:
    for percent in (0, 1, 50, 90, 99, 100):
        assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)))


def test_nothing_measured_is_none_and_no_zero() -> None:
    assert percentile([], 50) is None
    assert ratio(1, 0) is None and ratio(None, 1) is None
    figures = summarise([], requests_planned=2, replicas=["a"], cached_limit=0)
    assert figures["ttft_p50_s"] is None and figures["throughput_tokens_per_s"] is None
    assert figures["requests_not_sent"] == 2


def test_figures_by_hand() -> None:
    records = [
        record(0.0, 1.0, 2.0),
        record(1.0, 3.0, 8.0, replica="b", turn=1),
        record(2.0, 2.5, 3.0, error="broken"),
    ]
    figures = summarise(records, requests_planned=4, replicas=["a", "b", "c"], cached_limit=160)
    assert figures["ttft_p50_s"] == 1.5
    assert figures["ttft_first_turn_p50_s"] == 1.0 and figures["ttft_later_turns_p50_s"] == 2.0
    assert figures["itl_mean_s"] == pytest.approx((0.1 + 0.5) / 2)
    assert figures["tps_mean"] == pytest.approx((10 + 2) / 2)
    assert figures["throughput_tokens_per_s"] == pytest.approx(22 / 8)
    assert (figures["prompt_tokens"], figures["prompt_tokens_computed"]) == (200, 72)
    assert (figures["cached_tokens_delivered"], figures["cached_tokens_predicted"]) == (128, 160)
    assert figures["cached_delivered_over_limit"] == pytest.approx(0.8)
    assert figures["output_tokens_by_replica"] == {"a": 11, "b": 11, "c": 0}
    assert figures["output_tokens_max_over_mean"] == pytest.approx(1.5)
    assert figures["requests_by_replica"] == {"a": 1, "b": 1, "c": 0}
    assert (figures["requests"], figures["requests_failed"], figures["requests_not_sent"]) == (3, 1, 1)
    json.dumps(figures, allow_nan=False)


def test_one_token_has_no_itl() -> None:
    figures = summarise([record(0, 1, 1, output=1)], requests_planned=1, replicas=[], cached_limit=0)
    assert figures["itl_mean_s"] is None and figures["ttft_p50_s"] == 1


def test_an_open_loop_counts_from_the_moment_a_request_was_due() -> None:
    assert record(5.0, 6.0, 7.0, due_s=3.0).ttft_s == 3.0


def test_medians_are_per_figure_and_per_replica() -> None:
    rounds: list[Figures] = [
        {"x": 1, "by": {"a": 1}},
        {"x": 9, "by": {"a": 3, "b": 4}},
        {"x": None, "by": {"a": 8, "b": 2}},
    ]
    assert median_figures(rounds) == {"x": 5, "by": {"a": 3, "b": 2}}


def test_ratios_are_taken_within_a_round() -> None:
    def rounds(*throughputs: float) -> list[dict[str, object]]:
        figures = summarise([record(0, 1, 2)], requests_planned=1, replicas=["a"], cached_limit=1)
        return [figures | {"throughput_tokens_per_s": value} for value in throughputs]

    ratios = compare_figures(rounds(20, 40, 300), rounds(10, 10, 100))
    assert ratios["throughput"] == 3
    assert ratios["ttft_p50"] == 1


def test_spread() -> None:
    assert max_over_mean([4, 0]) == 2
    assert max_over_mean([]) is None and max_over_mean([0, 0]) is None
