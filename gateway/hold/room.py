"""The waiting room: a lane for each replica that somebody waits for, and what is held, by tenant. Pure."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import numpy as np

from gateway.hold.guest import Guest
from gateway.hold.lane import Lane
from gateway.hold.shares import Shares
from gateway.routing.candidates import SIZES, Candidates, Floats, size_class


class WaitingRoom:
    def __init__(self, shares: Shares) -> None:
        """Whoever is held has something open in `shares`."""
        self.shares = shares
        self.lanes: dict[str, Lane] = {}
        """By replica; none is empty."""
        self.tokens = 0
        """Uncached, of all that is held."""
        self._arrivals = 0
        self._awaiting: dict[int, dict[Guest, None]] = {}
        """By the first block of their prompts that is missing where they are to go."""
        self._changed: dict[Guest, None] = {}
        self._guests: dict[Guest, None] = {}
        """The one that was decided over longest ago comes first."""
        self._sizes: dict[str, dict[str, Floats]] = {}
        """By tenant and replica: (2, SIZES), tokens and counts."""

    def __len__(self) -> int:
        return len(self._guests)

    def __iter__(self) -> Iterator[Guest]:
        return iter(self._guests)

    def __contains__(self, guest: Guest) -> bool:
        return guest in self._guests

    @contextmanager
    def uncounted(self, guest: Guest) -> Iterator[None]:
        """Where `added_to` is asked on behalf of one that is held."""
        self._count(guest, -1)
        try:
            yield
        finally:
            self._count(guest, 1)

    def add(self, guest: Guest, target: str, uncached: int, patience: float, now: float) -> None:
        if guest not in self._guests:
            self._arrivals += 1
            guest.number, guest.held_at = self._arrivals, now
        self._enter(guest, target, uncached, patience, now)

    def move(self, guest: Guest, target: str, uncached: int, patience: float, now: float) -> None:
        """Decided over again. What it has been passed by still counts."""
        if target == guest.target and uncached == guest.uncached:
            self._guests[guest] = self._guests.pop(guest)
            guest.decided_at = now
            return
        self._quit(guest, sent=False)
        self._enter(guest, target, uncached, patience, now)

    def remove(self, guest: Guest, now: float, *, sent: bool) -> None:
        """It goes to a replica, or its client has gone. A no-op for one that isn't held."""
        if guest not in self._guests:
            return
        self._quit(guest, sent=sent)
        self._forget(guest)
        guest.target = ""
        guest.held_s += now - guest.held_at

    def awaits(self, guest: Guest, block: int | None) -> None:
        """Of one that is held: once somebody is about to compute that block, it had better be decided over again."""
        self._forget(guest)
        if block is not None:
            guest.missing = block
            self._awaiting.setdefault(block, {})[guest] = None

    def will_compute(self, hashes: Sequence[int], begin: int) -> None:
        """These blocks from `begin` on, for somebody who was sent."""
        if self._awaiting:
            for block in hashes[begin:]:
                for guest in self._awaiting.pop(block, ()):
                    guest.missing = None
                    self._changed[guest] = None

    def take_changed(self, most: int) -> list[Guest]:
        """Whom to decide over again."""
        taken = list(islice(self._changed, most))
        for guest in taken:
            del self._changed[guest]
        return taken

    def _forget(self, guest: Guest) -> None:
        self._changed.pop(guest, None)
        if guest.missing is not None:
            of_block = self._awaiting[guest.missing]
            del of_block[guest]
            if not of_block:
                del self._awaiting[guest.missing]
            guest.missing = None

    def added_to(self, candidates: Candidates, tenant: str, without: str = "") -> Candidates:
        """As if what the tenant has waiting were in the replicas' queues already, but for one lane's."""
        of_tenant = self._sizes.get(tenant)
        if not of_tenant:
            return candidates
        c = candidates
        place_of = {replica: place for place, replica in enumerate(c.ids)}
        queue, tokens, counts = c.queue_tokens.copy(), c.size_tokens.copy(), c.size_counts.copy()
        for replica, sizes in of_tenant.items():
            place = place_of.get(replica)
            if place is not None and replica != without:
                tokens[:, place] += sizes[0]
                counts[:, place] += sizes[1]
                queue[place] += sizes[0].sum()
        return c.changed(queue_tokens=queue, size_tokens=tokens, size_counts=counts)

    def _enter(self, guest: Guest, target: str, uncached: int, patience: float, now: float) -> None:
        guest.target, guest.uncached, guest.decided_at = target, uncached, now
        lane = self.lanes.get(target)
        if lane is None:
            lane = self.lanes[target] = Lane(self.shares)
        lane.add(guest, patience)
        self._guests[guest] = None
        self._count(guest, 1)

    def _quit(self, guest: Guest, *, sent: bool) -> None:
        lane = self.lanes[guest.target]
        lane.remove(guest, sent=sent)
        if not lane:
            del self.lanes[guest.target]
        del self._guests[guest]
        self._count(guest, -1)

    def _count(self, guest: Guest, sign: int) -> None:
        self.tokens += sign * guest.uncached
        of_tenant = self._sizes.setdefault(guest.terms.tenant, {})
        sizes = of_tenant.get(guest.target)
        if sizes is None:
            sizes = of_tenant[guest.target] = np.zeros((2, SIZES))
        place = size_class(guest.uncached)
        sizes[:, place] += sign * guest.uncached, sign
        if not sizes[1].any():
            del of_tenant[guest.target]
            if not of_tenant:
                del self._sizes[guest.terms.tenant]
