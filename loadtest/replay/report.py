"""The result of a replay: report.json for machines, report.html for people, a table for the terminal."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from loadtest.metrics import Figures
from loadtest.table import Row, count, per_second, percent, seconds, times

ROWS = (
    Row("ttft_mean_s", "TTFT, mean", seconds, "Request due to first non-empty token."),
    Row("ttft_p50_s", "TTFT, median", seconds, "Half of the requests waited no longer."),
    Row("ttft_p90_s", "TTFT, 90th percentile", seconds, "Nine of ten requests waited no longer."),
    Row("ttft_p99_s", "TTFT, 99th percentile", seconds, "All but one in a hundred waited no longer."),
    Row("ttft_mean_lru_pool_s", "  mean, one shared cache", seconds, "Replicas that share one LRU cache, each "
        "first come first served: a reference, no bound."),
    Row("ttft_mean_bound_s", "  mean, bound", seconds, "No mean can be less, whatever is routed where."),
    Row("itl_mean_s", "ITL, mean", seconds, "(Latency − TTFT) / (output tokens − 1), mean over requests."),
    Row("tps_mean", "TPS of a request, mean", per_second, "1 / ITL: how fast one reader sees text come."),
    Row("throughput_tokens_per_s", "Output tokens", per_second, "All output tokens / (last response − first request)."),
    Row("hit", "Prompt tokens from cache", percent, "Delivered / all prompt tokens."),
    Row("hit_lru_pool", "  one shared LRU cache", percent, "Of all replicas' size together: a reference, no bound."),
    Row("hit_belady", "  limit of that size", percent, "A cache of that size that knows the future (Belady)."),
    Row("hit_infinite", "  limit of any size", percent, "One endless cache for the whole fleet."),
    Row("predicted_over_delivered", "Predicted / delivered", times, "What the gateway expected of caches / what came."),
    Row("prompt_tokens_computed_max_over_mean", "Work of busiest replica / mean", times, "Prompt tokens computed."),
    Row("output_tokens_max_over_mean", "Output of busiest replica / mean", times, "Tokens of answers."),
    Row("sent_late_p99_s", "Sent late, 99th percentile", seconds, "How late this program was; part of each TTFT."),
    Row("requests", "Requests", count, "Sent and measured, the warm-up apart."),
    Row("requests_failed", "Requests failed", count, "Errors, broken or incomplete streams."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """One answered request, for plots; seconds since the run began."""

    due_s: float
    ttft_s: float
    replica: str
    computed: int
    """Prompt tokens that its replica had to compute."""
    measured: bool


@dataclass(frozen=True, slots=True)
class ReplayReport:
    started_at: str
    command: str
    model: str
    machine: dict[str, str | int | float]
    versions: dict[str, str]
    trace: dict[str, Any]
    fleet: dict[str, Any]
    order: list[str]
    """Policies as they were run, over all rounds."""
    policies: dict[str, Figures]
    """Medians over rounds; each round's own figures under `rounds`."""
    samples: dict[str, list[Sample]]
    """Of each policy's last round."""
    agreement: dict[str, Any] | None = None
    """Where it was simulated as well: see agreement.py."""
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> bytes:
        return orjson.dumps({"bench": "replay", **asdict(self)}, option=orjson.OPT_INDENT_2)


def publish(report: ReplayReport, out_dir: Path, console: Console) -> tuple[Path, Path]:
    """Prints the table; writes report.json and report.html into `out_dir`."""
    # matplotlib takes a second to import: not before it is needed.
    from loadtest.replay.page import render_page

    out_dir.mkdir(parents=True, exist_ok=True)
    json, html = out_dir / "report.json", out_dir / "report.html"
    json.write_bytes(report.to_json())
    html.write_text(render_page(report), encoding="utf-8")
    print_table(report, console)
    return json, html


def cells(report: ReplayReport, row: Row) -> list[str]:
    values = [figures.get(row.figure) for figures in report.policies.values()]
    return ["–" if value is None else row.write(value) for value in values]


def print_table(report: ReplayReport, console: Console) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for policy in report.policies:
        table.add_column(policy, justify="right", no_wrap=True)
    for row in ROWS:
        table.add_row(row.label, *cells(report, row))
    console.print(table)
    for note in report.notes:
        console.print(note, highlight=False, soft_wrap=True)
    if report.agreement is not None:
        _print_agreement(report.agreement, console)


def _print_agreement(agreement: dict[str, Any], console: Console) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title="measured and simulated", title_justify="left")
    table.add_column("", no_wrap=True)
    for name in ("measured", "simulated", "difference"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in agreement_cells(agreement):
        table.add_row(*line)
    console.print(table)
    console.print(f"latency each way: {seconds(agreement['latency_s'])}", highlight=False)


def agreement_cells(agreement: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Policy and figure, measured, simulated, and the difference."""
    lines = []
    for policy, compared in agreement["policies"].items():
        for name, pair in compared.items():
            write = percent if name == "hit" else times if name.startswith("work") else seconds
            off = f"{pair['difference']:+.4f}" if name == "hit" else f"{pair['difference']:+.1%}"
            lines.append((f"{policy}: {name}", write(pair["measured"]), write(pair["simulated"]), off))
    return lines
