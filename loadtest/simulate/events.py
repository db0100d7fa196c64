"""Virtual time: what happens when, in order of time, then of when it was planned."""

import heapq
from collections.abc import Callable
from typing import Any


class Events:
    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the simulation began."""
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = 0

    def at(self, time: float, action: Callable[..., None], *arguments: Any) -> None:
        """`time` may not lie in the past."""
        assert time >= self.now, f"{time} is before {self.now}"
        self._planned += 1
        heapq.heappush(self._heap, (time, self._planned, action, arguments))

    def run(self, going_on: Callable[[], bool]) -> None:
        """Until nothing is planned any more, or `going_on` says no."""
        heap = self._heap
        while heap and going_on():
            self.now, _, action, arguments = heapq.heappop(heap)
            action(*arguments)
