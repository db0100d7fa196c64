"""Engines around a CudaDevice on CPU tensors, in plain torch."""

import time
from pathlib import Path
from typing import Literal

import torch

import kernels.device
from replica.cache.manager import CacheManager, KVCache
from replica.cache.naive import NaiveCache
from replica.device.cuda import CudaDevice
from replica.device.engine import OverlapEngine
from replica.device.graphs import Capture
from replica.device.load import DTYPES, load_device_model
from replica.device.pool import DevicePool
from replica.device.runner import DeviceRunner
from replica.scheduler import SchedulerLimits

CPU = torch.device("cpu")


def make_runner(
    folder: Path,
    num_pages: int,
    max_running: int = 32,
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32",
    kv: Literal["fp32", "bf16", "fp16", "fp8"] | None = None,
    capture: Capture | None = None,
) -> DeviceRunner:
    """What no step should read lies there as NaN."""
    kernels.device.use("torch")
    config, model = load_device_model(folder, CPU, DTYPES[dtype])
    pool = DevicePool.allocate(config, num_pages, kv or dtype, CPU)
    for layer in pool.layers:
        for part in (layer.keys, layer.values):
            part.view(torch.uint8).fill_(0x7F)
    return DeviceRunner(model, pool, CPU, max_running, -(-config.max_context // 16), capture)


def make_device_engine(
    folder: Path,
    *,
    num_pages: int = 64,
    max_step_tokens: int = 256,
    max_running: int = 32,
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32",
    kv: Literal["fp32", "bf16", "fp16", "fp8"] | None = None,
    prefix_cache: bool = True,
    capture: Capture | None = None,
    damaged_token: int | None = None,
) -> OverlapEngine:
    """`damaged_token`: its embedding is NaN."""
    runner = make_runner(folder, num_pages, max_running, dtype, kv, capture)
    if damaged_token is not None:
        runner._model._embed.keywords["weight"][damaged_token] = float("nan")  # type: ignore[attr-defined]
    cache: KVCache = CacheManager(num_pages) if prefix_cache else NaiveCache(num_pages)
    limits = SchedulerLimits(max_step_tokens, max_running)
    return OverlapEngine(CudaDevice(runner, CPU), cache, limits, time.monotonic)
