"""Figures of runs: of one, the medians over rounds, and ours over the best peer's. Pure."""

from collections.abc import Mapping, Sequence
from statistics import median

from loadtest import metrics
from loadtest.client import RequestRecord
from loadtest.peers.fleet import Done, StepCost

Figures = dict[str, float]
Results = Mapping[tuple[str, str], Sequence[Figures]]
"""(load, router) -> figures of each round."""

COMPARED = ("ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "ttft_at_replica_mean_s")
"""At the replica: what routing alone is worth, without the time that a router itself takes."""


def figures_of_run(
    records: Sequence[RequestRecord], planned: int, done: Sequence[Done], router_cpu_s: float, cost: StepCost | None
) -> Figures:
    """A failed request counts as failed and in nothing else, and so does a turn that was not sent after a failed one.
    `cost` is None where replicas compute."""
    answered = [record for record in records if record.ok]
    ttfts = metrics.ttft_values(answered)
    prompt_tokens = sum(record.prompt_tokens for record in answered)
    work = [replica.computed_tokens + replica.generated_tokens for replica in done]
    found: dict[str, float | None] = {
        "ttft_mean_s": metrics.mean(ttfts),
        "ttft_p50_s": metrics.percentile(ttfts, 50),
        "ttft_p99_s": metrics.percentile(ttfts, 99),
        "ttft_at_replica_mean_s": metrics.ratio(sum(r.ttft_s for r in done), sum(r.answers for r in done)),
        "itl_mean_s": metrics.mean([record.itl_s for record in answered if record.itl_s is not None]),
        "hit_share": metrics.ratio(sum(record.cached_tokens for record in answered), prompt_tokens),
        "work_max_over_mean": metrics.max_over_mean(work),
        "router_cpu_ms_per_request": metrics.ratio(1000 * router_cpu_s, len(answered)),
    }
    if cost is not None:
        expected_s = sum(cost.expected_s(replica) for replica in done)
        found["step_over_profile"] = metrics.ratio(sum(replica.step_s for replica in done), expected_s)
    known = {name: value for name, value in found.items() if value is not None}
    return known | {"failed": float(planned - len(answered))}


def medians(rounds: Sequence[Figures]) -> Figures:
    """Of each figure, over the rounds that have it; failed requests add up."""
    names = dict.fromkeys(name for figures in rounds for name in figures)
    found = {name: median([figures[name] for figures in rounds if name in figures]) for name in names}
    return found | {"failed": sum(figures["failed"] for figures in rounds)}


def over_best_peer(results: Results, load: str, ours: str, peers: Sequence[str]) -> Figures:
    """Ours over the best of all peers in the same round, then the median over rounds that all have run: below 1, none
    is better."""
    theirs = [results[load, peer] for peer in peers if (load, peer) in results]
    mine = results.get((load, ours), ())
    ratios: Figures = {}
    for name in COMPARED if theirs else ():
        found = [
            figures[name] / min(other[name] for other in others)
            for figures, *others in zip(mine, *theirs, strict=False)
            if all(name in one for one in (figures, *others))
        ]
        if found:
            ratios[f"{name.removesuffix('_s')}_over_best_peer"] = median(found)
    return ratios
