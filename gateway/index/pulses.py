"""Who is alive, by our own clock: a heartbeat that neither changes nor is given more time is of nobody. Pure.

The keys' own expiry isn't enough: set back by an hour, Redis's clock keeps a dead replica's heartbeat for that hour;
set forward, or wiped, it takes those of the living. More time without a change is all that a replica can give to its
heartbeat while Redis is full.
"""

import math
from dataclasses import dataclass

from replica.protocol.records import HEARTBEAT_TTL_S, Heartbeat

FORGET_S = 60.0
RENEWED_S = 0.3
"""Two looks at one heartbeat find it as old, but for their round trips."""
USUAL_S = 0.5
"""Two looks are mostly no further apart."""


@dataclass(slots=True)
class _Pulse:
    beat: tuple[str, int]
    since: float
    written_at: float


class Pulses:
    def __init__(self) -> None:
        self._pulses: dict[str, _Pulse] = {}
        self._looked_at = 0.0
        self._slack_s = 0.0
        """Where Redis is so slow that we look but seldom, so do replicas write."""

    def __len__(self) -> int:
        return len(self._pulses)

    def connected(self, now: float) -> None:
        """While nobody could look nobody was late, and replicas need time to come back as well."""
        for pulse in self._pulses.values():
            if pulse.since + HEARTBEAT_TTL_S >= self._looked_at:
                pulse.since = now
        self._looked_at = now

    def look(self, now: float) -> None:
        """All heartbeats have just been read."""
        self._slack_s = max(0.0, now - self._looked_at - USUAL_S)
        self._looked_at = now
        for replica in [replica for replica, pulse in self._pulses.items() if pulse.since + FORGET_S < now]:
            del self._pulses[replica]

    def is_alive(self, replica: str, heartbeat: Heartbeat, now: float, written_at: float = -math.inf) -> bool:
        """Given its heartbeat as just read, written or given more time when Redis says so."""
        beat = (heartbeat.epoch, heartbeat.beats)
        pulse = self._pulses.get(replica)
        if pulse is None or pulse.beat != beat or written_at > pulse.written_at + RENEWED_S:
            self._pulses[replica] = _Pulse(beat, now, written_at)
            return True
        return now <= pulse.since + HEARTBEAT_TTL_S + self._slack_s

    def may_be_alive(self, replica: str, now: float) -> bool:
        """Given that it has no heartbeat."""
        pulse = self._pulses.get(replica)
        return pulse is not None and now <= pulse.since + HEARTBEAT_TTL_S + self._slack_s
