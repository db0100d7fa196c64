"""A simulation's result: a table for people, report.json for machines."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from loadtest.machine import machine, versions
from loadtest.simulate.simulate import SimulateResult

COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("hit", "hit", ".3f"),
    ("ttft_mean_s", "TTFT", ".3g"),
    ("ttft_p50_s", "p50", ".3g"),
    ("ttft_p90_s", "p90", ".3g"),
    ("ttft_p99_s", "p99", ".3g"),
    ("itl_mean_s", "ITL", ".3f"),
    ("e2e_mean_s", "e2e", ".3g"),
    ("work_max_over_mean", "work", ".2f"),
    ("output_max_over_mean", "out", ".2f"),
    ("failed", "failed", ".0f"),
)
"""Figure, heading, format."""


def as_json(results: Sequence[SimulateResult]) -> dict[str, Any]:
    """One result for each rate."""
    options, shape = results[0].options, results[0].shape
    return {
        "bench": "simulate",
        "simulated": True,
        "machine": machine(),
        "versions": versions(),
        "workload": options.workload_name,
        "seeds": options.seeds,
        "fleet": {
            "profile": asdict(shape.profile),
            "replicas": shape.replicas,
            "gateways": shape.gateways,
            "speeds": shape.speeds,
            "failures": shape.failures,
            "back_after_s": options.back_after,
            "digest_delay_s": shape.digest_delay,
            "intents_delay_s": shape.intents_delay,
            "latency_s": shape.latency,
            "order": shape.order,
            "eviction": options.eviction,
            "prefill_only": options.prefill_only,
        },
        "rates": [
            {
                "rate_scale": result.rate_scale,
                "limits": result.limits,
                "policies": {of_policy.policy: of_policy.as_dict() for of_policy in result.policies},
                "wall_s": result.wall_s,
            }
            for result in results
        ],
    }


def write_json(report: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))


def print_result(result: SimulateResult, console: Console) -> None:
    """Medians over the seeds, in seconds. TTFT: mean, then percentiles; work (prompt tokens computed) and out (tokens
    of answers): of the busiest replica over the mean."""
    shape, options = result.shape, result.options
    console.print(
        f"simulated: {options.workload_name} at rate x {result.rate_scale:g}, {shape.replicas} replicas of "
        f"{shape.profile.name} with {shape.profile.kv_tokens:,} KV tokens, {shape.gateways} gateways, "
        f"{options.seeds} seeds; {result.wall_s:.0f} s",
        highlight=False,
        soft_wrap=True,
    )
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("policy", no_wrap=True)
    for _, label, _ in COLUMNS:
        table.add_column(label, justify="right", no_wrap=True)
    for of_policy in result.policies:
        medians = of_policy.as_dict()["spread"]
        values = [(medians[figure]["median"], form) for figure, _, form in COLUMNS]
        cells = ["–" if value is None else format(value, form) for value, form in values]
        table.add_row(of_policy.policy, *cells)
    console.print(table)
    known = [f"{name} {value:.4g}" for name, value in result.limits.items() if value is not None]
    console.print("limits: " + ", ".join(known), highlight=False, soft_wrap=True)
