"""The result: a table for people, one line of JSON for machines."""

from dataclasses import dataclass
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table

GOALS = {64: 150, 1000: 1000}
"""Microseconds, of the 99th percentile."""

_FIGURES = {"p50_us": "p50", "p99_us": "p99", "p99_cpu_us": "p99 cpu"}


@dataclass(frozen=True, slots=True)
class RoutingReport:
    machine: dict[str, str | int | float]
    versions: dict[str, str]
    rounds: int
    replicas: tuple[int, ...]
    figures: dict[str, float]
    """`POLICY_REPLICAS_p99_us` and the like; `decide_…` are those of our own policy."""

    def to_json(self) -> bytes:
        figures = {name: float(f"{value:.4g}") for name, value in self.figures.items()}
        head = {"bench": "routing", "machine": self.machine, "versions": self.versions, "rounds": self.rounds}
        return orjson.dumps(head | {"figures": figures})


def publish(report: RoutingReport, out_dir: Path, console: Console) -> None:
    """The JSON is the last line on stdout, and `routing.json` in `out_dir`."""
    out_dir.mkdir(parents=True, exist_ok=True)
    (out_dir / "routing.json").write_bytes(report.to_json() + b"\n")
    # Not through rich, which would wrap it.
    console.file.write(report.to_json().decode() + "\n")


def print_times(report: RoutingReport, console: Console) -> None:
    """Of decisions."""
    table = Table(title=f"one decision in µs, medians of {report.rounds} rounds")
    table.add_column("policy", no_wrap=True)
    for replicas in report.replicas:
        for figure, heading in _FIGURES.items():
            goal = f"≤ {GOALS[replicas]}" if replicas in GOALS and figure != "p50_us" else ""
            table.add_column(f"{replicas}\n{heading}\n{goal}", justify="right")
    suffix = f"_{report.replicas[0]}_p50_us"
    for policy in [name.removesuffix(suffix) for name in report.figures if name.endswith(suffix)]:
        if policy != "decide":
            cells = [f"{policy}_{replicas}_{figure}" for replicas in report.replicas for figure in _FIGURES]
            table.add_row(policy, *(f"{report.figures[cell]:.0f}" for cell in cells))
    console.print(table)
