"""Those that wait for one replica, in the order in which they will be sent to it.

By class of priority, then between tenants by fair shares, then within a tenant the one with the fewest uncached tokens.
Nobody waits for ever:

- A class that waits has a turn once what more urgent ones sent before it is PRIORITY_DISCOUNT times what it sends then.
- A tenant's tag stays while the others' rise.
- Within a tenant and class a request is due once PATIENCE has been sent on top of what waited when it came; of those
  that are due the one that became so first goes first.

Everything is a heap with lazy deletion, so each operation costs O(log n); `plain_lane.py` is the oracle. Pure.
"""

from heapq import heapify, heappop, heappush, heapreplace
from math import inf

from gateway.hold.guest import Guest
from gateway.hold.shares import Shares

PRIORITY_DISCOUNT = 8
"""As at the replica, see replica/urgency.py."""

_GARBAGE = 64


class _Queue:
    """One tenant's in one class."""

    __slots__ = ("_by_due", "_by_size", "_due_at", "_served", "number", "tokens")

    def __init__(self, number: int) -> None:
        self.number = number
        """Of whom it began with."""
        self._by_size: list[tuple[int, int, Guest]] = []
        self._by_due: list[tuple[float, int, Guest]] = []
        self._due_at: dict[Guest, float] = {}
        self._served = 0.0
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._due_at)

    def add(self, guest: Guest, patience: float) -> None:
        due_at = self._due_at[guest] = self._served + min(guest.patience, self.tokens + patience)
        self.tokens += guest.uncached
        heappush(self._by_size, (guest.uncached, guest.number, guest))
        heappush(self._by_due, (due_at, guest.number, guest))

    def first(self) -> Guest:
        self._clean()
        due_at, _, due = self._by_due[0]
        return due if due_at <= self._served else self._by_size[0][2]

    def remove(self, guest: Guest, *, sent: bool) -> None:
        guest.patience = max(0.0, self._due_at.pop(guest) - self._served)
        self.tokens -= guest.uncached
        if sent:
            self._served += guest.uncached

    def _clean(self) -> None:
        """The heads are alive after it, and the dead aren't many."""
        if len(self._by_size) + len(self._by_due) > 4 * len(self._due_at) + _GARBAGE:
            self._by_size = [item for item in self._by_size if item[2] in self._due_at]
            self._by_due = [item for item in self._by_due if item[2] in self._due_at]
            heapify(self._by_size)
            heapify(self._by_due)
        while self._by_size[0][2] not in self._due_at:
            heappop(self._by_size)
        while self._by_due[0][2] not in self._due_at:
            heappop(self._by_due)


class _Class:
    __slots__ = ("_tenants", "passed", "queues")

    def __init__(self) -> None:
        self.passed = 0.0
        """Tokens that more urgent classes have sent while this one waits."""
        self.queues: dict[str, _Queue] = {}
        self._tenants: list[tuple[float, int, str]] = []

    def add(self, guest: Guest, patience: float, shares: Shares) -> None:
        tenant = guest.terms.tenant
        queue = self.queues.get(tenant)
        if queue is None:
            queue = self.queues[tenant] = _Queue(guest.number)
            heappush(self._tenants, (shares.tag(tenant), guest.number, tenant))
        queue.add(guest, patience)

    def first(self, shares: Shares) -> Guest:
        """By tag; of equal ones the tenant that began to wait here first."""
        tenants = self._tenants
        while True:
            tag, number, tenant = tenants[0]
            queue = self.queues.get(tenant)
            if queue is None or queue.number != number:
                heappop(tenants)
            elif shares.tag(tenant) != tag:
                heapreplace(tenants, (shares.tag(tenant), number, tenant))
            else:
                return queue.first()

    def remove(self, guest: Guest, *, sent: bool) -> None:
        tenant = guest.terms.tenant
        queue = self.queues[tenant]
        queue.remove(guest, sent=sent)
        if not queue:
            del self.queues[tenant]
            if len(self._tenants) > 2 * len(self.queues) + _GARBAGE:
                self._tenants = [item for item in self._tenants if item[2] in self.queues]
                heapify(self._tenants)


class Lane:
    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._classes: dict[int, _Class] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, guest: Guest, patience: float) -> None:
        """`patience`: tokens."""
        self._classes.setdefault(guest.terms.priority, _Class()).add(guest, patience, self._shares)
        self._count += 1

    def first(self) -> Guest:
        """Who goes next. Raises ValueError where nobody waits."""
        urgent, *others = sorted(self._classes)
        best, most = self._classes[urgent].first(self._shares), -inf
        for priority in others:
            of_it = self._classes[priority]
            if of_it.passed > most:
                head = of_it.first(self._shares)
                if of_it.passed >= PRIORITY_DISCOUNT * max(1, head.uncached):
                    best, most = head, of_it.passed
        return best

    def remove(self, guest: Guest, *, sent: bool) -> None:
        """`sent`: and not gone, or moved to another lane."""
        priority = guest.terms.priority
        of_it = self._classes[priority]
        of_it.remove(guest, sent=sent)
        self._count -= 1
        if sent:
            of_it.passed = 0.0
            for other, each in self._classes.items():
                if other > priority:
                    each.passed += guest.uncached
        if not of_it.queues:
            del self._classes[priority]
