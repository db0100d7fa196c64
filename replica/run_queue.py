"""What the system says of how long a thread has waited for a core."""

from pathlib import Path


def waited_for_core_s(thread_id: int) -> float:
    """Seconds in which that thread of this process was ready to run and none was free, since it began; 0 where the
    system doesn't tell. See the kernel's Documentation/scheduler/sched-stats.rst."""
    try:
        return int(Path(f"/proc/self/task/{thread_id}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
