import pytest

from loadtest.client import RequestRecord
from loadtest.peers.errors import PeersError
from loadtest.peers.figures import Figures, figures_of_run, medians, over_best_peer
from loadtest.peers.fleet import Done, StepCost, parse_metrics


def record(ttft_s: float, error: str | None = None) -> RequestRecord:
    return RequestRecord(
        [], due_s=1.0, sent_s=1.0, first_token_s=1.0 + ttft_s, end_s=3.0 + ttft_s, prompt_tokens=100, output_tokens=5,
        cached_tokens=40, error=error,
    )  # fmt: skip


def test_a_run_by_its_records_and_what_replicas_did() -> None:
    done = [Done(10, 1.1, 150, 10, 2, 0.3), Done(10, 1.1, 50, 0, 0, 0)]
    records = [record(0.1), record(0.3), record(9.0, error="cut")]
    figures = figures_of_run(records, 4, done, router_cpu_s=0.5, cost=StepCost(0.1, 0.0005, 0.0125))
    assert figures == pytest.approx(
        {
            "ttft_mean_s": 0.2,
            "ttft_p50_s": 0.2,
            "ttft_p99_s": 0.298,
            "ttft_at_replica_mean_s": 0.15,
            "itl_mean_s": 0.5,
            "hit_share": 0.4,
            "work_max_over_mean": 160 / 105,
            "router_cpu_ms_per_request": 250.0,
            "step_over_profile": 1.0,
            "failed": 2.0,
        }
    )


def test_a_run_without_answers_has_only_failures() -> None:
    figures = figures_of_run([record(1, error="no")], 1, [Done(0, 0, 0, 0, 0, 0)], 0.0, None)
    assert figures == {"failed": 1.0}


def test_medians_skip_what_a_round_lacks_and_add_up_failures() -> None:
    rounds = [{"ttft_mean_s": 1.0, "failed": 1.0}, {"ttft_mean_s": 3.0, "failed": 2.0}, {"failed": 4.0}]
    assert medians(rounds) == {"ttft_mean_s": 2.0, "failed": 7.0}


def run(mean_s: float) -> Figures:
    return {
        "ttft_mean_s": mean_s,
        "ttft_p50_s": mean_s,
        "ttft_p99_s": 2 * mean_s,
        "ttft_at_replica_mean_s": mean_s,
        "failed": 0.0,
    }


def test_ours_is_compared_with_the_best_of_each_round() -> None:
    results = {
        ("a", "ours"): [run(1.0), run(3.0), run(4.0)],
        ("a", "p"): [run(2.0), run(2.0), run(9.0)],
        ("a", "q"): [run(4.0), run(1.0)],
        ("b", "ours"): [run(1.0)],
    }
    ratios = over_best_peer(results, "a", "ours", ["p", "q", "absent"])
    assert ratios == {name: pytest.approx((0.5 + 3.0) / 2) for name in ratios} and len(ratios) == 4
    assert over_best_peer(results, "b", "ours", ["p", "q"]) == {}


def test_a_replicas_metrics() -> None:
    page = """# HELP x
ryokan_replica_step_seconds_count 3.0
ryokan_replica_step_seconds_sum 1.5e-1
ryokan_replica_prefill_tokens_computed_total 100.0
ryokan_replica_generation_tokens_total 7.0
ryokan_replica_time_to_first_token_seconds_count 2.0
ryokan_replica_time_to_first_token_seconds_sum 0.5
"""
    done = parse_metrics(page)
    assert done == Done(3.0, 0.15, 100.0, 7.0, 2.0, 0.5)
    assert done.since(Done(1.0, 0.0, 40.0, 1.0, 1.0, 0.25)) == Done(2.0, 0.15, 60.0, 6.0, 1.0, 0.25)
    with pytest.raises(PeersError, match="step_seconds_sum"):
        parse_metrics(page.replace("step_seconds_sum", "step_seconds_bucket"))
