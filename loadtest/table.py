"""The figures as rows: which, in which order, how written and what each means. For the terminal and the page alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from loadtest.report import Report

_MIN_WIDTH = 80
_LABEL_WIDTH = 38
_CELL_WIDTH = 14


@dataclass(frozen=True, slots=True)
class Row:
    figure: str
    label: str
    write: Callable[[float], str]
    meaning: str
    ratio: str | None = None
    """Its name among the report's ratios."""


@dataclass(frozen=True, slots=True)
class Line:
    """A row with its cells written: one per policy, and the ratio."""

    row: Row
    cells: list[str]
    ratio: str


def seconds(value: float) -> str:
    """Three digits, in s or ms."""
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.3g} ms"


def count(value: float) -> str:
    return f"{value:,.0f}"


def per_second(value: float) -> str:
    return f"{value:,.0f} /s" if value >= 100 else f"{value:.1f} /s"


def percent(value: float) -> str:
    return f"{value * 100:.1f} %"


def times(value: float) -> str:
    return f"× {value:.2f}"


ROWS = (
    Row("ttft_p50_s", "TTFT, median", seconds, "Request sent to first non-empty token.", "ttft_p50"),
    Row("ttft_p90_s", "TTFT, 90th percentile", seconds, "Nine of ten requests waited no longer.", "ttft_p90"),
    Row("ttft_p99_s", "TTFT, 99th percentile", seconds, "All but one in a hundred waited no longer.", "ttft_p99"),
    Row("ttft_first_turn_p50_s", "TTFT of first turns, median", seconds, "Prompts that only share the system prompt "
        "and a city's notes."),
    Row("ttft_later_turns_p50_s", "TTFT of later turns, median", seconds, "Prompts that repeat a whole conversation."),
    Row("itl_mean_s", "ITL, mean", seconds, "(Latency − TTFT) / (output tokens − 1), mean over requests.", "itl_mean"),
    Row("tps_mean", "TPS of a request, mean", per_second, "1 / ITL: how fast one reader sees text come."),
    Row("throughput_tokens_per_s", "Output tokens", per_second,
        "All output tokens / (last response − first request).", "throughput"),
    Row("duration_s", "Duration", seconds, "First request to last response."),
    Row("prompt_tokens", "Prompt tokens", count, "All requests together, as the engine counted them."),
    Row("prompt_tokens_computed", "  of these computed", count, "Prefilled by some replica.", "prompt_tokens_computed"),
    Row("cached_tokens_delivered", "  of these from cache", count, "Taken from a replica's KV cache.",
        "cached_tokens_delivered"),
    Row("cached_tokens_predicted", "  predicted by the gateway", count, "What it expected from caches when it routed."),
    Row("cached_tokens_limit", "  limit", count, "One endless cache for the whole fleet would deliver this many."),
    Row("cached_delivered_over_limit", "From cache, share of the limit", percent, "Delivered / limit."),
    Row("output_tokens_max_over_mean", "Output of busiest replica / mean", times,
        "1 is an even spread of output tokens over replicas.", "output_tokens_max_over_mean"),
    Row("requests_failed", "Requests failed", count, "Errors, broken or incomplete streams."),
)  # fmt: skip


def lines(report: Report) -> list[Line]:
    written = []
    for row in ROWS:
        values = [figures[row.figure] for figures in report.policies.values()]
        cells = ["–" if value is None else row.write(value) for value in values]
        ratio = report.ratios[row.ratio] if row.ratio and ratio_heading(report) else None
        written.append(Line(row, cells, "" if ratio is None else times(ratio)))
    return written


def ratio_heading(report: Report) -> str:
    """Empty where only one policy was run."""
    ours, baseline = report.ratios["policy"], report.ratios["baseline"]
    return "" if ours == baseline else f"{ours} / {baseline}"


def print_table(report: Report, console: Console) -> None:
    """A table where the terminal is wide enough for its columns, else a plain list."""
    policies = list(report.policies)
    if console.width < max(_MIN_WIDTH, _LABEL_WIDTH + _CELL_WIDTH * (len(policies) + 1)):
        _print_list(report, policies, console)
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for policy in policies:
        table.add_column(policy, justify="right", style="bold" if policy == report.ratios["policy"] else "")
    table.add_column(ratio_heading(report), justify="right")
    for line in lines(report):
        table.add_row(line.row.label, *line.cells, line.ratio)
    console.print(table)


def _print_list(report: Report, policies: Sequence[str], console: Console) -> None:
    for line in lines(report):
        pairs = [f"{policy} {cell}" for policy, cell in zip(policies, line.cells, strict=True)]
        if line.ratio:
            pairs.append(line.ratio)
        console.print(f"{line.row.label.strip()}: {', '.join(pairs)}", highlight=False, soft_wrap=True)
