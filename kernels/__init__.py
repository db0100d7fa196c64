"""The compute kernels of a replica, as flat functions on torch CPU tensors.

Activations are fp32 and contiguous throughout. The implementation is chosen once, at first use: the C++ of `csrc/` if
it can be built, else plain torch, unless `RYOKAN_KERNELS` (auto, cpu or reference) or `use` says otherwise. A wrong
shape, dtype or layout is an AssertionError.
"""

import logging
import os

from torch import Tensor

from kernels import reference
from kernels.base import PAGE_SIZE, Int8Weight, Kernels
from kernels.build import BuildError, load
from kernels.cpu import CpuKernels

__all__ = [
    "PAGE_SIZE",
    "BuildError",
    "Int8Weight",
    "add_rms_norm",
    "linear_int8",
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


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension; x [T, C], weight [C]."""
    return _chosen().rms_norm(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual += x, in place; returns rms_norm(residual). x and residual [T, C], weight [C]."""
    return _chosen().add_rms_norm(x, residual, weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(first half) * second half of each row: [T, 2F] to [T, F]."""
    return _chosen().silu_mul(gate_up)


def rope_write_kv(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    num_q_heads: int,
) -> Tensor:
    """Rotates q and k of qkv [T, (Hq + 2 Hkv) D], writes k and v to the cache, returns q [T, Hq, D].

    cos and sin [P, D/2] are looked up at positions [T]; slots [T] are page * 16 + offset, or -1 for a token that isn't
    written (both int32). k_cache is [pages, Hkv, D, 16], v_cache [pages, Hkv, 16, D]. Raises IndexError for a position
    or slot out of range, and has written nothing then.
    """
    return _chosen().rope_write_kv(qkv, cos, sin, positions, slots, k_cache, v_cache, num_q_heads)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    row_seq: Tensor,
    row_len: Tensor,
    scale: float,
) -> Tensor:
    """softmax(scale q K) V of each query row over the first tokens of its sequence: [T, Hq, D].

    Row t of q [T, Hq, D] sees the first row_len[t] tokens of sequence row_seq[t] (int32 [T]), which lie in the pages
    page_table[row_seq[t]] (int32 [S, max_pages]); length 0 gives zeros. Caches as for rope_write_kv; D is a multiple
    of 16. Keep rows with a common prefix adjacent: its pages are then read once for up to 16 of them. In C++ a row's
    bits don't depend on the other rows. Raises IndexError for a sequence, length or page id out of range.
    """
    return _chosen().paged_attention(q, k_cache, v_cache, page_table, row_seq, row_len, scale)


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
