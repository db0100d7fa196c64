"""Who goes to a replica now, who waits and who is refused: admission, fairness and late binding. Pure.

While something is held it counts in the queue of the replica that it waits for, so that a decision says what it would
if all had been sent at once. When there is room at a replica, the one whose turn it is is decided over again, by what
the caches and queues are by then, and goes where that says. A replica that nobody waits for gets others to look at it.
"""

from collections.abc import Iterator
from itertools import islice
from math import inf

import numpy as np

from gateway.errors import DeadlineOutOfReach, QueueFull
from gateway.hold.bounds import UNBOUNDED, Bounds
from gateway.hold.guest import Guest
from gateway.hold.room import WaitingRoom
from gateway.hold.shares import Shares
from gateway.router import Considered, Router
from gateway.routing.candidates import Candidates
from gateway.routing.hold import ALL, NOTHING, any_idle, binds_late, early_at, early_s, horizon_s
from gateway.routing.wait import believed_wait_s, predicted_ttft_s
from replica.protocol.hashing import BLOCK_SIZE

PATIENCE_STEPS = 8
"""Full steps of all replicas whose tokens may pass a request of the same tenant and priority; as at the replica."""

TRIES = 4
"""Decisions of each kind that may come to nothing, at a time."""

CHANGED = 16
"""Likewise, of those whose prefix somebody is about to compute."""

SOONEST_S = 0.002


class FrontDesk:
    def __init__(self, router: Router, bounds: Bounds = UNBOUNDED) -> None:
        self.shares = Shares()
        self.room = WaitingRoom(self.shares)
        self._router = router
        self._bounds = bounds

    def arrive(self, guest: Guest, now: float) -> bool:
        """Afterwards it is held, or has a decision, whose lease is to be taken at once. False: no replica may take it.

        Raises QueueFull or DeadlineOutOfReach.
        """
        found = self._consider(guest, now)
        if found is None:
            return False
        considered, raw = found
        uncached = _uncached(considered)
        self._admit(guest, considered, raw, uncached, now)
        if self._must_wait(guest, considered, raw, uncached):
            self.room.add(guest, considered.decision.choice, uncached, _patience(considered), now)
            self.room.awaits(guest, _missing(considered))
        else:
            self._send(guest, considered, uncached, now)
        return True

    def next(self, now: float) -> Guest | None:
        """Who goes next, with its decision. Its lease is to be taken before the next call."""
        raw = self._open(now)
        if raw is None:
            return None
        for guest in self._in_turn(raw, now):
            if self._look_again(guest, now):
                return guest
        return None

    def next_at(self, now: float) -> float:
        """When to call `next` again, if nothing happens."""
        raw = self._open(now)
        if raw is None:
            return inf
        soonest = min((early for early, _ in self._heads(raw)), default=inf)
        return now + max(SOONEST_S, soonest)

    def leave(self, guest: Guest, now: float) -> None:
        """It has its first token or comes to an end: its client has gone, its time is up, its replica has failed.
        Once is enough, in whatever order."""
        if guest.target:
            self.room.remove(guest, now, sent=False)
        if guest.open_tokens:
            self.shares.close(guest.terms.tenant, guest.open_tokens)
            guest.open_tokens = 0

    def stranded(self, now: float, longest_s: float) -> list[Guest]:
        """Held, and for so long no replica could have taken them."""
        anywhere = self._router.fleet.open(now).any()
        if not anywhere:
            for guest in self.room:
                guest.stranded_at = min(guest.stranded_at, now)
        return [guest for guest in self.room if now > guest.stranded_at + longest_s]

    def _open(self, now: float) -> Candidates | None:
        """The replicas that may be sent something; None where nobody waits, or there is no such replica."""
        if not len(self.room):
            return None
        which = self._router.fleet.open(now)
        return self._router.fleet.candidates(which, {}, now) if which.any() else None

    def _consider(self, guest: Guest, now: float, without: str = "") -> tuple[Considered, Candidates] | None:
        """With all of its tenant that is held, but for one lane's; and the candidates as they are."""
        self._router.expire(now)
        if not self.room.lanes:
            considered = self._router.consider(guest.request, guest.total_tokens, guest.tried, now)
            return None if considered is None else (considered, considered.candidates)
        seen: list[Candidates] = []

        def with_held(candidates: Candidates) -> Candidates:
            seen.append(candidates)
            return self.room.added_to(candidates, guest.terms.tenant, without)

        considered = self._router.consider(guest.request, guest.total_tokens, guest.tried, now, adjust=with_held)
        return None if considered is None else (considered, seen[0])

    def _admit(self, guest: Guest, considered: Considered, raw: Candidates, uncached: int, now: float) -> None:
        tenant, _, deadline = guest.terms
        wants = uncached or 1
        full_s = self._bounds.overfull_s(raw, self.room.tokens, wants)
        if full_s > 0 and self._bounds.exceeds_share(raw, self.shares, tenant, wants):
            raise QueueFull("the queue is full", retry_after_s=full_s)
        if deadline < inf:
            wait_s = _predicted_s(considered)
            if now + wait_s > deadline:
                late_s = now + wait_s - deadline
                message = f"the first token is predicted in {wait_s:.3f} s, {late_s:.3f} s after the request's deadline"
                raise DeadlineOutOfReach(message, retry_after_s=late_s)
        guest.open_tokens = wants
        self.shares.open(tenant, wants)

    def _must_wait(self, guest: Guest, considered: Considered, raw: Candidates, uncached: int) -> bool:
        if considered.decision.choice in self.room.lanes:
            return True
        return not any_idle(raw) and self._early_s(guest, considered, raw, uncached) > 0

    def _early_s(self, guest: Guest, considered: Considered, raw: Candidates, uncached: int) -> float:
        return early_at(raw, self._size(guest, raw, uncached), considered.decision.place)

    def _size(self, guest: Guest, raw: Candidates, uncached: int) -> float:
        """Where its tenant has had a full step more than another that waits, it passes nobody. Else it waits only
        where its policy binds late."""
        has_more = self.shares.tenants > 1 and self.shares.lead(guest.terms.tenant) > float(raw.step_tokens.mean())
        if has_more:
            return ALL
        return (uncached or 1) if binds_late(self._router.policy) else NOTHING

    def _send(self, guest: Guest, considered: Considered, uncached: int, now: float) -> None:
        self.shares.serve(guest.terms.tenant, uncached or 1)
        if guest.target:
            self.room.remove(guest, now, sent=True)
        guest.uncached, guest.considered = uncached, considered
        if self.room.lanes:
            self.room.will_compute(guest.request.hashes, considered.decision.cached_tokens // BLOCK_SIZE)

    def _in_turn(self, raw: Candidates, now: float) -> Iterator[Guest]:
        """Whom to decide over again: those whose turn has come, then those whose replica is there no more, then for
        replicas that nobody waits for the ones that were decided over longest ago."""
        heads = [guest for early, guest in self._heads(raw) if early <= 0]
        heads = heads[:TRIES]
        heads.sort(key=lambda guest: (guest.terms.priority, self.shares.tag(guest.terms.tenant), guest.number))
        yield from heads
        yield from self.room.take_changed(CHANGED)
        there = set(raw.ids)
        gone = (lane.first() for replica, lane in self.room.lanes.items() if replica not in there)
        yield from list(islice(gone, TRIES))
        free = early_s(raw, ALL) <= 0
        if any(is_free and replica not in self.room.lanes for replica, is_free in zip(raw.ids, free, strict=True)):
            before = now - float(horizon_s(raw).min())
            for guest in list(islice(self.room, TRIES)):
                if guest.decided_at > before:
                    return
                yield guest

    def _heads(self, raw: Candidates) -> list[tuple[float, Guest]]:
        """The first of each lane, and in how many seconds it may go."""
        firsts = [(place, lanes.first()) for place, r in enumerate(raw.ids) if (lanes := self.room.lanes.get(r))]
        if not firsts:
            return []
        sizes = np.zeros(len(raw))
        for place, guest in firsts:
            sizes[place] = self._size(guest, raw, guest.uncached)
        early = early_s(raw, sizes)
        return [(float(early[place]), guest) for place, guest in firsts]

    def _look_again(self, guest: Guest, now: float) -> bool:
        """Whether it goes."""
        if guest not in self.room:
            return False
        is_first = self.room.lanes[guest.target].first() is guest
        with self.room.uncounted(guest):
            found = self._consider(guest, now, without=guest.target if is_first else "")
        if found is None:
            self.room.move(guest, guest.target, guest.uncached, 0.0, now)
            guest.stranded_at = min(guest.stranded_at, now)
            return False
        guest.stranded_at = inf
        considered, raw = found
        choice, uncached = considered.decision.choice, _uncached(considered)
        is_next = choice not in self.room.lanes or (is_first and choice == guest.target)
        if is_next and (any_idle(raw) or self._early_s(guest, considered, raw, uncached) <= 0):
            self._send(guest, considered, uncached, now)
            return True
        self.room.move(guest, choice, uncached, _patience(considered), now)
        self.room.awaits(guest, _missing(considered))
        return False


def _uncached(considered: Considered) -> int:
    return considered.request.tokens - considered.decision.cached_tokens


def _patience(considered: Considered) -> float:
    return PATIENCE_STEPS * float(considered.candidates.step_tokens[considered.decision.place])


def _missing(considered: Considered) -> int | None:
    """The first block of the prompt that the choice neither has nor is about to compute."""
    hashes, matched = considered.request.hashes, int(considered.candidates.matched_blocks[considered.decision.place])
    return hashes[matched] if matched < len(hashes) else None


def _predicted_s(considered: Considered) -> float:
    predicted = predicted_ttft_s(considered.decision)
    if predicted is not None:
        return predicted
    return float(believed_wait_s(considered.request.tokens, considered.candidates)[considered.decision.place])
