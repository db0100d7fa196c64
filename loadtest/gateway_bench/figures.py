"""From runs to figures. A run is one proxy under one load in one round; ratios are taken within a round. Pure."""

import statistics
from collections.abc import Mapping, Sequence

from loadtest.gateway_bench.bindings import Done
from loadtest.gateway_bench.proxies import NGINX, OURS, PLAIN

Figures = dict[str, float]
Runs = Mapping[tuple[str, str], Sequence[Figures]]
"""By load and proxy, the rounds in order."""

DIRECT = "direct"
"""The mock itself."""
SGLANG = "sglang-router"


def of_run(done: Done, cpu_s: float | None) -> Figures:
    """`cpu_s`: of the proxy, if there was one."""
    found: Figures = {"failed": float(done.failed), "answered_per_s": done.answered / done.seconds}
    if done.firsts_s:
        found["first_p50_ms"] = 1000 * statistics.median(done.firsts_s)
        found["first_p99_ms"] = 1000 * _percentile(done.firsts_s, 0.99)
    if cpu_s is not None and done.answered:
        found["cpu_ms_per_request"] = 1000 * cpu_s / done.answered
    if cpu_s is not None and done.chunks:
        found["cpu_s_per_10k_chunks"] = 10_000 * cpu_s / done.chunks
    return found


def headline(runs: Runs) -> Figures:
    """Those that have goals; what wasn't measured is left out."""
    found: Figures = {}
    for other, label in ((PLAIN, "aiohttp"), (SGLANG, "sglang"), (NGINX, "nginx")):
        for load, name in (("requests_1k", "cpu_per_request"), ("requests_8k", "cpu_per_request_8k")):
            found |= _ratio(f"{name}_x_{label}", runs, load, "cpu_ms_per_request", other)
        found |= _ratio(f"cpu_per_chunk_x_{label}", runs, "chunks", "cpu_s_per_10k_chunks", other)
    for load, name in (("ttft_64", "added_ttft_64"), ("ttft_1", "added_ttft_1")):
        for percentile in ("p50", "p99"):
            ms = added_ms(runs, load, OURS, f"first_{percentile}_ms")
            if ms is not None:
                found[f"{name}_ms" if percentile == "p50" else f"{name}_{percentile}_ms"] = ms
        nginx_ms = added_ms(runs, load, NGINX, "first_p50_ms")
        if f"{name}_ms" in found and nginx_ms is not None and nginx_ms > 0:
            found[f"{name}_x_nginx"] = found[f"{name}_ms"] / nginx_ms
    return found


def added_ms(runs: Runs, load: str, proxy: str, name: str) -> float | None:
    """Median over rounds of what the proxy adds to the mock alone."""
    pairs = zip(runs.get((load, proxy), ()), runs.get((load, DIRECT), ()), strict=False)
    added = [ours[name] - direct[name] for ours, direct in pairs if name in ours and name in direct]
    return statistics.median(added) if added else None


def medians(rounds: Sequence[Figures]) -> Figures:
    """Failures are added up."""
    names = dict.fromkeys(name for run in rounds for name in run)
    found = {name: statistics.median(run[name] for run in rounds if name in run) for name in names}
    return found | {"failed": sum(run["failed"] for run in rounds)}


def _ratio(name: str, runs: Runs, load: str, figure: str, other: str) -> Figures:
    pairs = zip(runs.get((load, OURS), ()), runs.get((load, other), ()), strict=False)
    found = [ours[figure] / theirs[figure] for ours, theirs in pairs if figure in ours and theirs.get(figure, 0) > 0]
    return {name: statistics.median(found)} if found else {}


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[round(share * (len(values) - 1))]
