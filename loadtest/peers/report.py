"""The result: a table a load for people, one line of JSON for machines."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from loadtest.peers.figures import Figures, medians, over_best_peer
from loadtest.peers.routers import OURS, VERSIONS

_COLUMNS = {
    "ttft_mean_s": "TTFT mean ms",
    "ttft_p50_s": "p50",
    "ttft_p99_s": "p99",
    "ttft_at_replica_mean_s": "mean at replica",
    "hit_share": "prompt cached %",
    "work_max_over_mean": "work max/mean",
    "failed": "failed",
    "router_cpu_ms_per_request": "router CPU ms/req",
    "step_over_profile": "step/profile",
}
_SCALE = {"ttft_mean_s": 1000, "ttft_p50_s": 1000, "ttft_p99_s": 1000, "ttft_at_replica_mean_s": 1000, "hit_share": 100}


@dataclass(slots=True)
class PeersReport:
    machine: dict[str, str | int | float]
    versions: dict[str, str]
    settings: dict[str, Any]
    absent: dict[str, str]
    """Peers that took no part, and why."""
    results: dict[tuple[str, str], list[Figures]] = field(default_factory=dict)
    """(load, router) -> figures of each round."""

    def add(self, load: str, router: str, figures: Figures) -> None:
        self.results.setdefault((load, router), []).append(figures)

    def loads(self) -> list[str]:
        return list(dict.fromkeys(load for load, _ in self.results))

    def routers(self, load: str) -> list[str]:
        names = [router for name, router in self.results if name == load]
        return sorted(names, key=lambda name: (":" in name, name != OURS, name))

    def figures(self) -> Figures:
        """`LOAD.ROUTER.FIGURE`, and `LOAD.FIGURE_over_best_peer`."""
        found: Figures = {}
        for load in self.loads():
            for router in self.routers(load):
                for name, value in medians(self.results[load, router]).items():
                    found[f"{load}.{router}.{name}"] = value
            for name, value in over_best_peer(self.results, load, OURS, list(VERSIONS)).items():
                found[f"{load}.{name}"] = value
        return found

    def to_json(self) -> bytes:
        body: dict[str, Any] = {"bench": "peers", "machine": self.machine, "versions": self.versions}
        figures = {name: float(f"{value:.4g}") for name, value in self.figures().items()}
        return orjson.dumps(body | {"settings": self.settings, "absent": self.absent, "figures": figures})


def publish(report: PeersReport, out_dir: Path, console: Console) -> None:
    """The JSON is the last line on stdout, and `peers.json` in `out_dir`; `peers-rounds.json` has every run."""
    out_dir.mkdir(parents=True, exist_ok=True)
    (out_dir / "peers.json").write_bytes(report.to_json() + b"\n")
    rounds = {f"{load}.{router}": runs for (load, router), runs in report.results.items()}
    (out_dir / "peers-rounds.json").write_bytes(orjson.dumps(rounds, option=orjson.OPT_INDENT_2))
    for load in report.loads():
        console.print(_table(report, load))
    for name, why in report.absent.items():
        console.print(f"{name}: {why}", highlight=False)
    # Not through rich, which would wrap it.
    console.file.write(report.to_json().decode() + "\n")


def _table(report: PeersReport, load: str) -> Table:
    table = Table(title=f"{load}: {report.settings['loads'][load]}", title_justify="left")
    table.add_column("router")
    for heading in (*_COLUMNS.values(), "rounds"):
        table.add_column(heading, justify="right")
    for router in report.routers(load):
        rounds = report.results[load, router]
        found = medians(rounds)
        cells = [_number(found[name] * _SCALE.get(name, 1)) if name in found else "" for name in _COLUMNS]
        table.add_row(router, *cells, str(len(rounds)))
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
