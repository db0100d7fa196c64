"""What engines share, and a step: schedule, compute, commit. How a batch is computed is each engine's own matter.
Imports no torch.

Owned by one thread; see worker.py.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Protocol

from replica.cache.manager import KVCache
from replica.protocol.records import CostModel, Load
from replica.scheduler import Scheduler, SchedulerLimits
from replica.sequence import Batch, Chunk, ConstraintError, FinishReason, Sequence
from replica.step import UNUSABLE_TOKEN, Output, Sampled, StepResult, StepWork, work_of

_LOG = logging.getLogger(__name__)

Clock = Callable[[], float]
"""Seconds, monotonic."""


class EngineBase(ABC):
    """The contract with the worker, and all that engines share."""

    def __init__(self, cache: KVCache, limits: SchedulerLimits, clock: Clock) -> None:
        self._cache = cache
        self._clock = clock
        self._limits = limits
        self._scheduler = Scheduler(cache, limits)
        self.under_way = StepWork(0, 0.0, 0)
        """Of the step that was begun last."""

    @property
    @abstractmethod
    def cost(self) -> CostModel:
        """How long a step takes, for the gateways' predictions."""

    @abstractmethod
    def step(self) -> StepResult:
        """The results of one batch. There must be work."""

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    @property
    def limits(self) -> SchedulerLimits:
        return self._limits

    def add(self, sequence: Sequence) -> None:
        self._scheduler.add(sequence)

    def abort(self, sequence: Sequence) -> None:
        self._scheduler.finish(sequence)

    def replace_cache(self, cache: KVCache) -> None:
        """An empty cache of the same size. No sequence may be in the engine."""
        assert not self._scheduler.has_work
        self._cache = cache
        self._scheduler = Scheduler(cache, self._limits)

    def load(self) -> Load:
        scheduler, cache = self._scheduler, self._cache
        return Load(
            waiting=len(scheduler.waiting),
            running=len(scheduler.running),
            decoding=sum(sequence.is_decoding for sequence in scheduler.running),
            pending_tokens=scheduler.pending_tokens(),
            free_blocks=cache.num_free,
            evictable_blocks=cache.num_evictable,
            total_blocks=cache.num_pages,
        )

    def check_integrity(self) -> None:
        """Raises AssertionError; cheap enough for whenever the engine falls idle."""
        self._cache.check_integrity([*self._scheduler.running, *self._scheduler.waiting])

    def _schedule(self, now: float) -> Batch:
        batch = self._scheduler.schedule()
        for chunk in batch.chunks:
            if chunk.sequence.scheduled_at is None:
                chunk.sequence.scheduled_at = now
        return batch

    def _append(self, sequence: Sequence, sampled: Sampled) -> Output:
        if sampled.token == UNUSABLE_TOKEN:
            return self._fail(sequence)
        sequence.append(sampled.token)
        reason = advance(sequence) or sequence.finish_reason()
        if reason is not None:
            self._scheduler.finish(sequence)
        return Output(sequence, sampled.token, reason, sampled.logprobs)

    def _fail(self, sequence: Sequence) -> Output:
        """It ends by itself: its row can't be sampled from, and the others of the step can."""
        _LOG.error(
            "request %s has no next token after %d: logits hold NaN or +inf, or nothing but -inf",
            sequence.id,
            sequence.num_output,
        )
        self._scheduler.finish(sequence)
        return Output(sequence, UNUSABLE_TOKEN, FinishReason.ERROR)


class SteppingEngine(EngineBase):
    """Computes one batch in a step, from beginning to end."""

    @abstractmethod
    def _compute(self, chunks: SequenceOf[Chunk], work: StepWork) -> list[tuple[Sequence, Sampled]]:
        """The KV of all chunks, and the next token of each sequence whose chunk reaches its end."""

    def step(self) -> StepResult:
        """Computes one batch. The scheduler must have work."""
        started = self._clock()
        batch = self._schedule(started)
        self.under_way = work = work_of(batch.chunks)
        # Where all that was to be computed had to give up its pages, there is nothing to.
        sampled = self._compute(batch.chunks, work) if batch.chunks else []
        self._scheduler.commit(batch)
        outputs = tuple(self._append(sequence, token) for sequence, token in sampled)
        return StepResult(batch, work, self._clock() - started, outputs, self._cache.take_events())


class Companions(Protocol):
    """Processes that an engine can't do without."""

    def listen(self, on_death: Callable[[str], None]) -> None:
        """`on_death` is told, from any thread, which has died and how."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    engine: EngineBase
    new_cache: Callable[[], KVCache]
    max_context: int
    """Tokens of prompt and answer: the model's, or fewer where the KV memory is smaller."""
    has_logits: bool = True
    """Else a request that needs them is refused."""
    companions: Companions | None = None


def advance(sequence: Sequence) -> FinishReason | None:
    """Tells the constraint what was sampled. One that fails ends its own sequence and no other."""
    token = sequence.tokens[-1]
    if sequence.constraint is None or token in sequence.params.stop_token_ids:
        return None
    try:
        sequence.constraint.accept(token)
    except ConstraintError as error:
        _LOG.warning("the grammar of request %s failed after %d tokens: %s", sequence.id, sequence.num_output, error)
        return FinishReason.ERROR
    return None
