"""Steps of whole models: decodes with and without graphs, prompts, and what they take of memory."""

from functools import partial

import torch

from loadtest.gpu.bench import Bench
from loadtest.gpu.shapes import LLAMA_8B, SMOLLM2_135M, TINY, TINY_8B, Fields, TimedModel, random_model
from loadtest.gpu.steps import (
    decode_ms,
    decode_plan,
    decode_read_bytes,
    kv_dtype,
    pages_of,
    prefill_plan,
    runner_of,
    zeroed_pool,
)

_CONTEXT = 1024
_SMALL_CONTEXT = 20


def measure_decode(bench: Bench) -> None:
    batches = (1, 3) if bench.small else (1, 8, 64, 256)
    _measure_decode(bench, "decode", TINY if bench.small else SMOLLM2_135M, batches, with_eager=True)


def measure_decode_8b(bench: Bench) -> None:
    batches = (1, 2) if bench.small else (1, 8, 64, 256)
    _measure_decode(bench, "decode_8b", TINY_8B if bench.small else LLAMA_8B, batches, with_eager=False)


def measure_prefill(bench: Bench) -> None:
    _measure_prefill(bench, "prefill", TINY if bench.small else SMOLLM2_135M)


def measure_prefill_8b(bench: Bench) -> None:
    _measure_prefill(bench, "prefill_8b", TINY_8B if bench.small else LLAMA_8B)


def _measure_decode(bench: Bench, name: str, config: Fields, batches: tuple[int, ...], with_eager: bool) -> None:
    timed = random_model(config, bench.device, bench.dtype)
    context = _SMALL_CONTEXT if bench.small else _CONTEXT
    stored, vocabulary = kv_dtype(bench.dtype), timed.config.model.vocab_size
    pool = zeroed_pool(timed.config.model, max(batches) * pages_of(context), stored, bench.device)
    # The narrow runner first: its figures are the ones most looked at, and it has few graphs to record.
    for batch in batches:
        if not bench.has_time(f"{name} of {batch}"):
            return
        graphs = runner_of(bench, timed.model, pool, batch, pages_of(context), graphs=True)
        step = decode_plan(batch, context, vocabulary)
        ms = decode_ms(bench, graphs, step)
        bench.record.figure(f"{name}_{batch}_ms", ms)
        bench.record.figure(f"{name}_{batch}_tokens_per_s", batch / ms * 1e3)
        read = decode_read_bytes(timed, batch, context, bench.dtype.itemsize)
        bench.record.figure(f"{name}_{batch}_gb_per_s", read / ms / 1e6)
        drawn = decode_plan(batch, context, vocabulary, temperature=0.8)
        bench.record.figure(f"{name}_{batch}_top_p_ms", decode_ms(bench, graphs, drawn))
        if with_eager:
            eager = runner_of(bench, timed.model, pool, batch, pages_of(context), graphs=False)
            bench.record.figure(f"{name}_{batch}_eager_ms", decode_ms(bench, eager, step, 5))
            same = torch.equal(graphs.run(step).tokens, eager.run(step).tokens)
            bench.record.check(f"{name} of {batch}: the same tokens with graphs as without", same)
    _record_peak(bench, name)


def _measure_prefill(bench: Bench, name: str, config: Fields) -> None:
    """A prompt alone, and 8k tokens that are eight prompts."""
    timed = random_model(config, bench.device, bench.dtype)
    vocabulary = timed.config.model.vocab_size
    cases = [("1k", [1024]), ("8k", [8192]), ("8x1k", [1024] * 8), ("32k", [32768])]
    if bench.small:
        cases = [("1k", [40]), ("8x1k", [17, 20])]
    most = max(sum(map(pages_of, lengths)) for _, lengths in cases)
    pool = zeroed_pool(timed.config.model, most, kv_dtype(bench.dtype), bench.device)
    runner = runner_of(bench, timed.model, pool, 8, most, graphs=False)
    for label, lengths in cases:
        if not bench.has_time(f"{name} of {label}"):
            return
        step = prefill_plan(lengths, vocabulary)
        seconds = bench.seconds(partial(runner.run, step), 1 if bench.small else 3)
        bench.record.figure(f"{name}_{label}_tokens_per_s", sum(lengths) / seconds)
        operations = _operations(timed, config["hidden_size"], lengths)
        bench.record.figure(f"{name}_{label}_tflops", operations / seconds / 1e12)
    _record_peak(bench, name)


def _operations(timed: TimedModel, hidden: int, lengths: list[int]) -> float:
    """Of the linear maps but the head, which only a prompt's last token goes through, and of what attention sees."""
    model = timed.config.model
    width = timed.config.num_heads * model.head_dim
    linear = 2 * (timed.parameters - model.vocab_size * hidden) * sum(lengths)
    return linear + sum(2 * model.num_layers * width * length * length for length in lengths)


def _record_peak(bench: Bench, name: str) -> None:
    if bench.device.type == "cuda":
        bench.record.figure(f"{name}_peak_gib", torch.cuda.max_memory_allocated(bench.device) / 2**30)
