"""The suite's tables: one row a workload, one column a policy. In Markdown, fit for a terminal and for a log."""

from collections.abc import Mapping

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from loadtest.routing_bench.ratios import OURS, gains, geometric_mean, over_best_other, worst
from loadtest.routing_bench.suite import Suite

_WIDTH = 250
_SHORT = {
    "round_robin": "rr",
    "least_requests": "requests",
    "least_tokens": "tokens",
    "power_of_two": "p2c",
    "sglang_library": "sgl_lib",
    "prefix_text": "text",
}


def print_suite(suite: Suite, console: Console) -> None:
    for title, times in (("mean TTFT", suite.mean_s), ("p90 TTFT", suite.p90_s)):
        print_ratios(f"{title} over the best other than {OURS}, medians of {suite.seeds} seeds", times, console)
        _print_worst(title, times, console)
    table = Table("16 replicas, 4 gateways over 1", "hit", "p99 TTFT", box=MARKDOWN)
    for workload, (hit, p99) in suite.gateways.items():
        table.add_row(workload, f"{hit:.3f}", f"{p99:.3f}")
    console.print(table)
    for workload, failed in suite.failed.items():
        counts = ", ".join(f"{policy} {count:.0f}" for policy, count in failed.items() if count)
        console.print(f"failed requests, {workload}: {counts}", highlight=False, soft_wrap=True)


def print_ratios(title: str, times: Mapping[str, Mapping[str, float]], console: Console) -> None:
    policies = list(next(iter(times.values())))
    table = Table(title, "best, s", *(_SHORT.get(policy, policy) for policy in policies), box=MARKDOWN)
    ratios = {workload: over_best_other(of) for workload, of in times.items()}
    for workload, of in ratios.items():
        best = min(time for policy, time in times[workload].items() if policy != OURS)
        table.add_row(workload, f"{best:.3g}", *(_cell(of[policy]) for policy in policies))
    means = [geometric_mean(of[policy] for of in ratios.values()) for policy in policies]
    table.add_row("geometric mean", "", *map(_cell, means))
    gained = gains(times)
    table.add_row(f"its mean over {OURS}'s", "", *(_cell(1 + gained.get(policy, 0.0)) for policy in policies))
    Console(file=console.file, width=_WIDTH).print(table)


def _print_worst(title: str, times: Mapping[str, Mapping[str, float]], console: Console) -> None:
    found = worst(times)
    gained = gains(times)
    nearest = min(gained, key=gained.__getitem__)
    console.print(
        f"{title}: {OURS} is furthest behind on {found.workload}, {found.ratio:.3f} x {found.best}; "
        f"over all workloads {nearest} comes closest, and is {gained[nearest] * 100:.0f} % slower",
        highlight=False,
        soft_wrap=True,
    )


def _cell(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"
