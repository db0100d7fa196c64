"""All policies on all simulated workloads, and the figures that come of it."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gateway.routing.registry import POLICIES
from loadtest.eviction_bench.replay import hit_ratio, pooled
from loadtest.eviction_bench.workloads import workloads
from loadtest.routing_bench.cases import Case, cases, gateway_cases
from loadtest.routing_bench.fingerprint import fingerprint, sources
from loadtest.routing_bench.ratios import OURS, gains, over_best_other, ratio, worst
from loadtest.routing_bench.runs import Result, Run, run_all

CLOSE = 1.5
"""A policy with so many times the best one's TTFT in the first run of a workload isn't run there again."""

_NEVER = float("inf")
_TIMES = ("ttft_mean_s", "ttft_p90_s")


@dataclass(frozen=True, slots=True)
class SuiteOptions:
    out_dir: Path
    traces: Path | None = None
    """None: made-up workloads only."""
    seeds: int = 3
    jobs: int = 1
    limit: int | None = None
    """Requests of each run, where that is fewer than its own."""
    policies: tuple[str, ...] = tuple(POLICIES)
    """Ours and `least_tokens` must be among them."""


@dataclass(slots=True)
class Suite:
    seeds: int
    mean_s: dict[str, dict[str, float]] = field(default_factory=dict)
    """TTFT by workload, then policy: medians over seeds."""
    p90_s: dict[str, dict[str, float]] = field(default_factory=dict)
    gateways: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By workload, several gateways over one: hit, p99 of TTFT."""
    figures: dict[str, float] = field(default_factory=dict)
    failed: dict[str, dict[str, float]] = field(default_factory=dict)
    """Requests, by workload and policy, where there were any."""


def run_suite(options: SuiteOptions) -> Suite:
    """Raises SimulateError."""
    compared = _possible(cases(), options)
    pairs = [(one, several) for one, several in gateway_cases() if not one.is_recorded or options.traces is not None]
    pairs = [(_cut(one, options.limit), _cut(several, options.limit)) for one, several in pairs]
    found = _run(options, compared, [case for pair in pairs for case in pair])
    suite = Suite(options.seeds)
    for case in compared:
        suite.mean_s[case.name] = {policy: found.time(case, policy, "ttft_mean_s") for policy in options.policies}
        suite.p90_s[case.name] = {policy: found.time(case, policy, "ttft_p90_s") for policy in options.policies}
        failed = {policy: found.median(case, policy, lambda run: _or(run["failed"])) for policy in options.policies}
        if any(failed.values()):
            suite.failed[case.name] = failed
    for one, several in pairs:
        ratios = found.over(several, one, "hit"), found.over(several, one, "ttft_p99_s")
        suite.gateways[one.options.workload] = ratios
    suite.figures = _figures(suite, found, {case.name: case for case in compared})
    if options.traces is not None and options.limit is None:
        suite.figures["eviction_hit_over_lru"] = _eviction(options.traces, options.out_dir / "routing_runs")
    return suite


def _run(options: SuiteOptions, compared: Sequence[Case], ours_only: Sequence[Case]) -> "Found":
    kept, later = options.out_dir / "routing_runs", range(1, options.seeds)
    first = [Run(case, policy, 0) for case in compared for policy in options.policies]
    first += [Run(case, OURS, 0) for case in ours_only]
    found = Found(run_all(first, options.traces, kept, options.jobs), 1)
    again = [
        Run(case, policy, seed) for seed in later for case in compared for policy in found.close(case, options.policies)
    ]
    again += [Run(case, OURS, seed) for seed in later for case in ours_only]
    return Found(found.results | run_all(again, options.traces, kept, options.jobs), options.seeds)


class Found:
    """What runs have come to."""

    def __init__(self, results: Mapping[Run, Result], seeds: int) -> None:
        self.results = dict(results)
        self._seeds = range(seeds)

    def median(self, case: Case, policy: str, of: Callable[[Result], float]) -> float:
        runs = (Run(case, policy, seed) for seed in self._seeds)
        return statistics.median(of(self.results[run]) for run in runs if run in self.results)

    def close(self, case: Case, policies: Sequence[str]) -> list[str]:
        """The policies that are worth more runs."""
        ratios = [over_best_other({policy: self.time(case, policy, time) for policy in policies}) for time in _TIMES]
        return [policy for policy in policies if policy == OURS or min(of[policy] for of in ratios) < CLOSE]

    def time(self, case: Case, policy: str, figure: str) -> float:
        return self.median(case, policy, lambda run: _or(run[figure], _NEVER))

    def over(self, case: Case, base: Case, figure: str) -> float:
        """Of our policy, seed by seed."""
        return statistics.median(
            ratio(_or(self.results[Run(case, OURS, seed)][figure]), _or(self.results[Run(base, OURS, seed)][figure]))
            for seed in self._seeds
        )

    def within(self, case: Case, figure: str, limit: str) -> float:
        """Of our policy: one figure over another of the same run."""
        return self.median(case, OURS, lambda run: ratio(_or(run[figure]), _or(run[limit])))


def _or(figure: float | None, otherwise: float = 0.0) -> float:
    return otherwise if figure is None else figure


def _figures(suite: Suite, found: Found, by_name: Mapping[str, Case]) -> dict[str, float]:
    figures = {
        "worst_ratio_to_best": worst(suite.mean_s, suite.p90_s).ratio,
        "geomean_gain_over_best_other": min(gains(suite.mean_s).values()),
        "geomean_p90_gain_over_best_other": min(gains(suite.p90_s).values()),
        "zero_reuse_over_least_tokens": ratio(suite.mean_s["unique"][OURS], suite.mean_s["unique"]["least_tokens"]),
        "giant_prompt_imbalance": found.median(by_name["giant"], OURS, lambda run: _or(run["work_max_over_mean"])),
    }
    limited = {
        "taubench_ttft_over_bound": ("taubench 16k prefill, shortest", "ttft_mean_s", "ttft_mean_bound_s"),
        "taubench_fcfs_ttft_over_bound": ("taubench 16k prefill", "ttft_mean_s", "ttft_mean_bound_s"),
        "conversation_1m_hit_over_lru_pool": ("conversation 1M prefill x3", "hit", "hit_lru_pool"),
    }
    for name, (case, figure, limit) in limited.items():
        if case in by_name:
            figures[name] = found.within(by_name[case], figure, limit)
    for number, name in enumerate(("hit", "p99")):
        figures[f"four_gateways_{name}_over_one"] = statistics.median(each[number] for each in suite.gateways.values())
    return figures


def _possible(all_cases: Sequence[Case], options: SuiteOptions) -> list[Case]:
    return [_cut(case, options.limit) for case in all_cases if options.traces is not None or not case.is_recorded]


def _cut(case: Case, limit: int | None) -> Case:
    own = case.options.limit
    if limit is None or (own is not None and own <= limit):
        return case
    return replace(case, options=replace(case.options, limit=limit))


def _eviction(traces: Path, kept: Path) -> float:
    """Of one cache of eight replicas' size on the conversation trace: hit of our eviction over that of LRU."""
    depends = sources("loadtest.eviction_bench.replay") | sources("loadtest.eviction_bench.workloads")
    place = kept / f"eviction_{fingerprint(depends.values())[:32]}.json"
    if not place.is_file():
        workload = next(each for each in workloads(traces) if each.name == "conversation 8 x 307k")
        hits = {name: hit_ratio(workload, pooled(workload, name)) for name in ("learned", "lru")}
        place.write_text(json.dumps(hits))
    hits = json.loads(place.read_bytes())
    return ratio(hits["learned"], hits["lru"])
