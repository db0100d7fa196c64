"""Workloads by name: recorded ones, and made-up ones of the shapes that tell policies apart."""

from loadtest.simulate.errors import SimulateError
from loadtest.simulate.shapes import SHAPES
from loadtest.simulate.traces import TRACES
from loadtest.simulate.workload import Kind

KINDS: dict[str, Kind] = TRACES | SHAPES


def find_kind(name: str) -> Kind:
    """Raises SimulateError."""
    if name not in KINDS:
        raise SimulateError(f"--workload: unknown workload {name!r}; there are {', '.join(sorted(KINDS))}")
    return KINDS[name]
