"""The engine that schedules a step ahead of its device: while batch N is computed, batch N + 1 is planned and launched
behind it, so the device never waits for the host.

A sequence goes into batch N + 1 with a placeholder for the token that N samples for it. What that token ends was in
N + 1 for nothing: its result is dropped, and its pages are free at once, as whoever gets them is launched later and on
the same stream (see launch.py). Books are kept at the launch: the KV counts as computed, whole pages go into the tree.
What the cache gained by it is told only with the step's result, when the pages are filled.

A batch whose tokens the host must choose isn't overtaken: it is booked when its result is there, as in any engine.
"""

from dataclasses import dataclass

from replica.cache.manager import CacheEvents, KVCache
from replica.cost_model import CostModelFit
from replica.device.launch import Device, Launched
from replica.engine_base import Clock, EngineBase
from replica.protocol.records import CostModel
from replica.scheduler import SchedulerLimits
from replica.sequence import Batch, Sequence, SequenceState
from replica.step import Output, Sampled, StepResult, StepWork, work_of

_NO_WORK = StepWork(0, 0.0, 0)


class _Nothing:
    """Of a batch without chunks, all of whose sequences had to give up their pages."""

    needs_host = False

    def result(self) -> list[tuple[Sequence, Sampled]]:
        return []


@dataclass(slots=True)
class _Launch:
    batch: Batch
    work: StepWork
    began: float
    sampling: tuple[Sequence, ...]
    """Whose next token it gives."""
    launched: Launched
    events: CacheEvents | None = None
    """None until it is booked."""


class OverlapEngine(EngineBase):
    def __init__(self, device: Device, cache: KVCache, limits: SchedulerLimits, clock: Clock) -> None:
        super().__init__(cache, limits, clock)
        self._device = device
        self._fit = CostModelFit(limits.max_step_tokens)
        self._ahead: _Launch | None = None
        """Launched, and not read yet, between two steps."""
        self._read_at = clock()

    @property
    def cost(self) -> CostModel:
        """Fitted to the times between two results."""
        return self._fit.model

    @property
    def has_work(self) -> bool:
        """Also where nobody waits any more for what is launched: what the cache gained by it is to be told."""
        return self._ahead is not None or self._scheduler.has_work

    def step(self) -> StepResult:
        """The results of the oldest batch, when the one after it is launched. There must be work."""
        current, self._ahead = self._ahead or self._first(), None
        if not current.launched.needs_host:
            self._ahead = self._launch(waited_for=current.work)
        outputs = self._read(current)
        if self._ahead is not None and not self._ahead.launched.needs_host:
            self._book(self._ahead)
        now = self._clock()
        seconds, self._read_at = now - max(current.began, self._read_at), now
        if current.batch.chunks:
            self._fit.observe(current.work, seconds)
        assert current.events is not None
        return StepResult(current.batch, current.work, seconds, outputs, current.events)

    def replace_cache(self, cache: KVCache) -> None:
        if self._ahead is not None:
            outputs, self._ahead = self._read(self._ahead), None
            assert not outputs
        super().replace_cache(cache)

    def _first(self) -> _Launch:
        """Where nothing was under way."""
        first = self._launch(waited_for=_NO_WORK)
        assert first is not None, "the engine has no work"
        if not first.launched.needs_host:
            self._book(first)
        return first

    def _launch(self, waited_for: StepWork) -> _Launch | None:
        """None where nothing is to be computed, as all that is left waits for its last token."""
        began = self._clock()
        batch = self._schedule(began)
        if not batch.chunks and not batch.preempted:
            return None
        work = work_of(batch.chunks)
        self.under_way = work + waited_for
        sampling = tuple(chunk.sequence for chunk in batch.chunks if chunk.samples)
        launched = self._device.launch(batch.chunks) if batch.chunks else _Nothing()
        return _Launch(batch, work, began, sampling, launched)

    def _book(self, launch: _Launch) -> None:
        """Not for sequences that have ended since the launch: their pages are gone."""
        chunks = tuple(chunk for chunk in launch.batch.chunks if chunk.sequence.state is SequenceState.RUNNING)
        self._scheduler.commit(Batch(chunks))
        launch.events = self._cache.take_events()
        if not launch.launched.needs_host:
            for sequence in launch.sampling:
                if sequence.state is SequenceState.RUNNING:
                    sequence.expect()

    def _read(self, launch: _Launch) -> tuple[Output, ...]:
        """Waits for the device. Some of those it sampled for may have ended, or lost their pages, meanwhile."""
        sampled = launch.launched.result()
        for sequence in launch.sampling:
            if sequence.num_pending:
                sequence.withdraw()
        if launch.launched.needs_host:
            self._book(launch)
        live = [entry for entry in sampled if entry[0].state is not SequenceState.FINISHED]
        return tuple(self._append(sequence, token) for sequence, token in live)
