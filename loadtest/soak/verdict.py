"""What must be true after a soak. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

GROWTH_MAX_MIB = 48.0
"""From the second quarter of the load to its last: before that, caches and memos fill."""
DESCRIPTORS_MORE_MAX = 32
TASKS_MORE_MAX = 4
FAILED_SHARE_MAX = 0.005
"""Of requests whose client stayed and whose stream had not begun when its replica was killed."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Of the gateway."""

    at_s: float
    resident_mib: float
    descriptors: int
    threads: int
    tasks: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """Of one replica, at rest."""

    running: float
    waiting: float
    pending_tokens: float
    blocks_missing: float
    """With its cache emptied, of all there are."""


@dataclass(frozen=True, slots=True)
class Outcome:
    before: Sample
    """At rest, after the load that looked for saturation."""
    during: Sequence[Sample]
    after: Sample
    """At rest again."""
    answered: int
    left: int
    """By their clients."""
    broken: int
    """Streams that ended in an error event."""
    failed: int
    """All else."""
    in_flight: float
    queue_tokens: float
    """What the gateway still counts, at rest."""
    ledgers: dict[str, Ledger]

    @property
    def growth_mib(self) -> float:
        quarters = _quarters(self.during)
        return statistics.median(s.resident_mib for s in quarters[3]) - statistics.median(
            s.resident_mib for s in quarters[1]
        )


def problems(outcome: Outcome) -> list[str]:
    found = []
    if outcome.answered == 0:
        found.append("not one request was answered")
    asked = outcome.answered + outcome.failed
    if outcome.failed > FAILED_SHARE_MAX * asked:
        found.append(f"{outcome.failed} of {asked} requests failed")
    if outcome.growth_mib > GROWTH_MAX_MIB:
        found.append(f"memory grew by {outcome.growth_mib:.0f} MiB")
    before, after = outcome.before, outcome.after
    for name, more, limit in (
        ("descriptors", after.descriptors - before.descriptors, DESCRIPTORS_MORE_MAX),
        ("tasks", after.tasks - before.tasks, TASKS_MORE_MAX),
        ("threads", after.threads - before.threads, TASKS_MORE_MAX),
    ):
        if more > limit:
            found.append(f"{more} more {name} than before")
    if outcome.in_flight or outcome.queue_tokens:
        found.append(f"at rest {outcome.in_flight:g} requests and {outcome.queue_tokens:g} queued tokens are counted")
    for replica, ledger in outcome.ledgers.items():
        if ledger != Ledger(0, 0, 0, 0):
            found.append(f"the ledger of {replica} isn't clean: {ledger}")
    return found


def _quarters(samples: Sequence[Sample]) -> list[Sequence[Sample]]:
    """Raises ValueError for fewer than four."""
    if len(samples) < 4:
        raise ValueError("a soak has at least four samples")
    size = len(samples) // 4
    return [samples[number * size : (number + 1) * size] for number in range(3)] + [samples[3 * size :]]
