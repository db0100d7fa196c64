"""Times each C++ kernel against the obvious torch formulation of it: `python -m kernels.bench`.

Both sides run in turn, on one core, and medians are compared; a figure alone says little on a shared machine. The last
line is one JSON object.
"""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

import kernels
from kernels import reference
from kernels.base import Kernels, KVDtype, KVPages
from kernels.build import load
from kernels.cpu import CpuKernels

ROUNDS = 15
HIDDEN, FFN, Q_HEADS, KV_HEADS, HEAD = 576, 1536, 9, 3, 64  # SmolLM2-135M
PAGES = 1200

Run = Callable[[], object]


@dataclass(frozen=True)
class Row:
    name: str
    ours: Run
    theirs: Run
    baseline: str
    work: float  # per call, in the unit's billions
    unit: str


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    cpu = CpuKernels(load())
    figures: dict[str, float] = {}
    print(f"{'kernel':<38}{'C++':>10}{'':>15}{'torch':>12}  ratio")
    rows = [linear_rows, mlp_rows, elementwise_rows, draw_rows, attention_rows, int8_attention_rows]
    for row in [row for rows_of in rows for row in rows_of(cpu)]:
        ours, theirs = interleaved(row.ours, row.theirs)
        rate = row.work / ours
        print(
            f"{row.name:<38}{ours * 1e6:>7.0f} µs{rate:>8.1f} {row.unit:<6}{theirs * 1e6:>9.0f} µs"
            f"{theirs / ours:>7.1f}  ({row.baseline})"
        )
        figures |= {f"{row.name}_us": ours * 1e6, f"{row.name}_x_torch": theirs / ours}
        figures[f"{row.name}_{row.unit.lower().replace('/', '')}"] = rate
    figures["decode12_shared_over_unshared"] = figures["decode12_shared_us"] / figures["decode12_unshared_us"]
    rounded = {name: float(f"{value:.4g}") for name, value in figures.items()}
    print(json.dumps({"bench": "kernels", "machine": machine(), "versions": versions(), "figures": rounded}))


def interleaved(*runs: Run) -> list[float]:
    """Median seconds of each, run in turn; quick ones are repeated to last for half a millisecond."""
    repeats = []
    for run in runs:
        run()
        repeats.append(max(1, int(5e-4 / seconds(run, 1))))
    samples: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for run, repeat, sample in zip(runs, repeats, samples, strict=True):
            sample.append(seconds(run, repeat))
    return [statistics.median(sample) for sample in samples]


def seconds(run: Run, repeat: int) -> float:
    start = time.perf_counter()
    for _ in range(repeat):
        run()
    return (time.perf_counter() - start) / repeat


def linear_rows(cpu: Kernels) -> list[Row]:
    rows = []
    n, k = 2 * FFN, HIDDEN
    weight = torch.randn(n, k)
    packed = kernels.pack_int8(weight)
    for m in (1, 8, 32, 256):
        x = torch.randn(m, k)
        rows.append(
            Row(
                f"linear_int8_{m}x{n}x{k}",
                partial(cpu.linear_int8, x, packed),
                partial(functional.linear, x, weight),
                "fp32",
                2 * m * n * k / 1e9,
                "GOP/s",
            )
        )
    rows.append(
        Row(
            f"pack_int8_{n}x{k}",
            partial(cpu.pack_int8, weight),
            partial(reference.pack_int8, weight),
            "reference",
            4 * n * k / 1e9,
            "GB/s",
        )
    )
    head = torch.randn(49152, k)  # 28 MB in int8, 113 MB in fp32: neither stays in a cache
    packed_head = kernels.pack_int8(head)
    for m in (1, 8, 32):
        x = torch.randn(m, k)
        rows.append(
            Row(
                f"linear_int8_{m}x49152x{k}",
                partial(cpu.linear_int8, x, packed_head),
                partial(functional.linear, x, head),
                "fp32",
                49152 * k / 1e9,
                "GB/s",
            )
        )
    return rows


def mlp_rows(cpu: Kernels) -> list[Row]:
    gate_up, down = kernels.pack_int8(torch.randn(2 * FFN, HIDDEN)), kernels.pack_int8(torch.randn(HIDDEN, FFN))

    def parts(x: Tensor) -> Tensor:
        return cpu.linear_int8(cpu.silu_mul(cpu.linear_int8(x, gate_up)), down)

    return [
        Row(
            f"mlp_int8_{m}x{HIDDEN}x{FFN}",
            partial(cpu.mlp_int8, x, gate_up, down),
            partial(parts, x),
            "three calls",
            6 * m * HIDDEN * FFN / 1e9,
            "GOP/s",
        )
        for m, x in ((m, torch.randn(m, HIDDEN)) for m in (1, 32, 256))
    ]


def draw_rows(cpu: Kernels) -> list[Row]:
    rows, v = 32, 49152
    none, ones = torch.zeros(rows, dtype=torch.int32), torch.ones(rows)
    points = torch.rand(rows, dtype=torch.float64)

    def row(name: str, spread: float, temperature: float, top_p: float) -> Row:
        arguments = (spread * torch.randn(rows, v), temperature * ones, none, top_p * ones, 0 * ones, points)
        return Row(
            f"draw_{name}_{rows}x{v}",
            partial(cpu.draw, *arguments),
            partial(reference.draw, *arguments),
            "reference",
            4 * rows * v / 1e9,
            "GB/s",
        )

    return [
        row("greedy", 1, 0, 1),
        row("all", 1, 1, 1),
        row("top_p_flat", 0.01, 1, 0.95),
        row("top_p", 1, 1, 0.95),
        row("top_p_peaked", 4, 1, 0.95),
    ]


def elementwise_rows(cpu: Kernels) -> list[Row]:
    t = 64
    x, residual, weight = torch.randn(t, HIDDEN), torch.randn(t, HIDDEN), torch.randn(HIDDEN)
    gate_up = torch.randn(t, 2 * FFN)
    width = (Q_HEADS + 2 * KV_HEADS) * HEAD
    kv, int8 = cache(), cache("int8")
    rope = (torch.randn(t, width), torch.randn(2048, HEAD // 2), torch.randn(2048, HEAD // 2))
    numbers = torch.arange(t, dtype=torch.int32)
    still = torch.zeros_like(x)  # so that the residual doesn't grow from call to call
    norm_bytes, silu_bytes = 8 * t * HIDDEN / 1e9, 12 * t * FFN / 1e9

    def rope_on(on: Kernels, kv: KVPages = kv) -> Run:
        return lambda: on.rope_write_kv(*rope, numbers, numbers, kv, Q_HEADS)

    return [
        Row(
            f"rms_norm_{t}x{HIDDEN}",
            lambda: cpu.rms_norm(x, weight, 1e-5),
            lambda: functional.rms_norm(x, (HIDDEN,), weight, 1e-5),
            "functional.rms_norm",
            norm_bytes,
            "GB/s",
        ),
        Row(
            f"add_rms_norm_{t}x{HIDDEN}",
            lambda: cpu.add_rms_norm(still, residual, weight, 1e-5),
            lambda: functional.rms_norm(residual.add_(still), (HIDDEN,), weight, 1e-5),
            "add_, functional.rms_norm",
            2 * norm_bytes,
            "GB/s",
        ),
        Row(
            f"silu_mul_{t}x{FFN}",
            lambda: cpu.silu_mul(gate_up),
            lambda: reference.silu_mul(gate_up),
            "silu * up",
            silu_bytes,
            "GB/s",
        ),
        Row(f"rope_write_kv_{t}", rope_on(cpu), rope_on(reference), "reference", 8 * t * width / 1e9, "GB/s"),
        Row(f"int8_rope_write_kv_{t}", rope_on(cpu, int8), rope_on(cpu), "fp32 KV", 8 * t * width / 1e9, "GB/s"),
    ]


def attention_rows(cpu: Kernels) -> list[Row]:
    kv = cache()
    pages = torch.randperm(PAGES).int()
    scale = HEAD**-0.5

    def on(which: Kernels, q: Tensor, table: Tensor, row_seq: Tensor, row_len: Tensor) -> Run:
        return lambda: which.paged_attention(q, kv, table, row_seq, row_len, scale)

    rows = []
    for tokens, before in ((512, 0), (256, 1024)):
        length = torch.arange(before, before + tokens, dtype=torch.int32) + 1
        prefill = (
            torch.randn(tokens, Q_HEADS, HEAD),
            pages[None, : (tokens + before) // 16].contiguous(),
            torch.zeros(tokens, dtype=torch.int32),
            length,
        )
        q = prefill[0].transpose(0, 1)[None].contiguous()
        k, v = torch.randn(2, 1, KV_HEADS, tokens + before, HEAD)
        seen = torch.arange(tokens + before) < length[:, None]

        # The baseline has contiguous K and V, so it is spared the gathering that pages would cost it.
        def sdpa(q: Tensor = q, k: Tensor = k, v: Tensor = v, seen: Tensor = seen) -> Tensor:
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)

        work = 4 * Q_HEADS * HEAD * int(length.sum()) / 1e9
        rows.append(Row(f"prefill_{tokens}_after_{before}", on(cpu, *prefill), sdpa, "sdpa", work, "GFLOP/s"))

    # 12 sequences of 1,100 tokens; shared: their first 992 (62 pages) are the same.
    unshared = pages[: 12 * 69].view(12, 69)
    shared = unshared.clone()
    shared[:, :62] = shared[0, :62]
    q, row_seq, row_len = torch.randn(12, Q_HEADS, HEAD), torch.arange(12).int(), torch.full((12,), 1100).int()
    # Counted as if each sequence read its own: "shared" exceeds the memory's rate by what it spares.
    read = 2 * 4 * 12 * 1100 * KV_HEADS * HEAD / 1e9
    for name, table in (("unshared", unshared), ("shared", shared)):
        args = (q, table, row_seq, row_len)
        rows.append(Row(f"decode12_{name}", on(cpu, *args), on(reference, *args), "reference", read, "GB/s"))
    return rows


def int8_attention_rows(cpu: Kernels) -> list[Row]:
    """int8 against fp32 KV, at the sizes of the running example."""
    fp32, int8 = cache("fp32"), cache("int8")
    pages = torch.randperm(PAGES).int()

    def row(name: str, table: Tensor, row_seq: Tensor, row_len: Tensor) -> Row:
        q = torch.randn(len(row_seq), Q_HEADS, HEAD)
        args = (table.contiguous(), row_seq.int(), row_len.int(), HEAD**-0.5)
        work = 4 * Q_HEADS * HEAD * int(row_len.sum()) / 1e9
        ours, theirs = partial(cpu.paged_attention, q, int8, *args), partial(cpu.paged_attention, q, fp32, *args)
        return Row(f"int8_kv_{name}", ours, theirs, "fp32 KV", work, "GOP/s")

    rows = []
    for before in (0, 256, 512, 768):
        chunk = torch.arange(before, before + 256) + 1
        rows.append(row(f"prefill_256_after_{before}", pages[None, :64], torch.zeros(256), chunk))
    shared = pages[: 50 * 15].view(50, 15).clone()
    shared[:, :13] = shared[0, :13]
    rows.append(row("decode1_1000", pages[None, :63], torch.zeros(1), torch.full((1,), 1000)))
    rows.append(row("decode32_220", pages[: 32 * 14].view(32, 14), torch.arange(32), torch.full((32,), 220)))
    rows.append(row("decode50_208_shared_25_own", shared, torch.arange(50), torch.full((50,), 233)))
    return rows


def cache(dtype: KVDtype = "fp32") -> KVPages:
    """Full, of gaussian K and V."""
    kv, tokens = KVPages.allocate(dtype, PAGES, KV_HEADS, HEAD), PAGES * 16
    still = torch.ones(1, HEAD // 2), torch.zeros(1, HEAD // 2), torch.zeros(tokens, dtype=torch.int32)
    qkv = torch.randn(tokens, 2 * KV_HEADS * HEAD)
    reference.rope_write_kv(qkv, *still, torch.arange(tokens, dtype=torch.int32), kv, 0)
    return kv


def machine() -> dict[str, object]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
    }


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": str(torch.__version__)}


if __name__ == "__main__":
    main()
