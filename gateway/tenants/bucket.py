"""A token bucket whose level is a function of the time it is given. Pure."""

import math


class Bucket:
    """Holds up to a minute's worth. What was admitted may cost more than was left: then it is in debt, and nothing is
    admitted until that is paid."""

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._as_of = now

    def level(self, now: float) -> float:
        return min(self.per_minute, self._level + max(0.0, now - self._as_of) * self.per_minute / 60)

    def wait_s(self, cost: float, now: float) -> float:
        """Until it could be paid; 0: now. What costs more than a full bucket is let through by a full one."""
        missing = min(cost, self.per_minute) - self.level(now)
        return 0.0 if missing <= 0 else missing * 60 / self.per_minute

    def take(self, cost: float, now: float) -> None:
        """Negative: something is given back."""
        self._level = min(self.per_minute, self.level(now) - cost)
        self._as_of = max(now, self._as_of)

    def resize(self, per_minute: int, now: float) -> None:
        """What has been used of the minute stays used."""
        used = self.per_minute - self.level(now)
        self.per_minute, self._level, self._as_of = per_minute, per_minute - used, max(now, self._as_of)

    def is_full(self, now: float) -> bool:
        return math.isclose(self.level(now), self.per_minute)
