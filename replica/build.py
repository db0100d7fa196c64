"""From settings to an engine that is warm: weights loaded, KV memory sized, cost model fitted."""

import time

import torch

import kernels
from replica.cache.kv_pool import KVPool, page_bytes
from replica.cache.manager import CacheManager, KVCache
from replica.cache.naive import NaiveCache
from replica.config import ConfigError, EngineConfig, ReplicaConfig, available_memory_bytes, total_memory_bytes
from replica.engine import Engine
from replica.engine_base import BuiltEngine
from replica.model.config import ModelConfig
from replica.model.registry import load_model
from replica.protocol.hashing import BLOCK_SIZE
from replica.scheduler import SchedulerLimits
from replica.sequence import SamplingParams, Sequence

_MEMORY_SHARE = 0.2
_WARM_UP_PREFILLS = (16, 256, 64, 512)
_WARM_UP_DECODES = (1, 4, 8)
_WARM_UP_DECODE_STEPS = 2


def build_engine(config: ReplicaConfig) -> BuiltEngine:
    """Raises ModelFolderError, ConfigError."""
    settings = config.engine
    torch.set_num_threads(settings.threads)
    kernels.set_num_threads(settings.threads)
    model_config, model = load_model(config.folder, int8=settings.weights == "int8")
    num_pages = _num_pages(settings, model_config)
    max_context = min(model_config.max_context, num_pages * BLOCK_SIZE)

    def new_cache() -> KVCache:
        return CacheManager(num_pages, settings.eviction) if settings.prefix_cache else NaiveCache(num_pages)

    limits = SchedulerLimits(settings.step_tokens, settings.max_running, settings.order)
    engine = Engine(
        model, KVPool.allocate(model_config, num_pages, settings.kv_dtype), new_cache(), limits, time.monotonic
    )
    _warm_up(engine, max_context, model_config.vocab_size)
    engine.replace_cache(new_cache())
    return BuiltEngine(engine, new_cache, max_context)


def _num_pages(settings: EngineConfig, model: ModelConfig) -> int:
    memory = settings.kv_memory_bytes
    if memory is None:
        memory = int(available_memory_bytes() * _MEMORY_SHARE)
    if memory > total_memory_bytes():
        raise ConfigError(f"kv_memory_gib: this machine has {total_memory_bytes() / 2**30:.1f} GiB in all")
    block = page_bytes(model, settings.kv_dtype)
    num_pages = memory // block
    if num_pages < 2:
        raise ConfigError(f"kv_memory_gib: {memory / 2**30:g} hold fewer than 2 blocks of {block} bytes")
    return num_pages


def _warm_up(engine: Engine, max_context: int, vocab_size: int) -> None:
    """Real steps over made-up prompts of many sizes: touches all code and memory once, and fits the cost model."""
    generator = torch.Generator().manual_seed(0)

    def run(count: int, length: int, steps: int) -> None:
        for index in range(count):
            prompt = torch.randint(vocab_size, (min(length, max_context - steps),), generator=generator).tolist()
            engine.add(Sequence(f"warm-up-{index}", prompt, SamplingParams(max_tokens=steps, temperature=0), 0))
        while engine.scheduler.has_work:
            engine.step()

    for length in _WARM_UP_PREFILLS:
        run(1, length, 1)
    for count in _WARM_UP_DECODES:
        run(count, BLOCK_SIZE, _WARM_UP_DECODE_STEPS)
