"""Every kernel on the device against plain torch in fp32, at shapes of real models."""

from itertools import product

import torch
from torch import Tensor

import kernels.device
import kernels.reference
from kernels.device import reference
from kernels.device.base import DeviceKVDtype, DevicePages, PrefixGroups
from loadtest.gpu.bench import Bench
from loadtest.gpu.paged import LLAMA_8B, SMOLLM2, Heads, paged, queries

_TOLERANCE = {torch.float32: 5e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
_EDGE = 1e-5
"""A point this near to a token's boundary may fall on either side of it: the device draws in single precision."""

Case = tuple[Heads, torch.dtype, DeviceKVDtype, tuple[int, ...]]
"""The windows last; 0 for none. Each case compiles a dozen kernels, so not all is combined with all."""

_CASES: tuple[Case, ...] = (
    (SMOLLM2, torch.bfloat16, "bf16", (0, 100)),
    (LLAMA_8B, torch.bfloat16, "bf16", (0, 100)),
    (SMOLLM2, torch.bfloat16, "fp8", (0,)),
    (LLAMA_8B, torch.bfloat16, "fp8", (0,)),
    (Heads(28, 4, 128), torch.bfloat16, "bf16", (0,)),
    (Heads(4, 4, 96), torch.bfloat16, "bf16", (0,)),
    (SMOLLM2, torch.float32, "fp32", (0,)),
    (SMOLLM2, torch.float16, "fp16", (0,)),
)
_SMALL: tuple[Case, ...] = ((Heads(3, 1, 16), torch.float32, "fp32", (0, 100)),)


def check_parity(bench: Bench) -> None:
    """A comparison that fails is a finding, and the next one goes on."""
    torch.manual_seed(0)
    for heads, dtype, stored, windows in _SMALL if bench.small else _CASES:
        if bench.has_time(f"parity of {heads} in {stored}"):
            if stored != "fp8":
                _check_dense(bench, heads, dtype)
            _check_paged(bench, heads, dtype, stored, windows)
    for width in (300,) if bench.small else (49152, 1001, 151936):
        if bench.has_time("parity of drawing"):
            _check_draw(bench, width)


def _check_dense(bench: Bench, heads: Heads, dtype: torch.dtype) -> None:
    rows, width = 37, heads.q * heads.dim
    label = f"{heads.q}/{heads.kv}/{heads.dim} {_short(dtype)}"

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=bench.device).to(dtype)

    x, residual, weight = random(rows, width), random(rows, width), random(width)
    _near(bench, f"rms_norm {label}", kernels.device.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    ours, theirs = residual.clone(), residual.clone()
    found = kernels.device.add_rms_norm(x, ours, weight, 1e-5)
    wanted = reference.add_rms_norm(x, theirs, weight, 1e-5)
    _near(bench, f"add_rms_norm {label}", found, wanted)
    _near(bench, f"add_rms_norm's residual {label}", ours, theirs)
    gate_up = random(rows, 2 * width)
    _near(bench, f"silu_mul {label}", kernels.device.silu_mul(gate_up), reference.silu_mul(gate_up))
    qkv, norms = random(rows, heads.width), (random(heads.dim), random(heads.dim))
    ours, theirs = qkv.clone(), qkv.clone()
    kernels.device.norm_heads(ours, *norms, 1e-6, heads.q, heads.kv)
    reference.norm_heads(theirs, *norms, 1e-6, heads.q, heads.kv)
    _near(bench, f"norm_heads {label}", ours, theirs)


def _check_paged(
    bench: Bench, heads: Heads, dtype: torch.dtype, stored: DeviceKVDtype, windows: tuple[int, ...]
) -> None:
    label = f"{heads.q}/{heads.kv}/{heads.dim} {stored}"
    scale = heads.dim**-0.5
    _check_rope(bench, heads, dtype, stored, label)
    lengths = [40, 17, 1] if bench.small else [0, 1, 16, 17, 700, 4001, 33, 1024]
    made = paged(lengths, heads, stored, bench.device)
    q = queries(len(lengths), heads, dtype, bench.device)
    for window in windows:
        arguments = (q, made.kv, made.table, made.lens, scale, window)
        found, wanted = kernels.device.decode_attention(*arguments), reference.decode_attention(*arguments)
        _near(bench, f"decode_attention window {window} {label}", found, wanted)

    counts = [40, 5, 1] if bench.small else [0, 1, 16, 3, 700, 129, 1, 1000]
    starts = torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32, device=bench.device)
    q = queries(sum(counts), heads, dtype, bench.device)
    for window in windows:
        chunk = (q, made.kv, made.table, starts, made.lens, max(counts), scale, window)
        found, wanted = kernels.device.prefill_attention(*chunk), reference.prefill_attention(*chunk)
        _near(bench, f"prefill_attention window {window} {label}", found, wanted)

    shared = 2 if bench.small else 40
    made = paged([shared * 16 + own for own in (1, 5, 30, 31)], heads, stored, bench.device, shared)
    q = queries(4, heads, dtype, bench.device)
    groups = one_group(4, shared, bench.device)
    found = kernels.device.cascade_attention(q, made.kv, made.table, made.lens, groups, scale)
    wanted = reference.decode_attention(q, made.kv, made.table, made.lens, scale)
    _near(bench, f"cascade_attention {label}", found, wanted)


def one_group(rows: int, pages: int, device: torch.device) -> PrefixGroups:
    def ints(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return PrefixGroups(ints(0, rows), ints(pages), ints(*[pages] * rows))


def _check_rope(bench: Bench, heads: Heads, dtype: torch.dtype, stored: DeviceKVDtype, label: str) -> None:
    rows, pages = 33, 8
    qkv = torch.randn(rows, heads.width, device=bench.device).to(dtype)
    angles = torch.randn(500, heads.dim // 2, device=bench.device)
    positions = torch.randint(500, (rows,), dtype=torch.int32, device=bench.device)
    slots = torch.randperm(pages * 16)[:rows].int().to(bench.device)
    slots[3] = -1
    caches, found = [], []
    for on in (kernels.device.rope_write_kv, reference.rope_write_kv):
        kv = DevicePages.allocate(stored, pages, heads.kv, heads.dim, bench.device)
        for part in (kv.keys, kv.values, kv.scales):
            if part is not None:
                part.view(torch.uint8).zero_()
        found.append(on(qkv, angles.cos(), angles.sin(), positions, slots, kv, heads.q))
        caches.append(kv)
    _near(bench, f"rope_write_kv's q {label}", found[0], found[1])
    for name, one, other in (
        ("keys", caches[0].keys, caches[1].keys),
        ("values", caches[0].values, caches[1].values),
    ):
        # In fp8 neighbours are an eighth apart, and rounding may fall on either of two.
        _near(bench, f"rope_write_kv's {name} {label}", one, other, 0.13 if stored == "fp8" else None)


def _check_draw(bench: Bench, width: int) -> None:
    """The token that the one that sorts would draw, or would at a point next to it."""
    rows = 32
    logits = torch.randn(rows, width) * torch.logspace(-1, 1, rows)[:, None]
    settings = {
        "temperature": torch.tensor([0.0, 0.7, 1.0, 1.5]).repeat(rows // 4),
        "top_k": torch.tensor([0, 0, 50, 1, 0, 1000, 0, 0], dtype=torch.int32).repeat(rows // 8),
        "top_p": torch.tensor([1.0, 0.95, 1.0, 0.5, 1.0, 0.999, 0.01, 1.0]).repeat(rows // 8),
        "min_p": torch.tensor([0.0, 0.0, 0.0, 0.05]).repeat(rows // 4),
    }
    points = torch.rand(rows, dtype=torch.float64)
    on_device = {name: value.to(bench.device) for name, value in settings.items()}
    for dtype in {torch.float32, bench.dtype}:
        given = logits.to(dtype)
        found = kernels.device.draw(given.to(bench.device), **on_device, points=points.to(bench.device)).cpu()
        right = torch.zeros(rows, dtype=torch.bool)
        for shift, share in product((0.0, -_EDGE, _EDGE), repeat=2):
            moved = settings | {"top_p": (settings["top_p"] + share * (settings["top_p"] < 1)).clamp(1e-6, 1)}
            near = kernels.reference.draw(given.float(), **moved, points=(points + shift).clamp(0, 1 - 1e-12))
            right |= near == found
        bench.record.check(f"draw {width} {_short(dtype)}", bool(right.all()), f"{int(right.sum())} of {rows} rows")
    greedy = kernels.device.argmax(logits.to(bench.device)).cpu()
    bench.record.check(f"argmax {width}", torch.equal(greedy, logits.argmax(-1)))


def _near(bench: Bench, name: str, found: Tensor, wanted: Tensor, tolerance: float | None = None) -> None:
    limit = _TOLERANCE[wanted.dtype] if tolerance is None else tolerance
    apart = (found.float() - wanted.float()).abs()
    worst = float((apart / (1 + wanted.float().abs())).max()) if apart.numel() else 0.0
    bench.record.check(name, worst <= limit and bool(found.float().isfinite().all()), f"worst {worst:.1e} of {limit}")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
