from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.routing_bench.cases import Case
from loadtest.routing_bench.runs import Run, key, run_all
from loadtest.simulate.simulate import SimulateOptions

CASE = Case("unique", SimulateOptions("unique", limit=10))
RUN = Run(CASE, "round_robin", 0)


def test_a_key_changes_with_all_that_a_run_depends_on_and_with_nothing_else() -> None:
    before = key(RUN, "simulator", "policy")
    others = [
        key(RUN, "another", "policy"),
        key(RUN, "simulator", "another"),
        key(replace(RUN, seed=1), "simulator", "policy"),
        key(replace(RUN, policy="ttft"), "simulator", "policy"),
        key(replace(RUN, case=replace(CASE, with_limits=True)), "simulator", "policy"),
        key(replace(RUN, case=replace(CASE, options=replace(CASE.options, limit=11))), "simulator", "policy"),
        key(replace(RUN, case=replace(CASE, options=replace(CASE.options, rate_scale=2.0))), "simulator", "policy"),
    ]
    assert len({before, *others}) == len(others) + 1
    elsewhere = replace(CASE, name="renamed", options=replace(CASE.options, traces=Path("/elsewhere"), seeds=9))
    assert key(replace(RUN, case=elsewhere), "simulator", "policy") == before


def test_what_was_run_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = run_all([RUN], None, tmp_path, jobs=1)
    assert first[RUN]["requests"] == 10
    assert "1/1 unique, seed 0: round_robin" in capsys.readouterr().err
    second = replace(RUN, policy="ttft")
    both = run_all([RUN, second], None, tmp_path, jobs=1)
    assert both[RUN] == first[RUN]
    assert "1/1 unique, seed 0: ttft" in capsys.readouterr().err
    assert len(list(tmp_path.iterdir())) == 2


def test_limits_are_kept_with_a_run_that_asks_for_them(tmp_path: Path) -> None:
    limited = replace(RUN, case=replace(CASE, with_limits=True))
    result = run_all([limited], None, tmp_path, jobs=1)[limited]
    assert result["hit_lru_pool"] == 0 and (result["ttft_mean_bound_s"] or 0) > 0
