"""How long one routing decision takes, index and fleet included, and how good decisions are.

Times are of every policy in turn, at two sizes of a fleet. On a machine that others use too, the slowest per cent of
decisions are those that lost the processor. So there are two figures of each: by the clock, and of the time that the
thread computed. How good they are a simulator says: see suite.py.
"""

import gc
import statistics
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from gateway.routing.registry import POLICIES
from loadtest.machine import machine, versions
from loadtest.routing_bench.agreement import REQUESTS, simulated_over_measured
from loadtest.routing_bench.report import RoutingReport, print_times, publish
from loadtest.routing_bench.rig import Rig
from loadtest.routing_bench.suite import SuiteOptions, run_suite
from loadtest.routing_bench.suite_report import print_suite

OURS = "ttft"


@dataclass(frozen=True, slots=True)
class RoutingBenchOptions:
    out_dir: Path
    replicas: tuple[int, ...] = (64, 1000)
    rounds: int = 5
    """0: no decisions are timed."""
    decisions: int = 2000
    """A round, of each policy at each size."""
    warm_up: int = 200
    suite: SuiteOptions | None = None
    """None: nothing is simulated."""
    fleet: Callable[[], AbstractContextManager[str]] | None = None
    """An idle fleet of timing replicas, to compare a simulation with: its gateway's URL. It runs only meanwhile, as it
    would disturb what is timed. None: there is none."""
    replayed: int = REQUESTS
    """Requests that it is sent."""


def bench_routing(options: RoutingBenchOptions, console: Console) -> RoutingReport:
    """Prints its progress to stderr and its result to `console`. Raises SimulateError."""
    report = RoutingReport(machine(), versions(), options.rounds, options.replicas, {})
    if options.rounds:
        report.figures.update(_times(options))
        print_times(report, console)
    if options.suite is not None:
        suite = run_suite(options.suite)
        report.figures.update(suite.figures)
        print_suite(suite, console)
    if options.fleet is not None:
        with options.fleet() as gateway_url:
            found = simulated_over_measured(gateway_url, options.out_dir, options.replayed)
        report.figures.update(found)
        for name, value in found.items():
            console.print(f"{name}: {value:.3f}", highlight=False)
    publish(report, options.out_dir, console)
    return report


def _times(options: RoutingBenchOptions) -> dict[str, float]:
    """Medians over the rounds, in µs."""
    rigs = [Rig(replicas) for replicas in options.replicas]
    found: dict[str, list[float]] = {}
    gc.collect()
    gc.freeze()
    try:
        for number in range(options.rounds):
            print(f"round {number + 1}/{options.rounds}", file=sys.stderr, flush=True)
            for policy in POLICIES:
                for rig in rigs:
                    rig.decide(policy, options.warm_up)
                    passed, computed = rig.decide(policy, options.decisions)
                    name = f"{policy}_{rig.replicas}"
                    for figure, value in _figures(passed, computed).items():
                        found.setdefault(f"{name}_{figure}", []).append(value)
    finally:
        gc.unfreeze()
    figures = {name: statistics.median(values) for name, values in found.items()}
    for replicas in options.replicas:
        for figure in ("p50_us", "p99_us", "p99_cpu_us"):
            figures[f"decide_{replicas}_{figure}"] = figures[f"{OURS}_{replicas}_{figure}"]
    return figures


def _figures(passed: list[float], computed: list[float]) -> dict[str, float]:
    return {
        "p50_us": statistics.median(passed),
        "p99_us": statistics.quantiles(passed, n=100)[98],
        "p99_cpu_us": statistics.quantiles(computed, n=100)[98],
    }
