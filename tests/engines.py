"""Engines for tests, small or real, and a loop that runs sequences to their end."""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from kernels import KVDtype
from replica.attention.batch import AttentionBatch
from replica.cache.kv_pool import KVPool
from replica.cache.manager import CacheManager, KVCache
from replica.cache.naive import NaiveCache
from replica.engine import Engine
from replica.engine_base import EngineBase
from replica.model.registry import load_model
from replica.scheduler import SchedulerLimits
from replica.sequence import Chunk, SamplingParams, Sequence
from replica.step import Output, StepResult


def make_engine(
    folder: Path,
    *,
    num_pages: int = 64,
    max_step_tokens: int = 256,
    max_running: int = 32,
    int8: bool = False,
    kv: KVDtype | None = None,
    prefix_cache: bool = True,
) -> Engine:
    config, model = load_model(folder, int8)
    cache: KVCache = CacheManager(num_pages) if prefix_cache else NaiveCache(num_pages)
    limits = SchedulerLimits(max_step_tokens, max_running)
    pool = KVPool.allocate(config, num_pages, kv or ("int8" if int8 else "fp32"))
    return Engine(model, pool, cache, limits, time.monotonic)


def generate(
    engine: EngineBase,
    prompts: list[list[int]],
    max_tokens: int = 16,
    on_step: Callable[[StepResult], None] = lambda step: None,
    **params: object,
) -> list[Sequence]:
    """Greedy unless told otherwise; integrity is checked after every step."""
    settings = SamplingParams(max_tokens, **({"temperature": 0} | params))  # type: ignore[arg-type]
    sequences = [Sequence(f"s{n}", prompt, settings, namespace=0) for n, prompt in enumerate(prompts)]
    run(engine, sequences, on_step)
    return sequences


def run(
    engine: EngineBase, sequences: list[Sequence], on_step: Callable[[StepResult], None] = lambda step: None
) -> dict[str, list[Output]]:
    """To their end, all at once; integrity is checked after every step. Outputs by the sequence's id."""
    outputs: dict[str, list[Output]] = {sequence.id: [] for sequence in sequences}
    for sequence in sequences:
        engine.add(sequence)
    while engine.has_work:
        step = engine.step()
        on_step(step)
        for output in step.outputs:
            outputs[output.sequence.id].append(output)
        engine.check_integrity()
    return outputs


def answers(sequences: list[Sequence]) -> list[list[int]]:
    return [sequence.tokens[len(sequence.prompt) :] for sequence in sequences]


@torch.inference_mode()
def logits_in_chunks(
    folder: Path, tokens: list[int], chunks: list[int], int8: bool = False, kv: KVDtype = "fp32"
) -> torch.Tensor:
    """Of every token, computed in chunks of these sizes, the last one repeated to the end."""
    config, model = load_model(folder, int8)
    sequence = Sequence("s", tokens, SamplingParams(max_tokens=1), namespace=0)
    num_pages = -(-len(tokens) // 16)
    # Not in order, so that a page's place in the pool and in the sequence differ.
    sequence.pages = list(reversed(range(num_pages)))
    pool = KVPool.allocate(config, num_pages, kv)
    sizes, hidden, start = iter(chunks), [], 0
    size = chunks[-1]
    while start < len(tokens):
        size = min(next(sizes, size), len(tokens) - start)
        batch = AttentionBatch.build([Chunk(sequence, start, size)])
        hidden.append(model.forward(torch.tensor(tokens[start : start + size]), batch, pool))
        start += size
    return model.logits(torch.cat(hidden))
