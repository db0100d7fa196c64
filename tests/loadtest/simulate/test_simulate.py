"""The command: what it writes, and what it says to wrong flags."""

from collections import Counter
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from deploy.cli import app
from loadtest.simulate.catalogue import find_kind
from loadtest.simulate.ladder import climb
from loadtest.simulate.shapes import SHAPES
from loadtest.simulate.simulate import SimulateOptions, fleet_shape, simulate
from loadtest.simulate.workload import Setting
from replica.config import Order


@pytest.mark.parametrize("name", SHAPES)
def test_made_up_workloads_run_and_depend_on_the_seed_alone(name: str) -> None:
    setting = Setting(seed=3, rate_scale=1.0, replicas=2, kv_tokens=307_328, limit=40)
    first, again = (SHAPES[name].make(setting) for _ in range(2))
    assert first.requests == again.requests
    assert len(first.requests) == 40
    result = simulate(SimulateOptions(name, policies=("ttft",), seeds=1, replicas=2, limit=40))
    assert (result.policies[0].runs[0].requests, result.policies[0].runs[0].failed) == (40, 0)


def test_round_robin_gives_each_replica_as_many(tmp_path: Path) -> None:
    options = SimulateOptions("unique", policies=("round_robin",), seeds=1, replicas=4, limit=200)
    run = simulate(options).policies[0].runs[0]
    assert run.hit == 0
    assert run.output_max_over_mean == 1


def test_what_a_replica_evicts_first_can_be_chosen() -> None:
    hits = {}
    for eviction in ("lru", "learned", "none"):
        options = SimulateOptions("bursts", policies=("ttft",), seeds=1, replicas=2, limit=60, eviction=eviction)
        run = simulate(options).policies[0].runs[0]
        assert run.failed == 0
        hits[eviction] = run.hit or 0.0
    assert hits["none"] == 0 < min(hits["lru"], hits["learned"])


@pytest.mark.parametrize(
    ("prefill_only", "asked", "order"),
    [(False, None, "shortest"), (True, None, "fcfs"), (True, "shortest", "shortest"), (False, "lpm", "lpm")],
)
def test_prompts_are_taken_by_arrival_only_where_the_first_token_is_all(
    prefill_only: bool, asked: str | None, order: str
) -> None:
    options = SimulateOptions("unique", prefill_only=prefill_only, order=Order(asked) if asked else None)
    assert fleet_shape(options, find_kind("unique")).order == order


def test_a_ladder_shows_where_it_gets_too_much() -> None:
    options = SimulateOptions("unique", policies=("least_tokens",), seeds=1, replicas=2, limit=150)
    results = climb(options, (0.5, 40.0))
    p90s = [result.policies[0].runs[0].ttft_p90_s for result in results]
    assert p90s[0] is not None and p90s[1] is not None and p90s[1] > 3 * p90s[0]


def test_the_command_writes_a_table_and_a_report(tmp_path: Path) -> None:
    arguments = ["simulate", "--workload", "bursts", "--limit", "64", "--seeds", "2", "--policies", "ttft,round_robin"]
    done = CliRunner().invoke(app, [*arguments, "--gateways", "2", "--speeds", "1,2", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    report = orjson.loads((tmp_path / "report.json").read_bytes())
    policies = report["rates"][0]["policies"]
    assert Counter({name: len(of_policy["runs"]) for name, of_policy in policies.items()}) == {
        "ttft": 2,
        "round_robin": 2,
    }
    assert "round_robin" in done.output and "hit_belady" in done.output


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workload", "x"], "--workload: unknown"),
        (["--policies", "x"], "--policies: unknown"),
        (["--profile", "x"], "--profile: unknown"),
        (["--eviction", "x"], "--eviction: 'x' is none of"),
        (["--order", "x"], "--order: 'x' is none of"),
        (["--speeds", "1,a"], "--speeds: '1,a' is no list"),
        (["--speeds", "0"], "--speeds: '0' must be more than 0"),
        (["--rate-scale", "-1"], "--rate-scale: '-1' must be"),
        (["--fail", "3"], "--fail: '3' isn't REPLICA@SECONDS"),
        (["--fail", "99@1"], "--fail: there is no replica 99"),
        (["--kv-tokens", "2048"], "--kv-tokens: 2048 are too few"),
        (["--policies", ","], "--policies: there is none"),
    ],
)
def test_each_error_names_its_flag(flags: list[str], message: str, tmp_path: Path) -> None:
    arguments = ["simulate", "--workload", "bursts", "--limit", "64", "--seeds", "1", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, [*arguments, *flags])
    assert done.exit_code == 1
    assert message in done.output
