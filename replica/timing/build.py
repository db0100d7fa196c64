"""From settings to an engine that keeps a profile's time. Imports no torch, and is kept small: there may be many."""

import ctypes
import sys
import time

from replica.cache.manager import CacheManager, KVCache
from replica.cache.naive import NaiveCache
from replica.config import EngineConfig, TimingConfig
from replica.engine_base import BuiltEngine
from replica.protocol.hashing import BLOCK_SIZE
from replica.protocol.text import ModelText
from replica.scheduler import SchedulerLimits
from replica.timing.engine import TimingEngine
from replica.timing.pace import Pace
from replica.timing.words import Words


def build_timing_engine(settings: EngineConfig, timing: TimingConfig, text: ModelText) -> BuiltEngine:
    profile = timing.profile.faster(1 / timing.time_scale)
    num_pages = timing.num_pages

    def new_cache() -> KVCache:
        return CacheManager(num_pages, settings.eviction) if settings.prefix_cache else NaiveCache(num_pages)

    limits = SchedulerLimits(settings.step_tokens, settings.running, settings.order)
    words = Words(text.tokenizer, text.stop_token_ids)
    engine = TimingEngine(profile, words, Pace(time.monotonic, time.sleep), new_cache(), limits, time.monotonic)
    _give_back_memory()
    return BuiltEngine(engine, new_cache, min(text.max_context, num_pages * BLOCK_SIZE), has_logits=False)


def _give_back_memory() -> None:
    """What reading the tokenizer has left over, 30 MB of 110. Only GNU's C library needs it, and has it."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
