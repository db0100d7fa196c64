import math

import pytest

from loadtest.engine_bench.figures import Samples, figures_of, perplexity, rotated


def rates(**rounds: list[float]) -> Samples:
    samples = Samples()
    for contender, values in rounds.items():
        for value in values:
            samples.add("decode_b8", contender, {"rate": value})
    return samples


def test_a_ratio_is_taken_within_each_round() -> None:
    samples = rates(ours=[100, 10, 60], transformers=[10, 2, 10])
    assert samples.ratio("decode_b8", "transformers") == 6
    assert samples.median("decode_b8", "ours") == 60


def test_figures_name_the_case_and_the_peer_and_leave_out_who_is_absent() -> None:
    figures = figures_of(rates(ours=[100, 90, 80], transformers=[10, 10, 10]))
    assert figures == {"decode_b8_x_transformers": 9, "decode_b8_tokens_per_s": 90}


def test_our_own_figures_are_medians() -> None:
    samples = Samples()
    for over_cold, computed in ((0.05, 1450), (0.07, 1450), (0.06, 1500)):
        samples.add("ttft_cached", "ours", {"over_cold": over_cold, "seconds": 0.1})
        samples.add("agents50", "ours", {"rate": 500, "computed": computed})
    figures = figures_of(samples)
    assert figures["ttft_cached_over_cold"] == 0.06
    assert figures["agents50_shared_prefix_computed_tokens"] == 1450


def test_one_that_failed_is_dropped_whole() -> None:
    samples = rates(ours=[100, 90], transformers=[10])
    samples.drop("transformers")
    assert samples.ratio("decode_b8", "transformers") is None
    assert samples.median("decode_b8", "ours") == 95


def test_nobody_always_goes_first() -> None:
    assert [rotated("abc", by)[0] for by in range(4)] == ["a", "b", "c", "a"]
    assert sorted(rotated("abc", 2)) == ["a", "b", "c"]
    assert rotated([], 3) == []


def test_perplexity_of_a_fair_coin() -> None:
    assert perplexity(10 * math.log(2), 10) == pytest.approx(2)
