"""The result: a table a load for people, one line of JSON for machines."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from loadtest.gateway_bench.figures import Figures, added_ms, headline, medians
from loadtest.gateway_bench.loads import LOADS

GOALS = {
    "cpu_per_request_x_aiohttp": "<= 0.5",
    "cpu_per_request_8k_x_aiohttp": "<= 0.5",
    "cpu_per_request_x_sglang": "<= 1.0",
    "cpu_per_request_8k_x_sglang": "<= 1.0",
    "cpu_per_chunk_x_sglang": "<= 0.7",
    "added_ttft_64_x_nginx": "<= 4",
    "added_ttft_1_x_nginx": "<= 3",
    "gib_per_50k_streams": "<= 1.2",
    "gib_per_50k_idle": "<= 1.2",
    "distinct_prompts_growth_mib": "<= 50",
    "distinct_prompts_growth_after_mib": "near 0",
}
_COLUMNS = {
    "cpu_ms_per_request": "CPU ms/request",
    "cpu_s_per_10k_chunks": "CPU s/10,000 chunks",
    "answered_per_s": "answers/s",
    "first_p50_ms": "TTFT p50 ms",
    "first_p99_ms": "p99",
    "failed": "failed",
}


@dataclass(slots=True)
class GatewayReport:
    machine: dict[str, str | int | float]
    versions: dict[str, str]
    settings: dict[str, Any]
    absent: dict[str, str]
    """Proxies that took no part, and why."""
    runs: dict[tuple[str, str], list[Figures]] = field(default_factory=dict)
    memory: Figures = field(default_factory=dict)

    def add(self, load: str, proxy: str, figures: Figures) -> None:
        self.runs.setdefault((load, proxy), []).append(figures)

    def figures(self) -> Figures:
        """Those with goals first; then `LOAD.PROXY.FIGURE`."""
        found = headline(self.runs) | self.memory
        for (load, proxy), rounds in self.runs.items():
            for name, value in medians(rounds).items():
                found[f"{load}.{proxy}.{name}"] = value
        return found

    def to_json(self) -> bytes:
        figures = {name: float(f"{value:.4g}") for name, value in self.figures().items()}
        head: dict[str, Any] = {"bench": "gateway", "machine": self.machine, "versions": self.versions}
        return orjson.dumps(head | {"settings": self.settings, "absent": self.absent, "figures": figures})


def publish(report: GatewayReport, out_dir: Path, console: Console) -> None:
    """The JSON is the last line on stdout, and `gateway.json` in `out_dir`; `gateway-rounds.json` has every run."""
    out_dir.mkdir(parents=True, exist_ok=True)
    (out_dir / "gateway.json").write_bytes(report.to_json() + b"\n")
    rounds = {f"{load}.{proxy}": runs for (load, proxy), runs in report.runs.items()}
    (out_dir / "gateway-rounds.json").write_bytes(orjson.dumps(rounds, option=orjson.OPT_INDENT_2))
    for load in LOADS:
        console.print(_load_table(report, load))
    console.print(_goals_table(report))
    for name, why in report.absent.items():
        console.print(f"{name}: {why}", highlight=False)
    # Not through rich, which would wrap it.
    console.file.write(report.to_json().decode() + "\n")


def _load_table(report: GatewayReport, load: str) -> Table:
    table = Table(title=f"{load}: {LOADS[load].about}", title_justify="left")
    table.add_column("proxy")
    for heading in (*_COLUMNS.values(), "added p50 ms", "rounds"):
        table.add_column(heading, justify="right")
    for (name, proxy), rounds in report.runs.items():
        if name == load:
            found = medians(rounds)
            added = added_ms(report.runs, load, proxy, "first_p50_ms")
            cells = [_number(found.get(column)) for column in _COLUMNS]
            table.add_row(proxy, *cells, _number(added), str(len(rounds)))
    return table


def _goals_table(report: GatewayReport) -> Table:
    table = Table(title="ryokan", title_justify="left")
    for heading in ("figure", "value", "goal"):
        table.add_column(heading, justify="left" if heading == "figure" else "right")
    for name, value in (headline(report.runs) | report.memory).items():
        table.add_row(name, _number(value), GOALS.get(name, ""))
    return table


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
