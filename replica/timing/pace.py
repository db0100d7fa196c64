"""When a step that only waits is over."""

from collections.abc import Callable

_MAX_LATE_S = 0.1
"""What is late by more is lost: a machine that stood still for a second must not let a second of steps pass at once."""


class Pace:
    """Each step lasts from the end that the last one should have had. So Python's own work is inside a step's time, and
    a sleep that ends late shortens the next one: lateness doesn't add up."""

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._clock = clock
        self._sleep = sleep
        self._ends_at = 0.0
        self.lost_s = 0.0
        """By how much all steps together took too long. It grows where the machine is too slow for the profile."""

    def begin(self) -> None:
        """There is work for an engine that had none: its step begins now."""
        self._ends_at = self._clock()

    def wait(self, seconds: float) -> None:
        """Until a step of so many seconds is over."""
        now = self._clock()
        begun_at = max(self._ends_at, now - _MAX_LATE_S)
        self.lost_s += begun_at - self._ends_at
        self._ends_at = begun_at + seconds
        if self._ends_at > now:
            self._sleep(self._ends_at - now)
