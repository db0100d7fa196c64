"""One step: schedule, prepare, forward, sample, commit. Owned by one thread; see worker.py."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from replica.attention.batch import AttentionBatch, group_by_prefix
from replica.cache.kv_pool import KVPool
from replica.cache.manager import CacheEvents, KVCache
from replica.cost_model import CostModelFit, StepWork
from replica.logprobs import add_prompt_logprobs
from replica.model.registry import Model
from replica.protocol.records import Load
from replica.sampler import Sampled, sample
from replica.scheduler import Scheduler, SchedulerLimits
from replica.sequence import Batch, Chunk, ConstraintError, FinishReason, Sequence, TokenLogprobs

_LOG = logging.getLogger(__name__)

Clock = Callable[[], float]
"""Seconds, monotonic."""


@dataclass(frozen=True, slots=True)
class Output:
    """A new token of a sequence; the last one carries the reason."""

    sequence: Sequence
    token: int
    finish_reason: FinishReason | None
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    batch: Batch
    work: StepWork
    seconds: float
    outputs: tuple[Output, ...]
    events: CacheEvents = field(default_factory=lambda: CacheEvents((), ()))


class Engine:
    def __init__(self, model: Model, pool: KVPool, cache: KVCache, limits: SchedulerLimits, clock: Clock) -> None:
        self._model = model
        self._pool = pool
        self._cache = cache
        self._clock = clock
        self._limits = limits
        self._scheduler = Scheduler(cache, limits)
        self._fit = CostModelFit(limits.max_step_tokens)

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    @property
    def fit(self) -> CostModelFit:
        return self._fit

    def add(self, sequence: Sequence) -> None:
        self._scheduler.add(sequence)

    def abort(self, sequence: Sequence) -> None:
        self._scheduler.finish(sequence)

    @torch.inference_mode()
    def step(self) -> StepResult:
        """Computes one batch. The scheduler must have work."""
        started = self._clock()
        batch = self._scheduler.schedule()
        chunks = group_by_prefix(batch.chunks)
        work = _work(chunks)
        hidden = self._forward(chunks)
        add_prompt_logprobs(chunks, hidden, self._model.logits)
        sampled = self._sample(chunks, hidden)
        self._scheduler.commit(batch)
        outputs = tuple(self._append(sequence, token) for sequence, token in sampled)
        seconds = self._clock() - started
        self._fit.observe(work, seconds)
        return StepResult(batch, work, seconds, outputs, self._cache.take_events())

    def replace_cache(self, cache: KVCache) -> None:
        """An empty cache of the same size. The engine must be idle."""
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

    def _forward(self, chunks: list[Chunk]) -> torch.Tensor:
        tokens = [token for chunk in chunks for token in chunk.sequence.tokens[chunk.start : chunk.end]]
        return self._model.forward(torch.tensor(tokens), AttentionBatch.build(chunks), self._pool)

    def _sample(self, chunks: list[Chunk], hidden: torch.Tensor) -> list[tuple[Sequence, Sampled]]:
        """Logits only of the last row of chunks that reach their sequence's end."""
        rows: list[int] = []
        sequences: list[Sequence] = []
        end = 0
        for chunk in chunks:
            end += chunk.count
            if chunk.samples:
                rows.append(end - 1)
                sequences.append(chunk.sequence)
        if not rows:
            return []
        return list(zip(sequences, sample(self._model.logits(hidden[rows]), sequences), strict=True))

    def _append(self, sequence: Sequence, sampled: Sampled) -> Output:
        sequence.append(sampled.token)
        reason = _advance(sequence) or sequence.finish_reason()
        if reason is not None:
            self._scheduler.finish(sequence)
        return Output(sequence, sampled.token, reason, sampled.logprobs)


def _advance(sequence: Sequence) -> FinishReason | None:
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


def _work(chunks: list[Chunk]) -> StepWork:
    prefills = [chunk for chunk in chunks if not chunk.sequence.is_decoding]
    return StepWork(
        tokens=sum(chunk.count for chunk in prefills),
        attention=sum(chunk.count * (chunk.end - chunk.count / 2) for chunk in prefills),
        decoding=len(chunks) - len(prefills),
    )
