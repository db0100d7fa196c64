"""Steps of a runner to time: decodes of so many sequences, and prompts, without an engine around them."""

from collections.abc import Iterable

import torch

from kernels.device.base import DeviceKVDtype
from loadtest.gpu.bench import Bench
from loadtest.gpu.shapes import TimedModel
from replica.device.graphs import Capture, cuda_capture
from replica.device.plan import StepPlan, in_order, plan
from replica.device.pool import DevicePool
from replica.device.runner import DeviceRunner
from replica.model.config import ModelConfig
from replica.model.decoder import Decoder
from replica.protocol.hashing import BLOCK_SIZE
from replica.sequence import Chunk, SamplingParams, Sequence

_ENDLESS = 1 << 20


def kv_dtype(dtype: torch.dtype) -> DeviceKVDtype:
    return "bf16" if dtype == torch.bfloat16 else "fp32"


def zeroed_pool(config: ModelConfig, pages: int, dtype: DeviceKVDtype, device: torch.device) -> DevicePool:
    """Not as memory comes: NaN in it would go through all layers."""
    pool = DevicePool.allocate(config, pages, dtype, device)
    for layer in pool.layers:
        for part in (layer.keys, layer.values, layer.scales):
            if part is not None:
                part.view(torch.uint8).zero_()
    return pool


def capture_of(device: torch.device) -> Capture:
    """On a CPU the same path with nothing recorded: computed anew each time."""
    return cuda_capture() if device.type == "cuda" else lambda compute: compute


def runner_of(
    bench: Bench, model: Decoder, pool: DevicePool, rows: int, pages: int, graphs: bool, cascade: bool = False
) -> DeviceRunner:
    return DeviceRunner(model, pool, bench.device, rows, pages, capture_of(bench.device) if graphs else None, cascade)


def pages_of(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)


def sequences(lengths: Iterable[int], vocabulary: int, temperature: float = 0.0) -> list[Sequence]:
    """Each in pages of its own, one after the other."""
    made: list[Sequence] = []
    first = 0
    for index, length in enumerate(lengths):
        tokens = [(index * 7919 + place * 31) % vocabulary for place in range(length)]
        params = SamplingParams(max_tokens=_ENDLESS, temperature=temperature, top_p=0.95 if temperature else 1.0)
        sequence = Sequence(str(index), tokens, params, 0)
        sequence.pages = list(range(first, first + pages_of(length)))
        first += pages_of(length)
        made.append(sequence)
    return made


def decode_plan(batch: int, context: int, vocabulary: int, temperature: float = 0.0) -> StepPlan:
    """Each sequence has `context` tokens with the one to come from."""
    made = sequences([context] * batch, vocabulary, temperature)
    return plan(in_order([Chunk(sequence, context - 1, 1) for sequence in made]), {}, False)


def prefill_plan(lengths: list[int], vocabulary: int) -> StepPlan:
    made = sequences(lengths, vocabulary)
    return plan(in_order([Chunk(sequence, 0, len(sequence.tokens)) for sequence in made]), {}, False)


def decode_ms(bench: Bench, runner: DeviceRunner, step: StepPlan, repeat: int = 20) -> float:
    """Steps are launched without waiting for the one before, as the engine does; so it is the longer of what the host
    takes to launch one and the device to compute it."""
    return bench.seconds(lambda: runner.run(step), 2 if bench.small else repeat) * 1e3


def decode_read_bytes(timed: TimedModel, batch: int, context: int, kv_itemsize: int) -> int:
    """What a decode step can't do without reading: the weights, and each sequence's K and V."""
    model = timed.config.model
    token = 2 * model.num_layers * model.num_kv_heads * model.head_dim * kv_itemsize
    return timed.read_bytes + batch * context * token
