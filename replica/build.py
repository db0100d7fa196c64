"""From settings to an engine that is warm: weights loaded, KV memory sized, cost model fitted."""

import time

import torch

import kernels
from replica.cache.kv_pool import KVPool, page_bytes
from replica.cache.manager import CacheManager, KVCache
from replica.cache.naive import NaiveCache
from replica.config import ReplicaConfig
from replica.engine import Engine
from replica.engine_base import BuiltEngine
from replica.kv_memory import pages_in_memory
from replica.model.registry import load_model
from replica.protocol.hashing import BLOCK_SIZE
from replica.scheduler import SchedulerLimits
from replica.warm_up import warm_up

_WARM_UP_PREFILLS = (16, 256, 64, 512)
_WARM_UP_DECODES = (1, 4, 8)


def build_engine(config: ReplicaConfig) -> BuiltEngine:
    """Raises ModelFolderError, ConfigError."""
    settings = config.engine
    if settings.device is not None:
        from replica.device.build import build_device_engine

        return build_device_engine(config.folder, settings, settings.device)
    torch.set_num_threads(settings.threads)
    kernels.set_num_threads(settings.threads)
    model_config, model = load_model(config.folder, int8=settings.weights == "int8")
    num_pages = pages_in_memory(settings.kv_memory_bytes, page_bytes(model_config, settings.kv_dtype))
    max_context = min(model_config.max_context, num_pages * BLOCK_SIZE)

    def new_cache() -> KVCache:
        return CacheManager(num_pages, settings.eviction) if settings.prefix_cache else NaiveCache(num_pages)

    limits = SchedulerLimits(settings.step_tokens, settings.running, settings.order)
    engine = Engine(
        model, KVPool.allocate(model_config, num_pages, settings.kv_dtype), new_cache(), limits, time.monotonic
    )
    warm_up(engine, max_context, model_config.vocab_size, _WARM_UP_PREFILLS, _WARM_UP_DECODES)
    engine.replace_cache(new_cache())
    return BuiltEngine(engine, new_cache, max_context)
