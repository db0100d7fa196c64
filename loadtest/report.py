"""The result of a comparison: report.json for machines, report.html for people, a table for the terminal."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from loadtest.metrics import Figures


@dataclass(frozen=True, slots=True)
class Report:
    started_at: str
    command: str
    model: str
    machine: dict[str, str | int | float]
    versions: dict[str, str]
    workload: dict[str, Any]
    order: list[str]
    """Policies as they were run, over all rounds."""
    warmup: dict[str, float]
    policies: dict[str, Figures]
    """Medians over rounds; each round's own figures under `rounds`."""
    ratios: dict[str, Any]
    """`policy` / `baseline`, within each round, then the median."""
    request: dict[str, Any]
    """The traced request."""
    samples: dict[str, dict[str, list[float]]]
    """Each request's TTFT, for distributions."""

    def to_json(self) -> bytes:
        return orjson.dumps({"bench": "demo", **asdict(self)}, option=orjson.OPT_INDENT_2)

    @property
    def requests_failed(self) -> int:
        """Over all policies and rounds, with those never sent because the turn before had failed."""
        return sum(
            figures["requests_failed"] + figures["requests_not_sent"]
            for policy in self.policies.values()
            for figures in policy["rounds"]
        )


@dataclass(frozen=True, slots=True)
class ReportFiles:
    json: Path
    html: Path


def publish(report: Report, out_dir: Path, console: Console) -> ReportFiles:
    """Prints the table and writes report.json and report.html into `out_dir`."""
    # matplotlib takes a second to import: not before it is needed.
    from loadtest.page import render_page
    from loadtest.table import print_table

    out_dir.mkdir(parents=True, exist_ok=True)
    files = ReportFiles(out_dir / "report.json", out_dir / "report.html")
    files.json.write_bytes(report.to_json())
    files.html.write_text(render_page(report), encoding="utf-8")
    print_table(report, console)
    return files
