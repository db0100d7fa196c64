"""The one thread that owns the engine: commands in, outputs out, a step in between."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from typing import Protocol

from replica.cache.manager import CacheEvents, KVCache
from replica.engine_base import EngineBase
from replica.protocol.records import CostModel, Load
from replica.run_queue import waited_for_core_s
from replica.scheduler import SchedulerLimits
from replica.sequence import Sequence
from replica.step import Output, StepResult

_LOG = logging.getLogger(__name__)
_STATUS_PERIOD_S = 0.1
_IDLE_BEFORE_CHECK_S = 1.0

_STEP_ALLOWANCE = 3.0
"""A step may take so many times what the cost model says of it, and not less than _STEP_MIN_S."""
_STEP_MIN_S = 1.0
_FIRST_STEPS = 3
_FIRST_STEPS_S = 60.0
"""The first ones load and compile, and are what the cost model is fitted to."""

Command = Callable[[], None]


class CacheListener(Protocol):
    """Told from the engine's thread, so it must not block."""

    def cache_changed(self, events: CacheEvents) -> None: ...
    def cache_replaced(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Status:
    load: Load
    cost: CostModel
    at: float
    """When that was so, by the worker's clock."""
    added: int = 0
    """Sequences that had come to the engine by then."""


class EngineCrashed(Exception):
    """The engine's thread has died; the request can't be answered here."""


class RequestStream:
    """Outputs of one request, of all its sequences, for the server's event loop."""

    def __init__(self, sequences: SequenceOf[Sequence]) -> None:
        self.sequences = sequences
        self._outputs: asyncio.Queue[Output | EngineCrashed] = asyncio.Queue()

    def put(self, item: Output | EngineCrashed) -> None:
        self._outputs.put_nowait(item)

    async def next(self) -> list[Output]:
        """At least one output, and all others that have come meanwhile. Raises EngineCrashed."""
        items = [await self._outputs.get()]
        while not self._outputs.empty():
            items.append(self._outputs.get_nowait())
        outputs = []
        for item in items:
            if isinstance(item, EngineCrashed):
                raise item
            outputs.append(item)
        return outputs


class EngineWorker:
    def __init__(
        self,
        engine: EngineBase,
        new_cache: Callable[[], KVCache],
        listener: CacheListener,
        on_step: Callable[[StepResult], None],
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        waited_s: Callable[[int], float] = waited_for_core_s,
    ) -> None:
        """`waited_s`: how long a thread has waited for a core."""
        self._engine = engine
        self._new_cache = new_cache
        self._listener = listener
        self._on_step = on_step
        self._loop = loop
        self._clock = clock
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._streams: dict[str, RequestStream] = {}
        self._submitted = 0
        self._added = 0
        self._running = True
        self._started = False
        self._busy = False
        self._steps = 0
        self._moved_at = clock()
        self._waited_s = waited_s
        self._seen = (self._moved_at, 0.0)
        """The step that was looked at last, by its begin, and how long the thread had waited for a core by then."""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._status_at = clock()
        self.status = Status(engine.load(), engine.cost, self._status_at)
        self.crashed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_requests(self) -> int:
        return len(self._streams)

    @property
    def load(self) -> Load:
        """The last one reported, with what was submitted since: a crowd may come between two reports."""
        status = self.status
        return replace(status.load, waiting=status.load.waiting + self._submitted - status.added)

    def stalled_s(self, now: float) -> float:
        """For how long nothing has moved that should, beyond what the step under way may take. What the engine waits
        for a core doesn't count: on a busy machine it is slow, not stuck. From one thread that asks again and again."""
        if self._started and self._running and not self._thread.is_alive():
            return now - self._moved_at
        # NOTE: asked before `_moved_at`, which is set before it.
        if not self._busy:
            return 0.0
        work = self._engine.under_way
        expected = self.status.cost.step_s(work.tokens, work.attention, work.decoding)
        least = _FIRST_STEPS_S if self._steps < _FIRST_STEPS else _STEP_MIN_S
        moved_at, waited_s = self._moved_at, self._waited_s(self._thread.native_id or 0)
        if self._seen[0] != moved_at:
            self._seen = moved_at, waited_s
        return max(0.0, now - moved_at - (waited_s - self._seen[1]) - max(least, _STEP_ALLOWANCE * expected))

    @property
    def limits(self) -> SchedulerLimits:
        return self._engine.limits

    def knows(self, request_id: str) -> bool:
        return request_id in self._streams

    def start(self) -> None:
        self._thread.start()
        self._started = True

    async def stop(self) -> None:
        def halt() -> None:
            self._running = False

        self._commands.put(halt)
        await asyncio.to_thread(self._thread.join)

    def fail(self, message: str) -> None:
        """As if the engine's thread had crashed, which may wait for ever for what has died. From any thread."""
        self._loop.call_soon_threadsafe(self._report_crash, EngineCrashed(message))

    def submit(self, sequences: SequenceOf[Sequence]) -> RequestStream:
        """The caller gives the stream back by `close`, in `finally`. Raises EngineCrashed."""
        if self.crashed.is_set():
            raise EngineCrashed("the engine has crashed")
        stream = RequestStream(sequences)
        for sequence in sequences:
            assert sequence.id not in self._streams
            self._streams[sequence.id] = stream
        self._submitted += len(sequences)
        self._idle.clear()
        self._commands.put(lambda: self._add(sequences))
        return stream

    def abort(self, sequence: Sequence) -> None:
        """No more is wanted of it, while the others of its stream go on."""
        self._commands.put(lambda: self._engine.abort(sequence))

    def close(self, stream: RequestStream) -> None:
        """Ends a request in whatever phase it is; nothing to abort where it has finished."""
        for sequence in stream.sequences:
            del self._streams[sequence.id]
            self.abort(sequence)
        if not self._streams:
            self._idle.set()

    def _add(self, sequences: SequenceOf[Sequence]) -> None:
        for sequence in sequences:
            self._engine.add(sequence)
        self._added += len(sequences)

    async def wait_idle(self) -> None:
        """Until no request is open."""
        await self._idle.wait()

    async def reset_cache(self) -> bool:
        """Empties the cache; False, and nothing done, where requests are in the engine."""
        done: asyncio.Future[bool] = self._loop.create_future()

        def reset() -> None:
            idle = not self._engine.scheduler.has_work
            if idle:
                self._engine.replace_cache(self._new_cache())
                self._listener.cache_replaced()
                self._update_status(force=True)
            self._loop.call_soon_threadsafe(done.set_result, idle)

        self._commands.put(reset)
        return await done

    def _run(self) -> None:
        # The outermost edge of the engine: whatever fails in it must reach the log and the waiting requests.
        try:
            while self._running:
                self._run_commands()
                if self._running and self._engine.has_work:
                    self._moved_at = self._clock()
                    self._step()
                    self._steps += 1
        except Exception as error:
            _LOG.exception("the engine has crashed")
            self._loop.call_soon_threadsafe(self._report_crash, EngineCrashed(f"the engine has crashed: {error}"))

    def _run_commands(self) -> None:
        """Waits for a command only where there is nothing to compute."""
        if not self._engine.has_work:
            self._update_status(force=True)
            self._busy = False
            command = self._next_command_when_idle()
            self._moved_at, self._busy = self._clock(), True
            command()
        while True:
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return
            command()

    def _next_command_when_idle(self) -> Command:
        """The cache's books are checked once the engine has been idle for a while: walking the tree takes 0.1 s at
        100,000 blocks, which nobody's first token should wait for."""
        try:
            return self._commands.get(timeout=_IDLE_BEFORE_CHECK_S)
        except queue.Empty:
            self._engine.check_integrity()
            return self._commands.get()

    def _step(self) -> None:
        step = self._engine.step()
        if step.events.added or step.events.removed:
            self._listener.cache_changed(step.events)
        self._on_step(step)
        self._update_status(force=False)
        if step.outputs:
            self._loop.call_soon_threadsafe(self._deliver, step.outputs)

    def _update_status(self, force: bool) -> None:
        now = self._clock()
        if force or now - self._status_at >= _STATUS_PERIOD_S:
            self._status_at = now
            self.status = Status(self._engine.load(), self._engine.cost, now, self._added)

    def _deliver(self, outputs: tuple[Output, ...]) -> None:
        for output in outputs:
            stream = self._streams.get(output.sequence.id)
            if stream is not None:
                stream.put(output)

    def _report_crash(self, error: EngineCrashed) -> None:
        self.crashed.set()
        for stream in set(self._streams.values()):
            stream.put(error)
