"""Figures of one run, beside what no fleet could beat. Pure."""

from collections.abc import Callable, Sequence

from loadtest import metrics
from loadtest.client import RequestRecord
from loadtest.metrics import Figures, mean, percentile, ratio
from loadtest.simulate.limits import Arrival, belady, infinite, lru_pool, pooled_ttfts, ttft_bound
from loadtest.simulate.prompts import Request
from replica.protocol.records import CostModel

Measured = Callable[[int, float], bool]
"""Whether a request counts, by its number and the seconds from the beginning to when it was due: not in the warm-up."""


def figures_of(
    records: Sequence[RequestRecord],
    requests: Sequence[Request],
    costs: Sequence[CostModel],
    blocks: int,
    replicas: Sequence[str],
    measured: Measured,
) -> Figures:
    """`blocks`: of KV, in the whole fleet. Limits are those of the requests that were sent, in the order of their
    sending, for caches that were empty at the beginning."""
    sent = sorted(records, key=lambda record: record.sent_s)
    start_s = min((record.due_s for record in sent), default=0.0)
    counts = [measured(record.agent, record.due_s - start_s) for record in sent]
    kept = [record for record, does in zip(sent, counts, strict=True) if does]
    arrivals = [Arrival(record.due_s - start_s, requests[record.agent]) for record in sent]
    limits = _limits(arrivals, counts, costs, blocks)
    figures = metrics.summarise(
        kept,
        requests_planned=len(requests) - (len(sent) - len(kept)),
        replicas=replicas,
        cached_limit=limits.pop("cached_infinite", 0),
    )
    done = [record for record in kept if record.ok]
    return figures | {
        "hit": ratio(figures["cached_tokens_delivered"], figures["prompt_tokens"]),
        "predicted_over_delivered": ratio(figures["cached_tokens_predicted"], figures["cached_tokens_delivered"]),
        "sent_late_mean_s": mean([record.sent_s - record.due_s for record in done]),
        "sent_late_p99_s": percentile([record.sent_s - record.due_s for record in done], 99),
        **limits,
    }


def _limits(arrivals: Sequence[Arrival], counts: Sequence[bool], costs: Sequence[CostModel], blocks: int) -> Figures:
    requests = [arrival.request for arrival in arrivals]
    total = sum(request.tokens for request, does in zip(requests, counts, strict=True) if does)
    if not total:
        return {}
    endless, best, pool = infinite(requests), belady(requests, blocks), lru_pool(requests, blocks)

    def of_measured(values: Sequence[int]) -> int:
        return sum(value for value, does in zip(values, counts, strict=True) if does)

    figures: Figures = {
        "cached_infinite": of_measured(endless),
        "hit_infinite": of_measured(endless) / total,
        "hit_belady": of_measured(best) / total,
        "hit_lru_pool": of_measured(pool) / total,
        "ttft_mean_bound_s": None,
        "ttft_mean_lru_pool_s": None,
    }
    if all(cost.c_lin > 0 for cost in costs):
        # Fewer jobs wait for less: so the bound of those that count is one although others were there.
        ours = [place for place, does in enumerate(counts) if does]
        figures["ttft_mean_bound_s"] = ttft_bound(
            [arrivals[place] for place in ours], [endless[place] for place in ours], costs
        )
        pooled = pooled_ttfts(arrivals, pool, costs)
        figures["ttft_mean_lru_pool_s"] = mean([pooled[place] for place in ours])
    return figures
