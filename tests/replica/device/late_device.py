"""The model on a CPU behind the contract of a device, computing as late as it may; freed pages become NaN in the order
of the stream, so that reading one shows."""

import random
import time
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from pathlib import Path

import torch

import kernels
from kernels import KVDtype
from replica.attention.batch import AttentionBatch, group_by_prefix
from replica.cache.kv_pool import KVPool
from replica.cache.manager import CacheManager
from replica.cache.naive import NaiveCache
from replica.device.engine import OverlapEngine
from replica.device.launch import needs_host
from replica.logprobs import add_prompt_logprobs
from replica.model.registry import Model, load_model
from replica.sampler import sample, uniform
from replica.scheduler import SchedulerLimits
from replica.sequence import Chunk, SamplingParams, Sequence
from replica.step import Sampled
from tests.replica.device.plain_device import SpoilingPool, Stream


@dataclass(slots=True)
class LateLaunch:
    device: "LateDevice"
    chunks: list[Chunk]
    """In the order of their rows, `sequences` those of the sampled rows."""
    sequences: list[Sequence]
    on_host: list[int]
    scores: bool
    number: int = 0
    tokens: dict[Sequence, int] = field(default_factory=dict)
    logits: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    hidden: torch.Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def needs_host(self) -> bool:
        return bool(self.on_host) or self.scores

    @torch.inference_mode()
    def result(self) -> list[tuple[Sequence, Sampled]]:
        self.device.stream.wait(self.number)
        if self.scores:
            add_prompt_logprobs(self.chunks, self.hidden, self.device.model.logits)
        sampled = {sequence: Sampled(token) for sequence, token in self.tokens.items()}
        hosted = [self.sequences[row] for row in self.on_host]
        if hosted:
            sampled |= dict(zip(hosted, sample(self.logits[self.on_host], hosted), strict=True))
        return list(sampled.items())


class LateDevice:
    def __init__(self, model: Model, pool: KVPool, seed: int = 0) -> None:
        self.model = model
        self.pool = pool
        self.stream = Stream(random.Random(seed))
        self._last: LateLaunch | None = None

    def free(self, page: int) -> None:
        def spoil() -> None:
            for layer in self.pool.layers:
                for part in (layer.keys, layer.values) if layer.scales is None else (layer.scales,):
                    part[page] = torch.nan

        self.stream.put(spoil)

    def launch(self, chunks: SequenceOf[Chunk]) -> LateLaunch:
        ordered = group_by_prefix(chunks)
        tokens: list[int] = []
        takes: list[tuple[int, Sequence]] = []
        rows: list[int] = []
        for chunk in ordered:
            tokens += chunk.sequence.tokens[chunk.start : chunk.end]
            if chunk.samples:
                rows.append(len(tokens) - 1)
                if chunk.sequence.num_pending:
                    takes.append((rows[-1], chunk.sequence))
        sequences = [chunk.sequence for chunk in ordered if chunk.samples]
        on_host = [row for row, sequence in enumerate(sequences) if needs_host(sequence)]
        scores = any(chunk.sequence.lacks_prompt_logprobs for chunk in ordered)
        launch = LateLaunch(self, ordered, sequences, on_host, scores)
        batch = AttentionBatch.build(ordered)
        points = [uniform(sequence.params.seed, len(sequence.tokens)) for sequence in sequences]
        previous = self._last

        @torch.inference_mode()
        def compute() -> None:
            for row, sequence in takes:
                assert previous is not None
                tokens[row] = max(0, previous.tokens[sequence])
            launch.hidden = self.model.forward(torch.tensor(tokens), batch, self.pool)
            if rows:
                launch.logits = self.model.logits(launch.hidden[rows])
                launch.tokens = dict(zip(sequences, _draw(launch.logits, sequences, points), strict=True))

        launch.number = self.stream.put(compute)
        self._last = launch
        self.stream.advance()
        return launch


def _draw(logits: torch.Tensor, sequences: list[Sequence], points: list[float]) -> list[int]:
    params: list[SamplingParams] = [sequence.params for sequence in sequences]
    tokens: list[int] = kernels.draw(
        logits,
        torch.tensor([one.temperature for one in params], dtype=torch.float32),
        torch.tensor([one.top_k for one in params], dtype=torch.int32),
        torch.tensor([one.top_p for one in params], dtype=torch.float32),
        torch.tensor([one.min_p for one in params], dtype=torch.float32),
        torch.tensor(points, dtype=torch.float64),
    ).tolist()
    return tokens


def make_late_engine(
    folder: Path,
    *,
    num_pages: int = 64,
    max_step_tokens: int = 256,
    max_running: int = 32,
    kv: KVDtype = "fp32",
    prefix_cache: bool = True,
    seed: int = 0,
) -> OverlapEngine:
    """As `tests.engines.make_engine`, but a step ahead."""
    config, model = load_model(folder, int8=False)
    device = LateDevice(model, KVPool.allocate(config, num_pages, kv), seed)
    cache = CacheManager(num_pages) if prefix_cache else NaiveCache(num_pages)
    cache._pool = SpoilingPool(num_pages, device.free)
    for page in range(num_pages):
        device.free(page)
    return OverlapEngine(device, cache, SchedulerLimits(max_step_tokens, max_running), time.monotonic)
