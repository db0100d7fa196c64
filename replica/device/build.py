"""From settings to a warm engine on a GPU: kernels chosen, weights loaded, KV memory sized, graphs recorded."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import kernels.device
from replica.cache.manager import CacheManager, KVCache
from replica.cache.naive import NaiveCache
from replica.config import ConfigError, EngineConfig
from replica.device.cuda import CudaDevice
from replica.device.engine import OverlapEngine
from replica.device.graphs import cuda_capture
from replica.device.load import DTYPES, alone, load_device_model
from replica.device.memory import measure
from replica.device.pool import DevicePool, pages_that_fit, pool_page_bytes
from replica.device.runner import DeviceRunner, Runner
from replica.device.transfer import current
from replica.device.weights import WHOLE, Combine, Shard
from replica.device_config import DeviceConfig
from replica.engine_base import BuiltEngine
from replica.kv_memory import at_least_two, pages_in_memory
from replica.model.config import ModelConfig
from replica.model.decoder import Decoder
from replica.protocol.hashing import BLOCK_SIZE
from replica.scheduler import SchedulerLimits
from replica.warm_up import warm_up

log = logging.getLogger(__name__)

_WARM_UP_PREFILLS = (16, 256, 64, 1024, 512, 4096, 2048)
_WARM_UP_DECODES = (1, 4, 8, 32, 64)
_BF16_CAPABILITY = (8, 0)
_FP8_CAPABILITY = (8, 9)


@dataclass(frozen=True, slots=True)
class Ranks:
    """What computing a model together takes; by itself, nothing."""

    shard: Shard = WHOLE
    combine: Combine = alone
    least: Callable[[int], int] = int
    """Of the ranks' numbers."""


ALONE = Ranks()


@dataclass(frozen=True, slots=True)
class BuiltRunner:
    runner: Runner
    num_pages: int
    max_context: int
    vocab_size: int


def build_device_engine(folder: Path, settings: EngineConfig, on: DeviceConfig) -> BuiltEngine:
    """Raises ModelFolderError, ConfigError, RankDied."""
    if on.tensor_parallel > 1:
        # Only now: it needs what is here.
        from replica.device.parallel.build import build_shared_engine

        return build_shared_engine(folder, settings, on)
    device = open_device(on)
    with current(device):
        return build_engine(build_runner(folder, settings, on, device), settings, device)


def build_runner(
    folder: Path, settings: EngineConfig, on: DeviceConfig, device: torch.device, ranks: Ranks = ALONE
) -> BuiltRunner:
    """The same on all ranks, in the same order, for there are collectives in it. Raises ModelFolderError,
    ConfigError."""
    log.info("%s computes, with the kernels of %s", _name(device), choose_kernels(on, device))
    config, model = load_device_model(folder, device, DTYPES[on.dtype], ranks.shard, ranks.combine)
    num_pages = ranks.least(count_pages(settings, on, config, model, device))
    max_context = min(config.max_context, num_pages * BLOCK_SIZE)
    pool = DevicePool.allocate(config, num_pages, on.kv_dtype, device)
    runner = DeviceRunner(
        model, pool, device, settings.running, -(-max_context // BLOCK_SIZE),
        cuda_capture(ranks.shard.size > 1) if on.cuda_graphs and device.type == "cuda" else None,
    )  # fmt: skip
    return BuiltRunner(runner, num_pages, max_context, config.vocab_size)


def build_engine(built: BuiltRunner, settings: EngineConfig, device: torch.device) -> BuiltEngine:
    """Warm."""

    def new_cache() -> KVCache:
        if settings.prefix_cache:
            return CacheManager(built.num_pages, settings.eviction)
        return NaiveCache(built.num_pages)

    limits = SchedulerLimits(settings.step_tokens, settings.running, settings.order)
    engine = OverlapEngine(CudaDevice(built.runner, device), new_cache(), limits, time.monotonic)
    prefills = [length for length in _WARM_UP_PREFILLS if length <= min(built.max_context, settings.step_tokens)]
    decodes = [count for count in _WARM_UP_DECODES if count <= settings.running]
    warm_up(engine, built.max_context, built.vocab_size, prefills, decodes)
    engine.replace_cache(new_cache())
    return BuiltEngine(engine, new_cache, built.max_context)


def open_device(on: DeviceConfig) -> torch.device:
    """Raises ConfigError where it isn't there, or can't do what is asked."""
    device = torch.device(on.torch_device)
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise ConfigError(f"device: {on.device} was asked for, and torch here has no CUDA ({torch.__version__})")
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise ConfigError(f"device: there is no {on.device}, only {count} GPU{'s' if count > 1 else ''}, from cuda:0")
    capability = torch.cuda.get_device_capability(device)
    if on.dtype == "bf16" and capability < _BF16_CAPABILITY:
        raise ConfigError(f"dtype: bf16 needs compute capability 8.0, and {_name(device)} has {_dotted(capability)}")
    if on.kv_dtype == "fp8" and capability < _FP8_CAPABILITY:
        raise ConfigError(f"kv: fp8 needs compute capability 8.9, and {_name(device)} has {_dotted(capability)}")
    return device


def choose_kernels(on: DeviceConfig, device: torch.device) -> str:
    """Once for the process; says which. Raises ConfigError."""
    if device.type == "cpu" and on.kernels == "triton":
        raise ConfigError("device_kernels: triton needs a GPU")
    try:
        return kernels.device.use("torch" if device.type == "cpu" else on.kernels)  # type: ignore[arg-type]
    except ImportError as error:
        raise ConfigError(f"device_kernels: triton isn't installed ({error})") from error


def count_pages(
    settings: EngineConfig, on: DeviceConfig, config: ModelConfig, model: Decoder, device: torch.device
) -> int:
    """Raises ConfigError."""
    page_bytes = pool_page_bytes(config, on.kv_dtype)
    if device.type == "cpu":
        return pages_in_memory(settings.kv_memory_bytes, page_bytes)
    memory = measure(model, config, on.kv_dtype, device, settings.step_tokens, settings.running, on.cuda_graphs)
    num_pages = pages_that_fit(memory, on.gpu_memory_utilization, page_bytes)
    if settings.kv_memory_bytes is not None:
        asked = at_least_two(settings.kv_memory_bytes, page_bytes)
        if asked > num_pages:
            raise ConfigError(
                f"kv_memory_gib: {asked} blocks were asked for, and {_name(device)} has room for {num_pages} "
                "(gpu_memory_utilization)"
            )
        num_pages = asked
    log.info(
        "KV cache: %d blocks of %d tokens, %.2f GiB; weights and a step %.2f GiB",
        num_pages, BLOCK_SIZE, num_pages * page_bytes / 2**30, memory.peak / 2**30,
    )  # fmt: skip
    return num_pages


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU, as a device,"


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
