"""The same plan on the running fleet and on a simulated one of its shape: how far the simulation is off."""

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

from loadtest.client import RequestRecord
from loadtest.gateway_api import ReplicaShape
from loadtest.metrics import Figures, max_over_mean, mean, percentile, ratio
from loadtest.replay.figures import Measured
from loadtest.simulate.like import shape_like
from loadtest.simulate.recorded import workload_of
from loadtest.simulate.run import Outcome, Simulation
from loadtest.trace.plan import Plan

COMPARED = {
    "hit": "hit",
    "TTFT mean": "ttft_mean_s",
    "TTFT p50": "ttft_p50_s",
    "TTFT p90": "ttft_p90_s",
    "ITL": "itl_mean_s",
    "work max/mean": "prompt_tokens_computed_max_over_mean",
}


def fitted_latency(probes: Sequence[RequestRecord], fleet: Sequence[ReplicaShape]) -> float:
    """Seconds of each way between gateway and replica, from requests that came one by one: all that a first token took
    beyond the replica's own cost model. It stands for the client, HTTP and tokenising too."""
    costs = {replica.name: replica.cost for replica in fleet}
    extra = [
        probe.ttft_s - costs[probe.replica].prefill_s(probe.prompt_tokens, probe.cached_tokens)
        for probe in probes
        if probe.ttft_s is not None and probe.replica in costs
    ]
    return max(0.0, median(extra) / 2) if extra else 0.0


def simulated_figures(
    plan: Plan, fleet: Sequence[ReplicaShape], policy: str, seed: int, latency_s: float, measured: Measured
) -> Figures:
    """Raises SimulateError."""
    shape = shape_like(fleet, latency_s=latency_s)
    return _figures(Simulation(workload_of(plan, answers_found=False), shape, policy, seed).run(), measured)


def _figures(outcome: Outcome, measured: Measured) -> Figures:
    start_s = min((call.at for call in outcome.calls), default=0.0)
    calls = [call for call in outcome.calls if not call.failed and measured(call.request.number, call.at - start_s)]
    ttfts = [call.first_at - call.at for call in calls if call.first_at is not None]
    itls = [
        (call.done_at - call.first_at) / (call.request.output - 1)
        for call in calls
        if call.first_at is not None and call.done_at is not None and call.request.output > 1
    ]
    computed = Counter({replica.name: 0 for replica in outcome.replicas})
    for call in calls:
        computed[call.replica] += call.request.tokens - call.delivered
    return {
        "hit": ratio(sum(call.delivered for call in calls), sum(call.request.tokens for call in calls)),
        "ttft_mean_s": mean(ttfts),
        "ttft_p50_s": percentile(ttfts, 50),
        "ttft_p90_s": percentile(ttfts, 90),
        "itl_mean_s": mean(itls),
        "prompt_tokens_computed_max_over_mean": max_over_mean(list(computed.values())),
    }


def compared(measured: Figures, simulated: Figures) -> dict[str, dict[str, Any]]:
    """Simulated against measured: as a difference for the hit rate, else as a share of what was measured."""
    found = {}
    for name, figure in COMPARED.items():
        real, made = measured[figure], simulated[figure]
        if real is None or made is None:
            continue
        difference = made - real if figure == "hit" else ratio(made - real, real)
        if difference is not None:
            found[name] = {"measured": real, "simulated": made, "difference": difference}
    return found
