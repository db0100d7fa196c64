"""Waiting, up to a deadline, for something that others change: a replica to appear, a retry to become affordable."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

RECHECK_S = 0.25
"""Some changes come without any event, as when a replica's back-off ends."""

_T = TypeVar("_T")


class Waiters:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changed: asyncio.Event | None = None
        """While somebody waits."""

    def notify(self) -> None:
        """Something changed: all that wait look again."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def until(self, ready: Callable[[], _T | None], deadline: float) -> _T | None:
        """What `ready` returns once it isn't None; None past the deadline."""
        while (result := ready()) is None:
            left = deadline - self._clock()
            if left <= 0:
                return None
            changed = self._changed = self._changed or asyncio.Event()
            try:
                async with asyncio.timeout(min(left, RECHECK_S)):
                    await changed.wait()
            except TimeoutError:
                continue
        return result
