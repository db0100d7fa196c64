"""What a step takes of a card's memory at the most, measured before the KV cache is there."""

import gc

import numpy as np
import torch

from kernels.device.base import DeviceKVDtype
from replica.device.plan import Draws, StepPlan
from replica.device.pool import DeviceMemory, DevicePool
from replica.device.runner import DeviceRunner
from replica.model.config import ModelConfig
from replica.model.decoder import Decoder
from replica.protocol.hashing import BLOCK_SIZE

_FRAGMENTS = 256 << 20
_GRAPHS = 1 << 30
"""Not measured: the graphs' memory pool takes about a decode step's activations, and each graph some MiB."""


def measure(
    model: Decoder,
    config: ModelConfig,
    kv: DeviceKVDtype,
    device: torch.device,
    max_step_tokens: int,
    max_running: int,
    graphs: bool,
) -> DeviceMemory:
    """Runs a step of the largest size, over made-up tokens and a KV cache that goes again."""
    # A step may exceed its budget by a sixteenth, see replica/scheduler.py.
    step = widest_plan(max_step_tokens * 17 // 16, max_running, config.max_context)
    pool = DevicePool.allocate(config, step.page_table.shape[1], kv, device)
    runner = DeviceRunner(model, pool, device, max_running, step.page_table.shape[1])
    held = sum(part.nbytes for layer in pool.layers for part in (layer.keys, layer.values))
    torch.cuda.reset_peak_memory_stats(device)
    runner.run(step)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - held
    del runner, pool
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    return DeviceMemory(total, others, peak, _FRAGMENTS + (_GRAPHS if graphs else 0))


def widest_plan(tokens: int, sampled: int, max_context: int) -> StepPlan:
    """As many whole prompts as it takes, over the same pages, and as many draws as there can be."""
    counts = np.full(-(-tokens // max_context), max_context, np.int32)
    counts[-1] = tokens - max_context * (len(counts) - 1)
    positions = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
    pages = np.arange(-(-int(counts.max()) // BLOCK_SIZE), dtype=np.int32)
    sampled = min(sampled, tokens)
    ones = np.ones(sampled, np.float32)
    nothing = np.zeros(0, np.int32)
    return StepPlan(
        tokens=np.zeros(tokens, np.int32),
        take=np.full(tokens, -1, np.int32),
        positions=positions,
        slots=positions,
        page_table=np.repeat(pages[None], len(counts), axis=0),
        lens=counts,
        query_start=np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
        num_decodes=0,
        max_query=int(counts.max()),
        rows=np.arange(tokens - sampled, tokens, dtype=np.int32),
        draws=Draws(ones, np.zeros(sampled, np.int32), ones * np.float32(0.9), ones * 0, ones.astype(np.float64) / 2),
        on_host=nothing,
        group_start=np.zeros(1, np.int32),
        group_pages=nothing,
        scored=np.zeros((0, 2), np.int32),
    )
