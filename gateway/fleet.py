"""The replicas as one gateway knows them: who is there, how loaded, how trusted, and what it has sent them itself.

Pure and synchronous; time is passed in. Load counters change only by leases, so neither a heartbeat nor a
re-registration can reset them.
"""

import sys
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.identity import Difference, Identity
from gateway.routing.base import ReplicaView
from replica.protocol.records import HEARTBEAT_TTL_S, Heartbeat, ReplicaState

NEWER_S = 0.05
"""Two readings of one heartbeat differ by their round trips; two heartbeats by the sender's period."""

BACK_OFF_S = 0.25
BACK_OFF_MAX_S = 30.0
FAILURES_IN_A_ROW = 3
"""5xx answers without a success between them that take a replica out. One may be the prompt's own fault, and must not
take out each replica that it is retried on."""

TRUST_WEIGHT = 0.2
"""Of the newest observation: a replica that lies loses half its credit within three requests."""

FORGET_S = 60.0


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat as read, and how long ago it was written by Redis's own clock (from the key's remaining TTL)."""

    heartbeat: Heartbeat
    age_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Member:
    heartbeat: Heartbeat
    beat_at: float
    present: bool = True
    others_tokens: int = 0
    """Queued by other gateways and clients, as of the last heartbeat."""
    prefilling: "set[Lease]" = field(default_factory=set)
    streaming: int = 0
    """Leases that have got their first token."""
    decoding: int = 0
    """Their sequences, of which a request may have several."""
    prefilled: "deque[Lease]" = field(default_factory=deque)
    """Leases that got their first token so lately that a report still to come may count them."""
    back_offs: int = 0
    failures: int = 0
    tripped_at: float = float("-inf")
    closed_until: float = float("-inf")
    trust: float = 1.0
    reuse: float = 0.0

    @property
    def own_tokens(self) -> int:
        return sum(lease.uncached_tokens for lease in self.prefilling)

    @property
    def leases(self) -> int:
        return len(self.prefilling) + self.streaming

    def own_tokens_at(self, time: float) -> int:
        """Own uncached tokens that the replica had before it at that time."""
        while self.prefilled and self.prefilled[0].first_token_at < time - HEARTBEAT_TTL_S:
            self.prefilled.popleft()
        recent = [lease for lease in self.prefilled if lease.first_token_at > time]
        return sum(lease.uncached_tokens for lease in [*self.prefilling, *recent] if lease.taken_at <= time)


class Lease:
    """One request on one replica: its uncached tokens count as queued until the first token, and it as decoding until
    it is released. Release it in `finally`; releasing twice does nothing."""

    __slots__ = ("_member", "_open", "choices", "first_token_at", "hashes", "replica", "taken_at", "uncached_tokens")

    def __init__(
        self, member: _Member, uncached_tokens: int, hashes: Sequence[int], now: float, choices: int = 1
    ) -> None:
        self._member = member
        self._open = True
        self.replica = member.heartbeat.replica
        self.uncached_tokens = uncached_tokens
        self.hashes = hashes
        self.choices = choices
        self.taken_at = now
        self.first_token_at = float("inf")
        member.prefilling.add(self)

    def first_token(self, now: float) -> None:
        if self in self._member.prefilling:
            self._member.prefilling.remove(self)
            self._member.prefilled.append(self)
            self._member.streaming += 1
            self._member.decoding += self.choices
            self.first_token_at = now

    def release(self, now: float) -> None:
        self.first_token(now)
        if self._open:
            self._open = False
            self._member.streaming -= 1
            self._member.decoding -= self.choices


@dataclass(frozen=True, slots=True)
class Status:
    """A replica for people and metrics."""

    heartbeat: Heartbeat
    state: str
    """ready, draining, ejected (by the breaker) or gone."""
    differences: tuple[Difference, ...]
    """What keeps its digest from being used: such a replica is routed to by load alone."""
    leases: int
    queue_tokens: int
    trust: float
    reuse: float

    @property
    def compatible(self) -> bool:
        return not self.differences


class Fleet:
    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._members: dict[str, _Member] = {}
        self._frozen = False

    def __repr__(self) -> str:
        return f"<Fleet {' '.join(sorted(self._members)) or 'empty'}>"

    def update(self, beats: Mapping[str, Beat], now: float, kept: Collection[str] = ()) -> None:
        """All heartbeats there are now. A replica without one is out of rotation at once, but for those `kept`, whose
        heartbeat Redis may have lost."""
        self._frozen = False
        for replica, beat in beats.items():
            self._take(replica, beat, now - beat.age_s)
        for replica, member in list(self._members.items()):
            if replica not in beats:
                member.present = member.present and replica in kept
                if not member.present and not member.leases and now > member.beat_at + FORGET_S:
                    del self._members[replica]

    def _take(self, replica: str, beat: Beat, beat_at: float) -> None:
        member = self._members.get(replica)
        if member is None:
            member = self._members[replica] = _Member(beat.heartbeat, float("-inf"))
        member.present = True
        if beat_at < member.beat_at + NEWER_S and beat.heartbeat == member.heartbeat:
            return
        if beat.heartbeat.epoch != member.heartbeat.epoch:
            member.trust, member.reuse = 1.0, 0.0
        member.heartbeat, member.beat_at = beat.heartbeat, beat_at
        member.others_tokens = max(0, beat.heartbeat.load.pending_tokens - member.own_tokens_at(beat_at))

    def freeze(self) -> None:
        """Redis can't be reached: go on with the replicas known last, until the next update."""
        self._frozen = True

    def lease(self, replica: str, uncached_tokens: int, hashes: Sequence[int], now: float, choices: int = 1) -> Lease:
        """Raises KeyError for a replica that was never seen."""
        return Lease(self._members[replica], uncached_tokens, hashes, now, choices)

    def prefilling(self) -> list[Lease]:
        """Leases that wait for their first token."""
        return [lease for member in self._members.values() for lease in member.prefilling]

    def succeeded(self, replica: str) -> None:
        member = self._members.get(replica)
        if member is not None:
            member.failures = member.back_offs = 0

    def failed(self, replica: str, now: float) -> None:
        """A 5xx: enough of them in a row take the replica out."""
        member = self._members.get(replica)
        if member is not None:
            member.failures += 1
            if member.failures >= FAILURES_IN_A_ROW:
                self.trip(replica, now)

    def trip(self, replica: str, now: float) -> None:
        """Takes the replica out at once, until a heartbeat that is newer than this arrives and a back-off is over."""
        member = self._members.get(replica)
        if member is not None:
            if now >= member.closed_until:
                # Requests that fail together are one failure: they double the back-off once.
                member.closed_until = now + min(BACK_OFF_MAX_S, BACK_OFF_S * 2**member.back_offs)
                member.back_offs += 1
            member.tripped_at = now
            member.failures = 0

    def observe(self, replica: str, prompt_tokens: int, predicted: int, delivered: int) -> None:
        """What the replica's cache really gave, beside what it was predicted to."""
        member = self._members.get(replica)
        if member is None:
            return
        if predicted > 0:
            member.trust += TRUST_WEIGHT * (min(1.0, delivered / predicted) - member.trust)
        member.reuse += TRUST_WEIGHT * (min(1.0, delivered / max(1, prompt_tokens)) - member.reuse)

    def snapshot(self, now: float) -> tuple[ReplicaView, ...]:
        """The replicas that may be chosen now, by id; what they hold of a prompt is for the index to add."""
        return tuple(
            self._view(self._members[r]) for r in sorted(self._members) if self._routable(self._members[r], now)
        )

    def routable(self, now: float) -> tuple[str, ...]:
        return tuple(replica for replica in sorted(self._members) if self._routable(self._members[replica], now))

    def max_context(self, now: float) -> int:
        """Of the roomiest routable replica; without any, no limit is known."""
        return max((view.max_context for view in self.snapshot(now)), default=sys.maxsize)

    def heartbeat(self, replica: str) -> Heartbeat:
        """Raises KeyError."""
        return self._members[replica].heartbeat

    def compatible(self, replica: str) -> bool:
        """Whether its digest is about the same blocks as ours."""
        member = self._members.get(replica)
        return member is not None and not self._identity.differences(member.heartbeat)

    def differences(self, replica: str) -> tuple[Difference, ...]:
        """What keeps its digest from being used. Raises KeyError."""
        return self._identity.differences(self._members[replica].heartbeat)

    def present(self) -> tuple[str, ...]:
        return tuple(replica for replica, member in self._members.items() if member.present)

    def statuses(self, now: float) -> dict[str, Status]:
        return {
            replica: Status(
                heartbeat=member.heartbeat,
                state=self._state(member, now),
                differences=self._identity.differences(member.heartbeat),
                leases=member.leases,
                queue_tokens=member.own_tokens + member.others_tokens,
                trust=member.trust,
                reuse=member.reuse,
            )
            for replica, member in sorted(self._members.items())
        }

    def _routable(self, member: _Member, now: float) -> bool:
        return self._state(member, now) == "ready"

    def _state(self, member: _Member, now: float) -> str:
        if not member.present:
            return "gone"
        if member.heartbeat.state is not ReplicaState.READY:
            return "draining"
        heard_since = self._frozen or member.beat_at > member.tripped_at
        return "ready" if now >= member.closed_until and heard_since else "ejected"

    def _view(self, member: _Member) -> ReplicaView:
        heartbeat = member.heartbeat
        return ReplicaView(
            id=heartbeat.replica,
            epoch=heartbeat.epoch,
            queue_tokens=member.own_tokens + member.others_tokens,
            decoding=max(member.decoding, heartbeat.load.decoding),
            cost=heartbeat.cost,
            free_blocks=heartbeat.load.free_blocks,
            total_blocks=heartbeat.load.total_blocks,
            max_context=heartbeat.max_context,
            trust=member.trust,
            reuse=member.reuse,
        )
