"""The replicas as one gateway knows them: who is there, how loaded, how trusted, and what it has sent them itself.

Pure and synchronous; time is passed in. Load counters change only by leases, so neither a heartbeat nor a
re-registration can reset them.
"""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import inf

from gateway.backlog import Backlog
from gateway.fleet_table import FleetTable
from gateway.health import SLOW_START_S, Health
from gateway.identity import Difference, Identity
from gateway.index.prefix_index import Match
from gateway.routing.candidates import Candidates, Mask
from gateway.routing.native.library import the_library
from gateway.trust import Prediction, Trust
from replica.protocol.records import CostModel, Heartbeat, ReplicaState

NEWER_S = 0.05
"""Two readings of one heartbeat differ by their round trips; two heartbeats by the sender's period."""

REUSE_WEIGHT = 0.2
"""Of the newest observation."""

UNKNOWN_REUSE = 1.0
"""Of a cache that nobody has used yet. With 0 KV costs nothing at first, so the first contexts all lie on the fastest
replicas, and stay there when KV becomes scarce: on replicas of speeds 1, 2, 4 the mean TTFT was 1.7 times as long."""

STAY_WEIGHT = 0.05
FORGET_S = 60.0

NOMINAL = CostModel(c0=0.01, c_lin=1e-4, c_att=0.0, c_dec=1e-4, max_step_tokens=2048)
"""Stands in until a replica has fitted its own: then only the proportions matter, and tokens count most."""

Key = tuple[str, int]
"""Gateway, and its number of the request."""

Incarnation = tuple[str, str]
"""Replica id and epoch: a replica that came back is another one to a request that failed on it."""


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat as read, and how long ago it was written by Redis's own clock (from the key's remaining TTL)."""

    heartbeat: Heartbeat
    age_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Member:
    heartbeat: Heartbeat
    beat_at: float
    table: FleetTable
    stale: "set[_Member]"
    """Whose queue and leases the table doesn't show yet."""
    present: bool = True
    backlog: Backlog = field(default_factory=Backlog)
    prefilling: "set[Lease]" = field(default_factory=set)
    streaming: int = 0
    """Leases that have got their first token."""
    decoding: int = 0
    """Their sequences, of which a request may have several."""
    health: Health = field(default_factory=Health)
    trust: Trust = field(default_factory=Trust)
    honoured: float = 1.0
    """By `trust`, when last looked at; so is the next."""
    unpromised: float = 0.0
    reuse: float = UNKNOWN_REUSE
    stay_s: float = 0.0
    """From first token to end, of late."""
    compatible: bool | None = None
    """As the heartbeat says; None until somebody asks."""
    first_tokens_at: float = 0.0
    """The sum over all that are streaming."""
    shown_tokens_per_s: float = 0.0
    """`tokens_per_s` as the table has it: the same, unless it is stale."""
    cost: CostModel = NOMINAL
    """As the heartbeat says, once it says any."""

    def __post_init__(self) -> None:
        self.hear(self.heartbeat, self.beat_at)

    def hear(self, heartbeat: Heartbeat, at: float) -> None:
        self.heartbeat, self.beat_at, self.compatible = heartbeat, at, None
        cost = heartbeat.cost
        self.cost = cost if cost.c_lin > 0 and cost.max_step_tokens > 0 else NOMINAL

    def believe(self, now: float) -> None:
        self.honoured, self.unpromised = self.trust.honoured(now), self.trust.unpromised(now)

    @property
    def is_up(self) -> bool:
        """By what it says itself."""
        return self.present and self.heartbeat.state is ReplicaState.READY and not self.health.stuck

    @property
    def leases(self) -> int:
        return len(self.prefilling) + self.streaming

    @property
    def tokens_per_s(self) -> float:
        """At which what is queued sinks: in whole steps, with the decodes beside, and after the step under way."""
        return self._sinking(max(self.decoding, self.heartbeat.load.decoding))

    def _sinking(self, decoding: int) -> float:
        cost, level = self.cost, self.backlog.level
        tokens = level if level > 1.0 else 1.0
        if tokens > cost.max_step_tokens:
            tokens = cost.max_step_tokens
        step_s = cost.c0 + cost.c_dec * decoding
        return tokens / (step_s + cost.c_lin * tokens + (step_s / 2 if decoding else 0.0))

    def stayed(self, seconds: float) -> None:
        if seconds > 0:
            stay_s = self.stay_s
            self.stay_s = stay_s + STAY_WEIGHT * (seconds - stay_s) if stay_s else seconds

    def streaming_for(self, now: float) -> float:
        """Mean of those under way."""
        return max(0.0, now - self.first_tokens_at / self.streaming) if self.streaming else 0.0

    def changed(self) -> None:
        """Its queue or its leases: the table shows them before it is looked at again."""
        self.stale.add(self)

    def show_leases(self) -> None:
        backlog, load = self.backlog, self.heartbeat.load
        requests, leases = backlog.requests, len(self.prefilling) + self.streaming
        waiting = requests if requests > load.waiting else load.waiting
        decoding = self.decoding if self.decoding > load.decoding else load.decoding
        sinking = self.shown_tokens_per_s = self._sinking(decoding)
        self.table.write_queue(
            self.heartbeat.replica,
            (waiting, decoding, self.stay_s or 2 * self.streaming_for(self.beat_at)),
            (leases, backlog.level, backlog.as_of, requests, backlog.unknown + backlog.known, sinking),
            backlog.sizes,
        )

    def show_belief(self) -> None:
        """What an answer changes."""
        self.table.write_belief(self.heartbeat.replica, self.honoured, self.unpromised, self.reuse)

    def show(self) -> None:
        """To the table, all of it."""
        self.show_leases()
        self.show_belief()
        load, cost = self.heartbeat.load, self.cost
        self.table.write(
            self.heartbeat.replica,
            ready=self.is_up,
            max_context=self.heartbeat.max_context,
            beat_at=self.beat_at,
            tripped_at=self.health.tripped_at,
            closed_until=self.health.closed_until,
            warm_at=self.health.warm_at,
            shortest_first=self.heartbeat.order == "shortest",
            active_blocks=max(0, load.total_blocks - load.free_blocks - load.evictable_blocks),
            free_blocks=load.free_blocks,
            total_blocks=load.total_blocks,
            reuse_tokens=self.heartbeat.reuse_tokens,
            c0=cost.c0,
            c_lin=cost.c_lin,
            c_att=cost.c_att,
            c_dec=cost.c_dec,
            step_tokens=cost.max_step_tokens,
            max_running=self.heartbeat.max_running,
        )


class Lease:
    """One request on one replica: its uncached tokens count as queued until the first token, and it as decoding until
    it is released. Release it in `finally`; releasing twice does nothing."""

    __slots__ = (
        *("_member", "_open", "choices", "first_token_at", "hashes", "on_prefilled", "replica", "taken_at"),
        "uncached_tokens",
    )

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
        self.first_token_at = inf
        self.on_prefilled: Callable[[float], None] | None = None
        """Called once: at the first token, or at a release without one."""
        member.prefilling.add(self)
        stale = member.stale
        tokens_per_s = member.tokens_per_s if member in stale else member.shown_tokens_per_s
        member.backlog.sent(self, uncached_tokens, now, tokens_per_s, is_own=True)
        stale.add(member)

    def first_token(self, now: float) -> None:
        if self.first_token_at < inf:
            return
        self.first_token_at = now
        member = self._member
        member.prefilling.remove(self)
        member.backlog.done(self)
        member.streaming += 1
        member.first_tokens_at += now
        member.decoding += self.choices
        member.stale.add(member)
        if self.on_prefilled is not None:
            self.on_prefilled(now)

    def release(self, now: float) -> None:
        if not self._open:
            return
        self._open = False
        self.first_token(now)
        member, first_token_at = self._member, self.first_token_at
        member.stayed(now - first_token_at)
        member.first_tokens_at -= first_token_at
        member.streaming -= 1
        member.decoding -= self.choices
        member.stale.add(member)


@dataclass(frozen=True, slots=True)
class Status:
    """A replica for people and metrics."""

    heartbeat: Heartbeat
    state: str
    """ready, draining, stuck (its engine stands still), ejected (by the breaker) or gone."""
    differences: tuple[Difference, ...]
    """What keeps its digest from being used: such a replica is routed to by load alone."""
    leases: int
    queue_tokens: int
    own_tokens: int
    """Sent by this gateway, and without a first token."""
    trust: float
    unpromised: float
    reuse: float

    @property
    def compatible(self) -> bool:
        return not self.differences


class Fleet:
    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._members: dict[str, _Member] = {}
        self._table = FleetTable(the_library())
        self._stale: set[_Member] = set()
        self._frozen = False
        self._silent: set[str] = set()
        """Those of `announce`."""
        self._begun_at = float("inf")
        """When the first replica came of those that are there."""

    def __repr__(self) -> str:
        return f"<Fleet {' '.join(sorted(self._members)) or 'empty'}>"

    def update(self, beats: Mapping[str, Beat], now: float, kept: Collection[str] = ()) -> None:
        """All heartbeats there are now. A replica without one is out of rotation at once, but for those `kept`, whose
        heartbeat Redis may have lost."""
        self._frozen = False
        if not any(member.is_up for member in self._members.values()):
            self._begun_at = now
        for replica, beat in beats.items():
            if replica not in self._silent:
                self._take(replica, beat, now - beat.age_s)
        for replica, member in list(self._members.items()):
            if member.backlog.expire(now):
                member.changed()
            if replica not in beats and replica not in self._silent:
                if member.present and replica not in kept:
                    member.present = False
                    member.show()
                if not member.present and not member.leases and now > member.beat_at + FORGET_S:
                    del self._members[replica]
                    self._stale.discard(member)
                    self._table.remove(replica)

    def _take(self, replica: str, beat: Beat, beat_at: float) -> None:
        member = self._members.get(replica)
        if member is None:
            member = self._members[replica] = _Member(
                beat.heartbeat, float("-inf"), self._table, self._stale, present=False
            )
        known = beat.heartbeat is member.heartbeat or beat.heartbeat == member.heartbeat
        if known and beat_at < member.beat_at + NEWER_S:
            if not member.present:
                member.present = True
                member.show()
            return
        was_up, member.present = member.is_up, True
        if beat.heartbeat.epoch != member.heartbeat.epoch:
            member.trust, member.reuse = Trust(), UNKNOWN_REUSE
        member.believe(beat_at)
        member.hear(beat.heartbeat, beat_at)
        member.health.heard(beat.heartbeat.stalled_s, beat_at)
        if member.is_up and not was_up and beat_at > self._begun_at + SLOW_START_S:
            # Those that come at about the same time are a fleet that starts.
            member.health.start_slowly(beat_at)
        load = beat.heartbeat.load
        member.backlog.report(load.pending_tokens, beat_at - beat.heartbeat.load_age_s, member.tokens_per_s)
        member.show()

    def announce(self, heartbeat: Heartbeat, now: float) -> None:
        """One that publishes nothing, and has just answered a probe. Nobody else may speak for its id from now on, and
        its queue is what is sent to it."""
        replica = heartbeat.replica
        self._silent.add(replica)
        member = self._members.get(replica)
        if member is None:
            member = self._members[replica] = _Member(heartbeat, now, self._table, self._stale)
        member.hear(heartbeat, now)
        member.present = True
        member.believe(now)
        member.show()

    def withdraw(self, replica: str) -> None:
        """One of `announce`, until it is announced again."""
        member = self._members.get(replica)
        if member is not None:
            member.present = False
            member.show()

    def is_silent(self, replica: str) -> bool:
        """It publishes nothing, and takes prompts as text."""
        return replica in self._silent

    @property
    def frozen(self) -> bool:
        return self._frozen

    @property
    def unheard(self) -> bool:
        """No digest can come that would confirm or deny what is expected."""
        return self._frozen or (bool(self._silent) and len(self._silent) == len(self._members))

    def freeze(self) -> None:
        """Redis can't be reached: go on with the replicas known last, until the next update."""
        self._frozen = True
        for member in self._members.values():
            member.backlog.forget_new()
            member.changed()

    def intend(self, replica: str, request: Key, tokens: int, at: float) -> bool:
        """Another gateway has sent it this request at that time; false where no such replica is known."""
        member = self._members.get(replica)
        if member is None:
            return False
        tokens = min(tokens, member.heartbeat.max_context)
        member.backlog.sent(request, tokens, at, member.tokens_per_s, is_own=False)
        member.changed()
        return True

    def settle(self, replica: str, request: Key) -> None:
        """Another gateway's request has its first token, or ended without one."""
        member = self._members.get(replica)
        if member is not None:
            member.backlog.done(request)
            member.changed()

    def lease(self, replica: str, uncached_tokens: int, hashes: Sequence[int], now: float, choices: int = 1) -> Lease:
        """Raises KeyError for a replica that was never seen."""
        return Lease(self._members[replica], uncached_tokens, hashes, now, choices)

    def prefilling(self) -> list[Lease]:
        """Leases that wait for their first token."""
        return [lease for member in self._members.values() for lease in member.prefilling]

    def succeeded(self, replica: str) -> None:
        member = self._members.get(replica)
        if member is not None:
            member.health.succeeded()

    def failed(self, replica: str, now: float) -> None:
        """A 5xx: enough of them in a row take the replica out."""
        member = self._members.get(replica)
        if member is not None and member.health.failed():
            self.trip(replica, now)

    def trip(self, replica: str, now: float) -> None:
        """Takes the replica out at once, until a heartbeat that is newer than this arrives and a back-off is over."""
        member = self._members.get(replica)
        if member is not None:
            member.health.trip(now)
            member.show()

    def observe(self, who: Incarnation, prompt_tokens: int, prediction: Prediction, delivered: int, now: float) -> None:
        """What the cache of that epoch really gave, beside what it was predicted to."""
        replica, epoch = who
        member = self._members.get(replica)
        if member is None or member.heartbeat.epoch != epoch:
            return
        reuse = member.reuse
        member.reuse = reuse + REUSE_WEIGHT * (delivered / (prompt_tokens or 1) - reuse)
        if self._compatible(member):
            member.trust.observe(prediction, delivered, now)
            member.believe(now)
        member.show_belief()

    def open(self, now: float, tokens: int = 0, tried: Set[Incarnation] = frozenset()) -> Mask:
        """Which replicas may be chosen now, have room for so many tokens and weren't tried."""
        self._refresh()
        return self._table.open(now, self._frozen, tokens, [r for r, epoch in tried if self._epoch(r) == epoch])

    def choosable(
        self, now: float, tokens: int, tried: Set[Incarnation], matches: Mapping[str, Match]
    ) -> Candidates | None:
        """`candidates` of those that are `open`; None where there is none."""
        self._refresh()
        without = [r for r, epoch in tried if self._epoch(r) == epoch] if tried else ()
        return self._table.choosable(now, self._frozen, tokens, without, matches)

    def candidates(self, which: Mask, matches: Mapping[str, Match], now: float) -> Candidates:
        """`matches`: what they hold of the prompt."""
        self._refresh()
        return self._table.candidates(which, matches, now)

    def routable(self, now: float) -> tuple[str, ...]:
        return tuple(sorted(self._table.names(self._table.well(now, self._frozen))))

    def max_context(self, now: float) -> int:
        """Of the roomiest routable replica; without any, no limit is known."""
        contexts = (self._members[replica].heartbeat.max_context for replica in self.routable(now))
        return max(contexts, default=sys.maxsize)

    def heartbeat(self, replica: str) -> Heartbeat:
        """Raises KeyError."""
        return self._members[replica].heartbeat

    def compatible(self, replica: str) -> bool:
        """Whether its digest is about the same blocks as ours."""
        member = self._members.get(replica)
        return member is not None and self._compatible(member)

    def _compatible(self, member: _Member) -> bool:
        if member.compatible is None:
            member.compatible = not self._identity.differences(member.heartbeat)
        return member.compatible

    def state(self, replica: str, now: float) -> str:
        """See Status; `gone` for one that was never seen, too."""
        member = self._members.get(replica)
        return "gone" if member is None else self._state(member, now)

    def differences(self, replica: str) -> tuple[Difference, ...]:
        """What keeps its digest from being used. Raises KeyError."""
        return self._identity.differences(self._members[replica].heartbeat)

    def present(self) -> tuple[str, ...]:
        """Of those that have heartbeats."""
        return tuple(name for name, member in self._members.items() if member.present and name not in self._silent)

    def hanging(self) -> list[str]:
        """Addresses of replicas that hold requests of ours, and are gone or stuck."""
        members = self._members.values()
        return [each.heartbeat.url for each in members if each.leases and (each.health.stuck or not each.present)]

    def statuses(self, now: float) -> dict[str, Status]:
        return {
            replica: Status(
                heartbeat=member.heartbeat,
                state=self._state(member, now),
                differences=self._identity.differences(member.heartbeat),
                leases=member.leases,
                queue_tokens=round(member.backlog.tokens(now, member.tokens_per_s)),
                own_tokens=sum(lease.uncached_tokens for lease in member.prefilling),
                trust=member.trust.honoured(now),
                unpromised=member.trust.unpromised(now),
                reuse=member.reuse,
            )
            for replica, member in sorted(self._members.items())
        }

    def _refresh(self) -> None:
        while self._stale:
            self._stale.pop().show_leases()

    def _epoch(self, replica: str) -> str:
        return self._members[replica].heartbeat.epoch if replica in self._members else ""

    def _state(self, member: _Member, now: float) -> str:
        if not member.present:
            return "gone"
        if member.heartbeat.state is not ReplicaState.READY:
            return "draining"
        health = member.health
        if health.stuck:
            return "stuck"
        heard_since = self._frozen or member.beat_at > health.tripped_at
        return "ready" if now >= health.closed_until and heard_since else "ejected"
