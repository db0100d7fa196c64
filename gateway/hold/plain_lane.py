"""A lane that looks at everybody each time: the oracle of lane.py. Pure."""

from gateway.hold.guest import Guest
from gateway.hold.lane import PRIORITY_DISCOUNT
from gateway.hold.shares import Shares


class PlainLane:
    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._guests: list[Guest] = []
        self._due: dict[Guest, float] = {}
        """Tokens of its tenant and class that may go before it."""
        self._passed: dict[int, float] = {}
        self._began: dict[tuple[int, str], int] = {}
        """With whom a tenant's waiting in a class began, that has lasted since."""

    def __len__(self) -> int:
        return len(self._guests)

    def add(self, guest: Guest, patience: float) -> None:
        before = sum(other.uncached for other in self._guests if _kind(other) == _kind(guest))
        self._due[guest] = min(guest.patience, before + patience)
        self._passed.setdefault(guest.terms.priority, 0.0)
        if all(_kind(other) != _kind(guest) for other in self._guests):
            self._began[_kind(guest)] = guest.number
        self._guests.append(guest)

    def first(self) -> Guest:
        heads = {priority: self._first_of(priority) for priority in sorted({g.terms.priority for g in self._guests})}
        urgent, *others = heads
        turns = [
            priority
            for priority in others
            if self._passed[priority] >= PRIORITY_DISCOUNT * max(1, heads[priority].uncached)
        ]
        return heads[max(turns, key=self._passed.__getitem__, default=urgent)]

    def remove(self, guest: Guest, *, sent: bool) -> None:
        self._guests.remove(guest)
        guest.patience = max(0.0, self._due.pop(guest))
        priority = guest.terms.priority
        if sent:
            for other in self._guests:
                if _kind(other) == _kind(guest):
                    self._due[other] -= guest.uncached
            self._passed[priority] = 0.0
            for lower in self._passed:
                if lower > priority:
                    self._passed[lower] += guest.uncached
        waiting = {other.terms.priority for other in self._guests}
        self._passed = {each: passed for each, passed in self._passed.items() if each in waiting}

    def _first_of(self, priority: int) -> Guest:
        guests = [guest for guest in self._guests if guest.terms.priority == priority]
        tenants = {guest.terms.tenant for guest in guests}
        tenant = min(tenants, key=lambda each: (self._shares.tag(each), self._began[priority, each]))
        own = [guest for guest in guests if guest.terms.tenant == tenant]
        due = [guest for guest in own if self._due[guest] <= 0]
        if due:
            return min(due, key=lambda guest: (self._due[guest], guest.number))
        return min(own, key=lambda guest: (guest.uncached, guest.number))


def _kind(guest: Guest) -> tuple[int, str]:
    return guest.terms.priority, guest.terms.tenant
