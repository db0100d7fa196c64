"""Where processes run, and what they use. Linux only."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtest.peers.processes import parse_stat

_PROC = Path("/proc")


def split_cores() -> tuple[int, int]:
    """One for the proxies, one for mocks and clients; the same where there is but one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[-1], cores[0]


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """What is started here runs there: a child inherits it, with all its threads."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def family(root: int) -> list[int]:
    """`root` and all that descend from it."""
    parents: dict[int, int] = {}
    for stat in _PROC.glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = parse_stat(stat.read_text())[0]
        except (OSError, ValueError):
            continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def cpu_s(pids: list[int]) -> float:
    """User and system time of those that live, by the kernel's clock of each process: /proc counts in hundredths."""
    total = 0.0
    for pid in pids:
        try:
            # The clock id of a process, as clock_getcpuclockid() makes it.
            total += time.clock_gettime((~pid << 3) | 2)
        except OSError:
            continue
    return total


def resident_mib(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        try:
            lines = (_PROC / str(pid) / "status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return total / 1024
