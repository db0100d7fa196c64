"""Figures of a run. Pure. TTFT, ITL and the rest are defined as in loadtest/metrics.py; times are the gateway's."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from loadtest.metrics import max_over_mean, mean, percentile, ratio
from loadtest.simulate.prompts import AGGRESSOR
from loadtest.simulate.run import Outcome
from loadtest.simulate.workload import Workload


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one policy and seed. Tokens are real ones."""

    requests: int
    failed: int
    ttft_mean_s: float | None
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    ttft_p99_others_s: float | None
    """Of all but the aggressor's requests."""
    itl_mean_s: float | None
    itl_p99_s: float | None
    e2e_mean_s: float | None
    e2e_p99_s: float | None
    prompt_tokens: int
    delivered_tokens: int
    """Of prompts, from replicas' caches."""
    hit: float | None
    """Delivered over prompt tokens."""
    predicted_over_delivered: float | None
    """What gateways expected of caches when they routed, over what they got."""
    work_max_over_mean: float | None
    """Prompt tokens computed, by replica."""
    output_max_over_mean: float | None
    busy_mean: float | None
    """Share of the time that a replica computes."""
    preemptions: int
    duration_s: float
    """First arrival to last answer's end."""
    output_tokens_per_s: float | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarise(workload: Workload, outcome: Outcome) -> Figures:
    done = [call for call in outcome.calls if not call.failed]
    ttfts = [call.first_at - call.at for call in done if call.first_at is not None]
    others = [
        call.first_at - call.at for call in done if call.first_at is not None and call.request.tenant != AGGRESSOR
    ]
    itls = [
        (call.done_at - call.first_at) / (call.request.output - 1)
        for call in done
        if call.first_at is not None and call.done_at is not None and call.request.output > 1
    ]
    e2es = [call.done_at - call.at for call in done if call.done_at is not None]
    prompt_tokens = sum(call.request.tokens for call in done)
    delivered = sum(call.delivered for call in done)
    predicted = sum(call.predicted.expected for call in done if call.predicted is not None)
    outputs = Counter({replica.name: 0 for replica in outcome.replicas})
    for call in done:
        outputs[call.replica] += call.request.output
    begin = min((call.at for call in outcome.calls), default=0.0)
    duration = outcome.ended_at - begin
    return Figures(
        requests=len(outcome.calls),
        failed=len(outcome.calls) - len(done),
        ttft_mean_s=mean(ttfts),
        ttft_p50_s=percentile(ttfts, 50),
        ttft_p90_s=percentile(ttfts, 90),
        ttft_p99_s=percentile(ttfts, 99),
        ttft_p99_others_s=percentile(others, 99),
        itl_mean_s=mean(itls),
        itl_p99_s=percentile(itls, 99),
        e2e_mean_s=mean(e2es),
        e2e_p99_s=percentile(e2es, 99),
        prompt_tokens=prompt_tokens * workload.stride,
        delivered_tokens=delivered * workload.stride,
        hit=ratio(delivered, prompt_tokens),
        predicted_over_delivered=ratio(predicted, delivered),
        work_max_over_mean=max_over_mean([replica.computed_tokens for replica in outcome.replicas]),
        output_max_over_mean=max_over_mean(list(outputs.values())),
        busy_mean=mean([replica.busy_s / outcome.ended_at for replica in outcome.replicas]),
        preemptions=sum(replica.preemptions for replica in outcome.replicas),
        duration_s=duration,
        output_tokens_per_s=ratio(sum(outputs.values()), duration),
    )


def spread(runs: list[Figures]) -> dict[str, dict[str, float | None]]:
    """Of each figure over seeds: median, least and most."""
    found: dict[str, dict[str, float | None]] = {}
    for name in runs[0].as_dict():
        values = [value for value in (getattr(run, name) for run in runs) if value is not None]
        found[name] = {
            "median": percentile(values, 50),
            "min": min(values, default=None),
            "max": max(values, default=None),
        }
    return found
