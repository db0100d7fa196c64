"""Figures of a run, from its records. Pure.

TTFT: first non-empty token - request sent (in an open loop: - moment it was due). ITL: (end-to-end latency - TTFT) /
(output tokens - 1). TPS of a request: 1 / ITL. System throughput: all output tokens / (last response - first request).
"""

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from loadtest.client import RequestRecord

Figures = dict[str, Any]
"""Name to number, to a number per replica, or to None where nothing was measured."""


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Linear between the two nearest ranks; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def ratio(value: float | None, to: float | None) -> float | None:
    """None where either is missing or the divisor is 0."""
    return None if value is None or not to else value / to


def max_over_mean(values: Sequence[float]) -> float | None:
    """1 means evenly spread; N means all on one of N."""
    return ratio(max(values, default=None), mean(values))


def summarise(
    records: Sequence[RequestRecord], *, requests_planned: int, replicas: Sequence[str], cached_limit: int
) -> Figures:
    """All figures of one run. Failed requests count as failed and in nothing else."""
    done = [record for record in records if record.ok]
    ttfts = ttft_values(done)
    itls = [record.itl_s for record in done if record.itl_s is not None]
    output_tokens = sum(record.output_tokens for record in done)
    prompt_tokens = sum(record.prompt_tokens for record in done)
    cached = sum(record.cached_tokens for record in done)
    computed = {name: 0 for name in replicas}
    duration_s = max((r.end_s for r in records), default=0.0) - min((r.due_s for r in records), default=0.0)
    outputs = {name: 0 for name in replicas}
    requests = {name: 0 for name in replicas}
    for record in done:
        outputs[record.replica] = outputs.get(record.replica, 0) + record.output_tokens
        requests[record.replica] = requests.get(record.replica, 0) + 1
        computed[record.replica] = computed.get(record.replica, 0) + record.prompt_tokens - record.cached_tokens
    return {
        "ttft_mean_s": mean(ttfts),
        "ttft_p50_s": percentile(ttfts, 50),
        "ttft_p90_s": percentile(ttfts, 90),
        "ttft_p99_s": percentile(ttfts, 99),
        "ttft_first_turn_p50_s": percentile(ttft_values([r for r in done if r.turn == 0]), 50),
        "ttft_later_turns_p50_s": percentile(ttft_values([r for r in done if r.turn > 0]), 50),
        "itl_mean_s": mean(itls),
        "tps_mean": mean([1 / itl for itl in itls if itl > 0]),
        "throughput_tokens_per_s": ratio(output_tokens, duration_s),
        "duration_s": duration_s,
        "prompt_tokens": prompt_tokens,
        "prompt_tokens_computed": prompt_tokens - cached,
        "prompt_tokens_computed_by_replica": computed,
        "prompt_tokens_computed_max_over_mean": max_over_mean(list(computed.values())),
        "cached_tokens_delivered": cached,
        "cached_tokens_predicted": sum(record.predicted_tokens or 0 for record in done),
        "cached_tokens_limit": cached_limit,
        "cached_delivered_over_limit": ratio(cached, cached_limit),
        "output_tokens": output_tokens,
        "output_tokens_by_replica": outputs,
        "output_tokens_max_over_mean": max_over_mean(list(outputs.values())),
        "requests_by_replica": requests,
        "requests": len(records),
        "requests_failed": len(records) - len(done),
        "requests_not_sent": requests_planned - len(records),
    }


def ttft_values(records: Sequence[RequestRecord]) -> list[float]:
    return [record.ttft_s for record in records if record.ttft_s is not None]


def median_figures(rounds: Sequence[Figures]) -> Figures:
    """The median of each figure over rounds; of each replica's number in turn for figures by replica."""
    return {name: _median_of([figures[name] for figures in rounds]) for name in rounds[0]}


def _median_of(values: Sequence[Any]) -> Any:
    if isinstance(values[0], dict):
        names = dict.fromkeys(name for value in values for name in value)
        return {name: _median_of([value.get(name, 0) for value in values]) for name in names}
    known = [value for value in values if value is not None]
    return median(known) if known else None


RATIOS = {
    "prompt_tokens_computed": "prompt_tokens_computed",
    "ttft_p50": "ttft_p50_s",
    "ttft_p90": "ttft_p90_s",
    "ttft_p99": "ttft_p99_s",
    "itl_mean": "itl_mean_s",
    "throughput": "throughput_tokens_per_s",
    "cached_tokens_delivered": "cached_tokens_delivered",
    "output_tokens_max_over_mean": "output_tokens_max_over_mean",
}
"""Name of a ratio to the figure that it compares."""


def compare_figures(ours: Sequence[Figures], baseline: Sequence[Figures]) -> dict[str, float | None]:
    """Ours / baseline, taken within each round, then the median over rounds."""
    return {
        name: _median_of([ratio(mine[figure], its[figure]) for mine, its in zip(ours, baseline, strict=True)])
        for name, figure in RATIOS.items()
    }
