"""The result: a table for people, one line of JSON for machines."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from loadtest.engine_bench.cases import COMPARED
from loadtest.engine_bench.figures import PEERS, Samples

_UNITS = {"s": "s", "us": "µs", "ms": "ms", "mib": "MiB", "tokens": "tokens"}


@dataclass(frozen=True, slots=True)
class EngineReport:
    machine: dict[str, str | int | float]
    versions: dict[str, str]
    rounds: int
    clock: str
    """wall, or cpu: of all but the replica process's figures."""
    figures: dict[str, float]
    absent: dict[str, str]
    """Contenders that took no part, and why."""

    def to_json(self) -> bytes:
        body: dict[str, Any] = {"bench": "engine", "machine": self.machine, "versions": self.versions}
        figures = {name: float(f"{value:.4g}") for name, value in self.figures.items()}
        return orjson.dumps(
            body | {"rounds": self.rounds, "clock": self.clock, "absent": self.absent, "figures": figures}
        )


def publish(report: EngineReport, samples: Samples, out_dir: Path, console: Console) -> None:
    """The JSON is the last line on stdout, and `engine.json` in `out_dir`."""
    out_dir.mkdir(parents=True, exist_ok=True)
    (out_dir / "engine.json").write_bytes(report.to_json() + b"\n")
    _print_rates(report, samples, console)
    _print_figures(report, console)
    # Not through rich, which would wrap it.
    console.file.write(report.to_json().decode() + "\n")


def _print_rates(report: EngineReport, samples: Samples, console: Console) -> None:
    fp32 = any(key[1] == "ours_fp32" for key in samples.rounds)
    others = (*(("ours_fp32",) if fp32 else ()), *PEERS)
    seconds = "tokens/s" if report.clock == "wall" else "tokens per CPU second"
    table = Table(title=f"{seconds} on one core, median of {report.rounds} rounds (ours is so many times as fast)")
    table.add_column("case")
    for name in ("ours", *others):
        table.add_column(name, justify="right")
    for case in COMPARED:
        ours = samples.median(case.name, "ours")
        if ours is not None:
            cells = [_cell(samples, case.name, name) if name in case.contenders else "" for name in others]
            table.add_row(case.name, f"{ours:.1f}", *cells)
    if not table.row_count:
        return
    console.print(table)
    for name, reason in report.absent.items():
        console.print(f"{name}: {reason}", highlight=False, markup=False, soft_wrap=True)


def _cell(samples: Samples, case: str, peer: str) -> str:
    rate, ratio = samples.median(case, peer), samples.ratio(case, peer)
    return "-" if rate is None or ratio is None else f"{rate:.1f} ({ratio:.2f} x)"


def _print_figures(report: EngineReport, console: Console) -> None:
    table = Table(title="our engine by itself")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in report.figures.items():
        if "_x_" not in name and not name.endswith("tokens_per_s"):
            table.add_row(name, f"{value:.4g} {_UNITS.get(name.rpartition('_')[2], '')}".strip())
    if table.row_count:
        console.print(table)
