import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from gateway.routing.registry import POLICIES
from loadtest.routing_bench.cases import Case, cases, gateway_cases
from loadtest.routing_bench.run import RoutingBenchOptions, bench_routing
from loadtest.routing_bench.runs import Result, Run
from loadtest.routing_bench.suite import Found, SuiteOptions
from loadtest.simulate.simulate import SimulateOptions


def test_a_tiny_suite_gives_the_figures_of_made_up_workloads(tmp_path: Path) -> None:
    said = io.StringIO()
    suite = SuiteOptions(tmp_path, seeds=1, limit=6, policies=("ttft", "round_robin", "least_tokens"))
    bench_routing(RoutingBenchOptions(tmp_path, rounds=0, suite=suite), Console(file=said, width=100))
    *tables, last = said.getvalue().splitlines()
    figures = json.loads(last)["figures"]
    assert set(figures) == {
        *("worst_ratio_to_best", "geomean_gain_over_best_other", "geomean_p90_gain_over_best_other"),
        *("zero_reuse_over_least_tokens", "giant_prompt_imbalance"),
        *("four_gateways_hit_over_one", "four_gateways_p99_over_one"),
    }
    assert figures["worst_ratio_to_best"] > 0 and figures["giant_prompt_imbalance"] >= 1
    rows = [line for line in tables if line.startswith("| bursts")]
    assert len(rows) == 2 and all(row.count("|") == 3 + 3 for row in rows)


def test_names_tell_cases_apart_and_recorded_ones_are_known() -> None:
    every = [*cases(), *(case for pair in gateway_cases() for case in pair)]
    assert len({case.name for case in every}) == len(every)
    assert {case.options.workload for case in every if case.is_recorded} == {
        *("conversation", "synthetic", "taubench", "miniswe")
    }


def _result(mean: float | None, p90: float) -> Result:
    return {"ttft_mean_s": mean, "ttft_p90_s": p90, "hit": 0.5}


@pytest.fixture
def case() -> Case:
    return Case("made up", SimulateOptions("unique"))


def test_medians_are_over_the_seeds_that_there_are(case: Case) -> None:
    results = {Run(case, "ttft", seed): _result(mean, 1.0) for seed, mean in enumerate((1.0, 5.0, 2.0))}
    results[Run(case, "random", 0)] = _result(None, 1.0)
    found = Found(results, seeds=3)
    assert found.time(case, "ttft", "ttft_mean_s") == 2.0
    assert found.time(case, "random", "ttft_mean_s") == float("inf")


def test_only_ours_and_what_comes_close_in_mean_or_p90_is_worth_more_runs(case: Case) -> None:
    results = {Run(case, policy, 0): _result(9.0, 9.0) for policy in POLICIES}
    results[Run(case, "llmd", 0)] = _result(1.0, 2.0)
    results[Run(case, "lmetric", 0)] = _result(1.4, 9.0)
    results[Run(case, "session", 0)] = _result(8.0, 1.9)
    assert set(Found(results, 1).close(case, tuple(POLICIES))) == {"ttft", "llmd", "lmetric", "session"}
