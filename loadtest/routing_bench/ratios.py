"""How policies compare over workloads. Pure."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

OURS = "ttft"

Table = Mapping[str, Mapping[str, float]]
"""By workload, then policy: a time, of which less is better."""


@dataclass(frozen=True, slots=True)
class Worst:
    ratio: float
    workload: str
    best: str
    """The policy that was better there, or came closest."""


def over_best_other(times: Mapping[str, float]) -> dict[str, float]:
    """Every policy's time over the best of those that aren't ours: so ours is below 1 where it beats all of them."""
    _, best = _best_other(times)
    return {policy: ratio(time, best) for policy, time in times.items()}


def worst(*tables: Table) -> Worst:
    """Where ours is furthest behind the best other one, over all tables."""
    found = []
    for table in tables:
        for workload, times in table.items():
            policy, best = _best_other(times)
            found.append(Worst(ratio(times[OURS], best), workload, policy))
    return max(found, key=lambda each: each.ratio)


def gains(table: Table) -> dict[str, float]:
    """Each other policy's time over ours, the geometric mean over all workloads, less 1: 0.15 is 15 % better."""
    others = [policy for policy in next(iter(table.values())) if policy != OURS]
    return {
        policy: geometric_mean(ratio(times[policy], times[OURS]) for times in table.values()) - 1 for policy in others
    }


def geometric_mean(values: Iterable[float]) -> float:
    logarithms = [math.log(value) if value > 0 else -math.inf for value in values]
    return math.exp(math.fsum(logarithms) / len(logarithms))


def ratio(time: float, base: float) -> float:
    """1 where both are 0 or neither ever came to an end."""
    if time == base:
        return 1.0
    return time / base if base > 0 else math.inf


def _best_other(times: Mapping[str, float]) -> tuple[str, float]:
    return min(((policy, time) for policy, time in times.items() if policy != OURS), key=lambda each: each[1])
