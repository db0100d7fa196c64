"""The result: a table for people, one line of JSON for machines."""

from dataclasses import dataclass
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table

GOALS = {
    "gib_per_10m_blocks": "<= 1.12 (1.2 GB)",
    "match_128_us": "<= 30",
    "match_6250_us": "<= 150",
    "apply_blocks_per_s": ">= 500000",
    "longest_load_ms": "<= 2",
    "longest_sweep_ms": "<= 2",
    "churn_growth_mib": "near 0",
    "join_100x50k_s": "<= 10",
    "join_snapshots_a_replica": "1",
    "join_loop_held_ms": "<= 2, and others' turns",
    "join_loop_held_p999_ms": "<= 2, and others' turns",
    "join_loop_held_cpu_ms": "<= 2",
    "apply_loop_held_ms": "<= 2, and others' turns",
    "apply_loop_held_p999_ms": "<= 2, and others' turns",
    "apply_loop_held_cpu_ms": "<= 2",
    "slow_redis_added_p99_ms": "< 10",
    "no_redis_added_p99_ms": "< 10",
    "redis_snapshot_bytes_per_block": "<= 12",
}


@dataclass(frozen=True, slots=True)
class IndexReport:
    machine: dict[str, str | int | float]
    versions: dict[str, str]
    rounds: int
    figures: dict[str, float]
    """Of the native index; `plain_…` of the plain one."""

    def to_json(self) -> bytes:
        figures = {name: float(f"{value:.4g}") for name, value in self.figures.items()}
        head = {"bench": "index", "machine": self.machine, "versions": self.versions, "rounds": self.rounds}
        return orjson.dumps(head | {"figures": figures})


def publish(report: IndexReport, out_dir: Path, console: Console) -> None:
    """The JSON is the last line on stdout, and `index.json` in `out_dir`."""
    out_dir.mkdir(parents=True, exist_ok=True)
    (out_dir / "index.json").write_bytes(report.to_json() + b"\n")
    table = Table(title=f"the index, medians of {report.rounds} rounds")
    for heading in ("figure", "native", "plain", "goal"):
        table.add_column(heading, justify="left" if heading == "figure" else "right")
    for name, value in report.figures.items():
        if not name.startswith("plain_"):
            plain = report.figures.get(f"plain_{name}")
            table.add_row(name, f"{value:.4g}", "" if plain is None else f"{plain:.4g}", GOALS.get(name, ""))
    console.print(table)
    # Not through rich, which would wrap it.
    console.file.write(report.to_json().decode() + "\n")
