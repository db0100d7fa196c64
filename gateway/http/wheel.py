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

    __slots__ = ("deadline", "slot")

    def __init__(self) -> None:
        self.deadline = NEVER
        self.slot = -1
        """Of the wheel; -1: not in it."""

    def expired(self) -> None:
        """The deadline has passed, by up to a tick. A new one may be set and watched."""
        raise NotImplementedError


class Wheel:
    """NOTE: after moving a deadline forward nothing needs to be told; after setting one nearer, `watch`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slots: dict[int, set[Timed]] = {}
        self._turning = False

    def watch(self, entry: Timed, deadline: float) -> None:
        entry.deadline = deadline
        slot = int(deadline / TICK_S) + 1
        if entry.slot >= 0:
            if entry.slot <= slot:
                return
            self._slots[entry.slot].discard(entry)
        self._put(entry, slot)

    def forget(self, entry: Timed) -> None:
        entry.deadline = NEVER
        if entry.slot >= 0:
            self._slots[entry.slot].discard(entry)
            entry.slot = -1

    def _put(self, entry: Timed, slot: int) -> None:
        entry.slot = slot
        self._slots.setdefault(slot, set()).add(entry)
        if not self._turning:
            self._turning = True
            self._loop.call_later(TICK_S, self._turn)

    def _turn(self) -> None:
        now = self._loop.time()
        for slot in [slot for slot in self._slots if slot * TICK_S <= now]:
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
        entry.slot = -1
        if entry.deadline <= now:
            entry.deadline = NEVER
            entry.expired()
        elif entry.deadline != NEVER:
            self._put(entry, int(entry.deadline / TICK_S) + 1)
