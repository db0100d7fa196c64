"""The compute kernels of a replica on an accelerator, as flat functions on tensors of one device, fp32, fp16 or bf16.

Indices are int32 and nothing in them is checked: a look at them would make the host wait for the device. Shapes, dtypes
and layouts are checked, by AssertionError. The implementation is chosen once, at first use: Triton's where it can run,
else plain torch, unless `use` says otherwise. Nothing here waits for the device, and nothing is read by the host, but
in plain torch.
"""

import os
from types import ModuleType
from typing import Literal

import torch
from torch import Tensor

from kernels.device import prefill_flash, reference
from kernels.device.base import DTYPES, DeviceKVDtype, DevicePages, PrefixGroups, device_page_bytes

__all__ = [
    "DTYPES",
    "DeviceKVDtype",
    "DevicePages",
    "PrefixGroups",
    "add_rms_norm",
    "argmax",
    "cascade_attention",
    "decode_attention",
    "device_page_bytes",
    "draw",
    "norm_heads",
    "prefill_attention",
    "rms_norm",
    "rope_write_kv",
    "silu_mul",
    "use",
]

_implementation: ModuleType | None = None
_flash: dict[tuple[int, int, int, torch.dtype], bool] = {}


def use(name: Literal["auto", "triton", "torch"]) -> str:
    """Takes them from now on, and says which they are. Raises ImportError where Triton is wanted and missing."""
    global _implementation
    if name == "torch" or (name == "auto" and not _triton_runs()):
        _implementation = reference
        return "torch"
    from kernels.device import triton_kernels

    _implementation = triton_kernels
    return "triton"


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension; x [T, C], weight [C]."""
    found: Tensor = _chosen().rms_norm(x, weight, eps)
    return found


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual += x, in place, rounded to its dtype; returns rms_norm(residual). x and residual [T, C], weight [C]."""
    found: Tensor = _chosen().add_rms_norm(x, residual, weight, eps)
    return found


def norm_heads(qkv: Tensor, q_norm: Tensor, k_norm: Tensor, eps: float, num_q_heads: int, num_kv_heads: int) -> None:
    """RMS norm of each head of q and k in qkv [T, (Hq + 2 Hkv) D], in place; weights [D]."""
    _chosen().norm_heads(qkv, q_norm, k_norm, eps, num_q_heads, num_kv_heads)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(first half) * second half of each row: [T, 2F] to [T, F]."""
    found: Tensor = _chosen().silu_mul(gate_up)
    return found


def rope_write_kv(
    qkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, slots: Tensor, kv: DevicePages, num_q_heads: int
) -> Tensor:
    """Rotates q and k of qkv [T, (Hq + 2 Hkv) D], writes k and v to the cache, returns q [T, Hq, D].

    cos and sin, fp32 [P, D/2], are looked up at positions [T]; slots [T] are page * 16 + offset, or -1 for a token that
    isn't written.
    """
    found: Tensor = _chosen().rope_write_kv(qkv, cos, sin, positions, slots, kv, num_q_heads)
    return found


def decode_attention(
    q: Tensor, kv: DevicePages, page_table: Tensor, lens: Tensor, scale: float, window: int = 0
) -> Tensor:
    """softmax(scale q K) V of one query row a sequence, q [S, Hq, D], over its first lens[S] tokens, or the last
    `window` of them, in the pages page_table [S, P]. Length 0 gives zeros: a padding row."""
    found: Tensor = _chosen().decode_attention(q, kv, page_table, lens, scale, window)
    return found


def prefill_attention(
    q: Tensor,
    kv: DevicePages,
    page_table: Tensor,
    query_start: Tensor,
    lens: Tensor,
    max_query: int,
    scale: float,
    window: int = 0,
) -> Tensor:
    """Causal attention of ragged chunks: rows [query_start[s], query_start[s + 1]) of q [T, Hq, D] are the last tokens
    of sequence s's lens[s], whose K and V are written already. `max_query`: the longest chunk's rows. Through torch's
    own flash attention where that works and what it needs of memory is little."""
    chosen = prefill_flash if _flash_works(q, kv) and prefill_flash.fits(kv, page_table, q.dtype) else _chosen()
    found: Tensor = chosen.prefill_attention(q, kv, page_table, query_start, lens, max_query, scale, window)
    return found


def cascade_attention(
    q: Tensor, kv: DevicePages, page_table: Tensor, lens: Tensor, groups: PrefixGroups, scale: float
) -> Tensor:
    """decode_attention, but for rounding, with each group's common pages read once for all of its rows."""
    found: Tensor = _chosen().cascade_attention(q, kv, page_table, lens, groups, scale)
    return found


def argmax(logits: Tensor) -> Tensor:
    """The likeliest token of each row of logits [R, V], of equals the first: int64 [R]."""
    found: Tensor = _chosen().argmax(logits)
    return found


def draw(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, points: Tensor) -> Tensor:
    """As kernels.draw, in single precision; -1 for a row with NaN, +inf or nothing but -inf, where that one raises."""
    found: Tensor = _chosen().draw(logits, temperature, top_k, top_p, min_p, points)
    return found


def _chosen() -> ModuleType:
    if _implementation is None:
        use("auto")
    assert _implementation is not None
    return _implementation


def _flash_works(q: Tensor, kv: DevicePages) -> bool:
    """Asked once for each shape, at its first prefill: that of the warm-up."""
    if _chosen() is reference or not q.is_cuda:
        return False
    shape = q.shape[1], kv.kv_heads, kv.head_dim, q.dtype
    if shape not in _flash:
        _flash[shape] = prefill_flash.works(*shape, q.device)
    return _flash[shape]


def _triton_runs() -> bool:
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        return False
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True
