"""The engine that computes the model: prepare, forward, sample."""

from collections.abc import Sequence as SequenceOf

import torch

from replica.attention.batch import AttentionBatch, group_by_prefix
from replica.cache.kv_pool import KVPool
from replica.cache.manager import KVCache
from replica.cost_model import CostModelFit
from replica.engine_base import Clock, SteppingEngine
from replica.logprobs import add_prompt_logprobs
from replica.model.registry import Model
from replica.protocol.records import CostModel
from replica.sampler import sample
from replica.scheduler import SchedulerLimits
from replica.sequence import Chunk, Sequence
from replica.step import Sampled, StepResult, StepWork


class Engine(SteppingEngine):
    def __init__(self, model: Model, pool: KVPool, cache: KVCache, limits: SchedulerLimits, clock: Clock) -> None:
        super().__init__(cache, limits, clock)
        self._model = model
        self._pool = pool
        self._fit = CostModelFit(limits.max_step_tokens)

    @property
    def cost(self) -> CostModel:
        """Fitted from its own steps."""
        return self._fit.model

    @torch.inference_mode()
    def step(self) -> StepResult:
        result = super().step()
        if result.batch.chunks:
            self._fit.observe(result.work, result.seconds)
        return result

    def _compute(self, chunks: SequenceOf[Chunk], work: StepWork) -> list[tuple[Sequence, Sampled]]:
        grouped = group_by_prefix(chunks)
        hidden = self._forward(grouped)
        add_prompt_logprobs(grouped, hidden, self._model.logits)
        return self._sample(grouped, hidden)

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
