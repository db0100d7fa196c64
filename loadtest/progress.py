"""Progress for people: a bar on a terminal, a plain line every few seconds elsewhere."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_LINE_EVERY_S = 5.0


@asynccontextmanager
async def progress(console: Console, label: str, total: int) -> AsyncIterator[Callable[[], None]]:
    """Yields a function to call once per thing done."""
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(label, total=total)
            yield lambda: bar.advance(task)
    else:
        lines = _Lines(console, label, total)
        ticker = asyncio.create_task(lines.tick())
        try:
            yield lines.advance
        finally:
            ticker.cancel()
            lines.write()


class _Lines:
    def __init__(self, console: Console, label: str, total: int) -> None:
        self._console = console
        self._label = label
        self._total = total
        self._done = 0
        self._start_s = time.monotonic()

    def advance(self) -> None:
        self._done += 1

    def write(self) -> None:
        seconds = time.monotonic() - self._start_s
        line = f"{self._label}: {self._done}/{self._total} after {seconds:.1f} s"
        self._console.print(line, highlight=False, soft_wrap=True)

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(_LINE_EVERY_S)
            self.write()
