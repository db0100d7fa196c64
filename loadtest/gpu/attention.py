"""Attention by itself: its share of the memory's rate, its rate at prompts beside torch's own, and from which prefix
on a cascade is quicker than attending row by row."""

from functools import partial

import torch
from torch.nn import functional

import kernels.device
from kernels.device.base import DeviceKVDtype
from loadtest.gpu.bench import Bench
from loadtest.gpu.paged import LLAMA_8B, SMOLLM2, Heads, paged, queries
from loadtest.gpu.parity import one_group
from loadtest.gpu.steps import kv_dtype

_OWN_TOKENS = 48


def measure_attention(bench: Bench) -> None:
    batch, context = (3, 40) if bench.small else (64, 4096)
    native = kv_dtype(bench.dtype)
    for name, heads in (("", SMOLLM2), ("_8b", LLAMA_8B)):
        _measure_decode(bench, f"decode_attention{name}_64x4k", heads, native, batch, context)
    if not bench.small:
        _measure_decode(bench, "decode_attention_fp8_64x4k", SMOLLM2, "fp8", batch, context)
        _measure_decode(bench, "decode_attention_1x32k", SMOLLM2, native, 1, 32768)
    for name, heads in (("", SMOLLM2), ("_8b", LLAMA_8B)):
        if bench.has_time("prefill attention"):
            _measure_prefill(bench, f"prefill_attention{name}_8k", heads, native, 64 if bench.small else 8192)
    for rows in (4,) if bench.small else (8, 64):
        if bench.has_time("cascade"):
            _measure_cascade(bench, rows, (32,) if bench.small else (128, 256, 512, 1024, 2048, 8192))


def _measure_decode(bench: Bench, name: str, heads: Heads, stored: DeviceKVDtype, batch: int, context: int) -> None:
    made = paged([context] * batch, heads, stored, bench.device)
    q = queries(batch, heads, bench.dtype, bench.device)
    scale = heads.dim**-0.5
    seconds = bench.kernel_seconds(
        lambda: kernels.device.decode_attention(q, made.kv, made.table, made.lens, scale), 10
    )
    read = 2 * batch * context * heads.kv * heads.dim * made.kv.keys.element_size()
    bench.record.figure(f"{name}_us", seconds * 1e6)
    bench.record.figure(f"{name}_gb_per_s", read / seconds / 1e9)


def _measure_prefill(bench: Bench, name: str, heads: Heads, stored: DeviceKVDtype, tokens: int) -> None:
    made = paged([tokens], heads, stored, bench.device)
    q = queries(tokens, heads, bench.dtype, bench.device)
    start = torch.tensor([0, tokens], dtype=torch.int32, device=bench.device)
    scale = heads.dim**-0.5
    ours = bench.kernel_seconds(
        lambda: kernels.device.prefill_attention(q, made.kv, made.table, start, made.lens, tokens, scale), 3
    )
    # Of contiguous K and V: torch's has no gathering from pages to do.
    rows = q.transpose(0, 1)[None].contiguous()
    k, v = torch.randn(2, 1, heads.kv, tokens, heads.dim, device=bench.device).to(bench.dtype)
    theirs = bench.kernel_seconds(
        lambda: functional.scaled_dot_product_attention(rows, k, v, is_causal=True, scale=scale, enable_gqa=True), 3
    )
    work = 2 * heads.q * heads.dim * tokens * tokens  # half of it is seen
    bench.record.figure(f"{name}_tflops", work / ours / 1e12)
    bench.record.figure(f"{name}_x_torch", theirs / ours)


def _measure_cascade(bench: Bench, rows: int, prefixes: tuple[int, ...]) -> None:
    """The least prefix, in tokens, from which on reading it once is quicker."""
    heads, scale = SMOLLM2, SMOLLM2.dim**-0.5
    quicker: list[int] = []
    for prefix in prefixes:
        made = paged([prefix + _OWN_TOKENS] * rows, heads, kv_dtype(bench.dtype), bench.device, prefix // 16)
        q = queries(rows, heads, bench.dtype, bench.device)
        groups = one_group(rows, prefix // 16, bench.device)
        pages = (q, made.kv, made.table, made.lens)
        plain = bench.kernel_seconds(partial(kernels.device.decode_attention, *pages, scale))
        cascade = bench.kernel_seconds(partial(kernels.device.cascade_attention, *pages, groups, scale))
        bench.record.figure(f"cascade_{rows}x{prefix}_x_plain", plain / cascade)
        quicker = [*quicker, prefix] if cascade < plain else []
    if quicker:
        bench.record.figure(f"cascade_from_tokens_{rows}_rows", quicker[0])
    else:
        bench.record.note(f"cascade of {rows} rows: never quicker up to {prefixes[-1]} tokens")
