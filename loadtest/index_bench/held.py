"""How long an event loop is held: from one look at its sockets to the next.

Time on the clock is what a request waits, and where others want the processors it includes their turns. CPU time of the
loop's thread is free of those, and of time in which another thread has the GIL.
"""

import asyncio
import math
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Watched(selectors.DefaultSelector):
    """A loop asks its selector when it has run all that was ready."""

    def __init__(self) -> None:
        super().__init__()
        self.held_s: list[float] = []
        self.held_cpu_s: list[float] = []
        self._since = self._cpu_since = math.inf

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._since < math.inf:
            self.held_s.append(time.perf_counter() - self._since)
            self.held_cpu_s.append(time.thread_time() - self._cpu_since)
        ready = super().select(timeout)
        self._since, self._cpu_since = time.perf_counter(), time.thread_time()
        return ready

    def start(self) -> None:
        """Forgets what was."""
        self.held_s.clear()
        self.held_cpu_s.clear()
        self._since = math.inf


class HeldLoop:
    """An event loop that is watched from `start` on."""

    def __init__(self) -> None:
        self._selector = _Watched()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(self._selector)) as runner:
            return runner.run(work)

    def start(self) -> None:
        self._selector.start()

    def figures(self) -> dict[str, float]:
        """Milliseconds that the loop was held: the longest, the longest but one in a thousand, and the longest in CPU
        time."""
        held = sorted(self._selector.held_s)
        return {
            "held_ms": held[-1] * 1e3,
            "held_p999_ms": held[math.ceil(len(held) * 0.999) - 1] * 1e3,
            "held_cpu_ms": max(self._selector.held_cpu_s) * 1e3,
        }
