"""The compute kernels of a replica, as flat functions on torch CPU tensors.

Activations are fp32 and contiguous throughout. The implementation is chosen once, at first use: the C++ of `csrc/` if
it can be built, else plain torch, unless `RYOKAN_KERNELS` (auto, cpu or reference) or `use` says otherwise. A wrong
shape, dtype or layout is an AssertionError.
"""

import logging
import os

from torch import Tensor

from kernels import reference
from kernels.base import INT8_LAYOUT, PAGE_SIZE, Int8Weight, Kernels, KVDtype, KVPages, kv_page_bytes
from kernels.build import load
from kernels.cpu import CpuKernels
from native.build import BuildError

__all__ = [
    "INT8_LAYOUT",
    "PAGE_SIZE",
    "BuildError",
    "Int8Weight",
    "KVDtype",
    "KVPages",
    "add_rms_norm",
    "draw",
    "kv_page_bytes",
    "linear_int8",
    "mlp_int8",
    "pack_int8",
    "paged_attention",
    "rms_norm",
    "rope_write_kv",
    "set_num_threads",
    "silu_mul",
    "use",
]

log = logging.getLogger(__name__)

_implementation: Kernels | None = None


def use(name: str) -> None:
    """Takes `cpu`, `reference` or `auto` (cpu, else reference with a warning) from now on.

    Raises BuildError where `cpu` can't be built, ValueError for any other name.
    """
    global _implementation
    _implementation = _create(name)


def set_num_threads(n: int) -> None:
    """Sets how many cores one call may use: 1 at first for `cpu`; for `reference` these are torch's own threads."""
    _chosen().set_num_threads(n)


def pack_int8(weight: Tensor) -> Int8Weight:
    """Quantises weight [N, K] to int8, symmetric, with one scale (absmax / 127) for each 64 columns of a row.

    Every implementation packs the same bits, so any of them can use the result.
    """
    return _chosen().pack_int8(weight)


def linear_int8(x: Tensor, w: Int8Weight) -> Tensor:
    """x [M, K] times the transposed weight: [M, N].

    x is quantised as the weight is (absmax / 127 of 64 columns of a row, to nearest even). The sums over 64 columns are
    exact, and are scaled and added in ascending order. So a row's result never depends on the other rows, and C++ and
    plain torch agree in every bit. About 1 % (relative Frobenius error) from the fp32 product on gaussian data.
    """
    return _chosen().linear_int8(x, w)


def mlp_int8(x: Tensor, gate_up: Int8Weight, down: Int8Weight) -> Tensor:
    """linear_int8(silu_mul(linear_int8(x, gate_up)), down), with the same bits, in one call: x [M, K] to [M, N]."""
    return _chosen().mlp_int8(x, gate_up, down)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension; x [T, C], weight [C]."""
    return _chosen().rms_norm(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual += x, in place; returns rms_norm(residual). x and residual [T, C], weight [C]."""
    return _chosen().add_rms_norm(x, residual, weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(first half) * second half of each row: [T, 2F] to [T, F]."""
    return _chosen().silu_mul(gate_up)


def draw(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    points: Tensor,
) -> Tensor:
    """A token of each row of logits [R, V]: int64 [R]; top_k int32, points float64 in [0, 1), the others fp32, all [R].

    Temperature 0 takes the likeliest, of equals the first. Else softmax(logits / temperature) is cut in the order of
    logit, then id: to the first top_k (0: all), to those at least min_p times as likely as the first, and to the fewest
    that make up top_p of what is left. Its cumulative sum is inverted at the point: in that order, or by id where
    nothing is cut. A logit of -inf is never drawn. -1 where a row has a NaN, +inf or only -inf.
    """
    return _chosen().draw(logits, temperature, top_k, top_p, min_p, points)


def rope_write_kv(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    kv: KVPages,
    num_q_heads: int,
) -> Tensor:
    """Rotates q and k of qkv [T, (Hq + 2 Hkv) D], writes k and v to the cache, returns q [T, Hq, D].

    cos and sin [P, D/2] are looked up at positions [T]; slots [T] are page * 16 + offset, or -1 for a token that isn't
    written (both int32). Raises IndexError for a position or slot out of range, and has written nothing then.
    """
    return _chosen().rope_write_kv(qkv, cos, sin, positions, slots, kv, num_q_heads)


def paged_attention(
    q: Tensor,
    kv: KVPages,
    page_table: Tensor,
    row_seq: Tensor,
    row_len: Tensor,
    scale: float,
    window: int = 0,
) -> Tensor:
    """softmax(scale q K) V of each query row over tokens of its sequence: [T, Hq, D].

    Row t of q [T, Hq, D] sees the first n = row_len[t] tokens of sequence row_seq[t] (int32 [T]), or with a window only
    [max(0, n - window), n) of them; length 0 gives zeros. They lie in the pages page_table[row_seq[t]] (int32
    [S, max_pages]); those before the window aren't read. D is a multiple of 16. Keep rows with a common prefix
    adjacent: its pages are then read once for up to 16 of them. In C++ a row's bits don't depend on the other rows.
    Raises IndexError for a sequence, length or page id out of range.
    """
    return _chosen().paged_attention(q, kv, page_table, row_seq, row_len, scale, window)


def _chosen() -> Kernels:
    if _implementation is None:
        use(os.environ.get("RYOKAN_KERNELS") or "auto")
    assert _implementation is not None
    return _implementation


def _create(name: str) -> Kernels:
    if name == "reference":
        return reference
    if name not in ("auto", "cpu"):
        raise ValueError(f"no kernels named {name!r}: auto, cpu or reference")
    try:
        return CpuKernels(load())
    except BuildError as error:
        if name == "cpu":
            raise
        log.warning("kernels run in plain torch, several times slower: the C++ ones can't be built (%s)", error)
        return reference
