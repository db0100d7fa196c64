"""Engines for tests, small or real, and a loop that runs sequences to their end."""

import time
from collections.abc import Callable
from pathlib import Path

from replica.cache.kv_pool import KVPool
from replica.cache.manager import CacheManager, KVCache
from replica.cache.naive import NaiveCache
from replica.engine import Engine, StepResult
from replica.model.registry import load_model
from replica.scheduler import SchedulerLimits
from replica.sequence import SamplingParams, Sequence


def make_engine(
    folder: Path,
    *,
    num_pages: int = 64,
    max_step_tokens: int = 256,
    max_running: int = 32,
    int8: bool = False,
    prefix_cache: bool = True,
) -> Engine:
    config, model = load_model(folder, int8)
    cache: KVCache = CacheManager(num_pages) if prefix_cache else NaiveCache(num_pages)
    limits = SchedulerLimits(max_step_tokens, max_running)
    return Engine(model, KVPool.allocate(config, num_pages), cache, limits, time.monotonic)


def generate(
    engine: Engine,
    prompts: list[list[int]],
    max_tokens: int = 16,
    on_step: Callable[[StepResult], None] = lambda step: None,
    **params: object,
) -> list[Sequence]:
    """Greedy unless told otherwise; integrity is checked after every step."""
    settings = SamplingParams(max_tokens, **({"temperature": 0} | params))  # type: ignore[arg-type]
    sequences = [Sequence(f"s{n}", prompt, settings, namespace=0) for n, prompt in enumerate(prompts)]
    for sequence in sequences:
        engine.add(sequence)
    while engine.scheduler.has_work:
        on_step(engine.step())
        engine.check_integrity()
    return sequences


def answers(sequences: list[Sequence]) -> list[list[int]]:
    return [sequence.tokens[len(sequence.prompt) :] for sequence in sequences]
