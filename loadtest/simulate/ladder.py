"""The same fleet at one rate after the other: where each policy's knee is."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from loadtest.simulate.simulate import SimulateOptions, SimulateResult, simulate


def climb(
    options: SimulateOptions, rate_scales: Sequence[float], progress: Callable[[str], None] = lambda line: None
) -> list[SimulateResult]:
    """One result a rate; without rates, one at the workload's own. Raises SimulateError."""
    steps: Sequence[float | None] = rate_scales or [None]
    return [simulate(replace(options, rate_scale=rate_scale), progress) for rate_scale in steps]
