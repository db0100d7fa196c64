"""An event loop without a clock or a network: when nobody has anything left to do, time jumps to the next timer.

Every task belongs to a party, by its context. A party can be paused like a process by SIGSTOP: its callbacks wait,
while time and everybody else go on.
"""

import asyncio
import contextlib
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any

PARTY: ContextVar[str] = ContextVar("PARTY", default="")


class Stuck(Exception):
    """Nobody will ever do anything again."""


class SimLoop(asyncio.BaseEventLoop):
    # What the base class keeps and its type stubs don't tell.
    _ready: deque[Any]
    _scheduled: list[Any]

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.failures: list[dict[str, Any]] = []
        self._paused: dict[str, list[Any]] = {}
        self.set_exception_handler(lambda _, context: self.failures.append(context))

    def time(self) -> float:
        return self.now

    def start(self, party: str, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        context = copy_context()
        context.run(PARTY.set, party)
        return self.create_task(work, name=party, context=context)

    def pause(self, party: str, seconds: float) -> None:
        if party not in self._paused:
            self._paused[party] = []
            self.call_later(seconds, self._resume, party)

    def _resume(self, party: str) -> None:
        self._ready.extend(self._paused.pop(party, []))

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Task[Any]":  # type: ignore[override]
        """Another thread has done it by the next turn."""

        async def work() -> Any:
            return func(*args)

        return self.create_task(work())

    def _write_to_self(self) -> None:
        """There is one thread, and it's awake."""

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _run_once(self) -> None:
        scheduled, ready = self._scheduled, self._ready
        if not ready:
            while scheduled and scheduled[0]._cancelled:
                heapq.heappop(scheduled)._scheduled = False
            if not scheduled:
                raise Stuck
            self.now = max(self.now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self.now:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            if not timer._cancelled:
                ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            if self._paused and (paused := self._paused.get(handle._context.get(PARTY, ""))) is not None:
                paused.append(handle)
            else:
                handle._run()

    def discard(self) -> None:
        """Ends all that still goes on, without a word."""
        self._paused.clear()
        self._scheduled.clear()
        tasks = asyncio.all_tasks(self)
        for task in tasks:
            task.cancel()
        with contextlib.suppress(Stuck):
            self.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.close()
