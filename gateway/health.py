"""Whether one replica is well, by what it says of itself and by how its answers end. Pure.

Its breaker opens by a guess: answers failed, and the cause may have been another. So it closes by itself, after a
back-off that grows with each time anew, and it never keeps out most of a fleet (`FleetTable.open`). That its engine
stands still a replica says itself, and is no guess.
"""

from dataclasses import dataclass

BACK_OFF_S = 0.25
BACK_OFF_MAX_S = 30.0
BACK_OFF_FORGIVEN_S = 10.0
"""Without a failure, for one of them to be forgotten."""

FAILURES_IN_A_ROW = 3
"""5xx answers without a success between them that take a replica out. One may be the prompt's own fault, and must not
take out each replica that it is retried on."""

STALLED_S = 4.0
"""Its engine hasn't moved for so long beyond what its step may take (`Heartbeat.stalled_s`). Heartbeats come each half
a second and a step gets at least a second, so it is out of rotation some six seconds after the last step."""

BEATS_TO_RETURN = 2
"""That tell of an engine which moves, before one that stood still is believed."""

SLOW_START_S = 10.0
"""For so long a replica that comes or comes back takes no more than its share of what is in flight."""


@dataclass(slots=True)
class Health:
    failures: int = 0
    back_offs: int = 0
    tripped_at: float = float("-inf")
    """Out until a heartbeat that is newer than this,"""
    closed_until: float = float("-inf")
    """and until then."""
    stuck: bool = False
    warm_at: float = float("-inf")
    """From then on it takes what it is given."""
    _moving: int = 0

    def succeeded(self) -> None:
        self.failures = 0

    def failed(self) -> bool:
        """A 5xx; whether it is one too many."""
        self.failures += 1
        return self.failures >= FAILURES_IN_A_ROW

    def trip(self, now: float) -> None:
        if now >= self.closed_until:
            # Requests that fail together are one failure: they double the back-off once.
            forgiven = max(0.0, now - self.closed_until) / BACK_OFF_FORGIVEN_S
            self.back_offs = max(0, self.back_offs - int(min(forgiven, self.back_offs)))
            self.closed_until = now + min(BACK_OFF_MAX_S, BACK_OFF_S * 2**self.back_offs)
            self.back_offs += 1
        self.tripped_at = now
        self.failures = 0
        self.start_slowly(self.closed_until)

    def heard(self, stalled_s: float, now: float) -> None:
        """A new heartbeat says for how long the engine has stood still."""
        if stalled_s > STALLED_S:
            self.stuck, self._moving = True, 0
        elif self.stuck:
            self._moving = 0 if stalled_s > 0 else self._moving + 1
            if self._moving >= BEATS_TO_RETURN:
                self.stuck = False
                self.start_slowly(now)

    def start_slowly(self, now: float) -> None:
        self.warm_at = max(self.warm_at, now + SLOW_START_S)
