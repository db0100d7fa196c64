"""One coarse timer for tens of thousands of deadlines.

A timer for each read would cost more than the read. Here whoever waits just moves its own `deadline` forward; the wheel
looks at it when the old one has passed.
"""

import asyncio

TICK_S = 0.1
NEVER = float("inf")
BATCH = 500
"""Entries that one callback looks at: the event loop isn't held for longer."""


class Timed:
    """What has a deadline, at most one at a time."""

    __slots__ = ("deadline", "looked_at")

    def __init__(self) -> None:
        self.deadline = NEVER
        self.looked_at = NEVER
        """When the wheel looks at it, which is the name of its slot there; NEVER: it isn't in it."""

    def expired(self) -> None:
        """The deadline has passed, by up to a tick. A new one may be set and watched."""
        raise NotImplementedError


class Wheel:
    """NOTE: after moving a deadline forward nothing needs to be told; after setting one nearer, `watch`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slots: dict[float, set[Timed]] = {}
        self._turning = False

    def watch(self, entry: Timed, deadline: float) -> None:
        entry.deadline = deadline
        if entry.looked_at <= deadline:
            return
        slot = _slot_of(deadline)
        if entry.looked_at != NEVER:
            if entry.looked_at <= slot:
                return
            self._slots[entry.looked_at].discard(entry)
        self._put(entry, slot)

    def forget(self, entry: Timed) -> None:
        entry.deadline = NEVER
        if entry.looked_at != NEVER:
            self._slots[entry.looked_at].discard(entry)
            entry.looked_at = NEVER

    def _put(self, entry: Timed, slot: float) -> None:
        entry.looked_at = slot
        entries = self._slots.get(slot)
        if entries is None:
            entries = self._slots[slot] = set()
        entries.add(entry)
        if not self._turning:
            self._turning = True
            self._loop.call_later(TICK_S, self._turn)

    def _turn(self) -> None:
        now = self._loop.time()
        for slot in [slot for slot in self._slots if slot <= now]:
            entries = self._slots[slot]
            for _ in range(min(BATCH, len(entries))):
                self._look_at(entries.pop(), now)
            if entries:
                self._loop.call_soon(self._turn)
                return
            del self._slots[slot]
        if self._slots:
            self._loop.call_later(TICK_S, self._turn)
        else:
            self._turning = False

    def _look_at(self, entry: Timed, now: float) -> None:
        entry.looked_at = NEVER
        if entry.deadline <= now:
            entry.deadline = NEVER
            entry.expired()
        elif entry.deadline != NEVER:
            self._put(entry, _slot_of(entry.deadline))


def _slot_of(deadline: float) -> float:
    """The end of the tick in which it is."""
    return (int(deadline / TICK_S) + 1) * TICK_S
