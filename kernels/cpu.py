"""The C++ kernels: each method checks shapes, dtypes and strides, then passes raw pointers to `csrc/`.

The checks are what stands between a wrong shape and a segmentation fault, so no pointer is taken without them.
"""

import ctypes

import torch
from torch import Tensor

from kernels.base import GROUP_SIZE, PAGE_SIZE, Int8Weight

_POINTER, _INT64, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_SIGNATURES = {
    "pack_int8": [_POINTER] * 4 + [_INT64] * 2 + [_INT],
    "linear_int8": [_POINTER] * 5 + [_INT64] * 3 + [_INT],
    "rms_norm": [_POINTER] * 4 + [_INT64] * 2 + [_FLOAT, _INT],
    "silu_mul": [_POINTER] * 2 + [_INT64] * 2 + [_INT],
    "rope_write_kv": [_POINTER] * 8 + [_INT64] * 6 + [_INT],
    "paged_attention": [_POINTER] * 7 + [_INT64] * 7 + [_FLOAT, _INT],
}


class CpuKernels:
    """The kernels of one loaded library, on `num_threads` cores."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, argtypes in _SIGNATURES.items():
            getattr(library, name).argtypes = argtypes
        self._library = library
        self._num_threads = 1

    def set_num_threads(self, n: int) -> None:
        assert n >= 1, n
        self._num_threads = n

    def pack_int8(self, weight: Tensor) -> Int8Weight:
        n, k = weight.shape
        blocks, groups = -(-n // 16), -(-k // GROUP_SIZE)
        data = torch.zeros(blocks, -(-k // 4), 16, 4, dtype=torch.int8)
        scale = torch.zeros(blocks, groups, 16)
        group_sums = torch.zeros(blocks, groups, 16, dtype=torch.int16)
        self._library.pack_int8(
            _pointer(weight, torch.float32, (n, k)),
            data.data_ptr(), scale.data_ptr(), group_sums.data_ptr(), n, k, self._num_threads,
        )  # fmt: skip
        return Int8Weight(data, scale, group_sums, n, k)

    def linear_int8(self, x: Tensor, w: Int8Weight) -> Tensor:
        m = x.shape[0]
        assert w.data.is_cpu, w.data.device
        y = torch.empty(m, w.n)
        self._library.linear_int8(
            _pointer(x, torch.float32, (m, w.k)),
            w.data.data_ptr(), w.scale.data_ptr(), w.group_sums.data_ptr(), y.data_ptr(),
            m, w.n, w.k, self._num_threads,
        )  # fmt: skip
        return y

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        t, c = x.shape
        y = torch.empty(t, c)
        self._library.rms_norm(
            _pointer(x, torch.float32, (t, c)), None, _pointer(weight, torch.float32, (c,)),
            y.data_ptr(), t, c, eps, self._num_threads,
        )  # fmt: skip
        return y

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        t, c = x.shape
        y = torch.empty(t, c)
        self._library.rms_norm(
            _pointer(x, torch.float32, (t, c)),
            _pointer(residual, torch.float32, (t, c)),
            _pointer(weight, torch.float32, (c,)),
            y.data_ptr(), t, c, eps, self._num_threads,
        )  # fmt: skip
        return y

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        t, width = gate_up.shape
        assert width % 2 == 0, width
        y = torch.empty(t, width // 2)
        self._library.silu_mul(
            _pointer(gate_up, torch.float32, (t, width)), y.data_ptr(), t, width // 2, self._num_threads
        )
        return y

    def rope_write_kv(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        slots: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        num_q_heads: int,
    ) -> Tensor:
        t, (pages, kv_heads, d, _), limit = qkv.shape[0], k_cache.shape, cos.shape[0]
        assert d % 2 == 0, d
        q = torch.empty(t, num_q_heads, d)
        status = self._library.rope_write_kv(
            _pointer(qkv, torch.float32, (t, (num_q_heads + 2 * kv_heads) * d)),
            _pointer(cos, torch.float32, (limit, d // 2)),
            _pointer(sin, torch.float32, (limit, d // 2)),
            _pointer(positions, torch.int32, (t,)),
            _pointer(slots, torch.int32, (t,)),
            _pointer(k_cache, torch.float32, (pages, kv_heads, d, PAGE_SIZE)),
            _pointer(v_cache, torch.float32, (pages, kv_heads, PAGE_SIZE, d)),
            q.data_ptr(), t, num_q_heads, kv_heads, d, limit, pages, self._num_threads,
        )  # fmt: skip
        if status:
            raise IndexError(("a position", "a slot")[status - 1] + " is out of range")
        return q

    def paged_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        page_table: Tensor,
        row_seq: Tensor,
        row_len: Tensor,
        scale: float,
    ) -> Tensor:
        (t, q_heads, d), (pages, kv_heads), (sequences, max_pages) = q.shape, k_cache.shape[:2], page_table.shape
        assert d % 16 == 0 and q_heads % kv_heads == 0, (d, q_heads, kv_heads)
        out = torch.empty(t, q_heads, d)
        status = self._library.paged_attention(
            _pointer(q, torch.float32, (t, q_heads, d)),
            _pointer(k_cache, torch.float32, (pages, kv_heads, d, PAGE_SIZE)),
            _pointer(v_cache, torch.float32, (pages, kv_heads, PAGE_SIZE, d)),
            _pointer(page_table, torch.int32, (sequences, max_pages)),
            _pointer(row_seq, torch.int32, (t,)),
            _pointer(row_len, torch.int32, (t,)),
            out.data_ptr(), t, sequences, max_pages, pages, kv_heads, q_heads // kv_heads, d, scale, self._num_threads,
        )  # fmt: skip
        if status:
            raise IndexError("a sequence, a length or a page id is out of range")
        return out


def _pointer(tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    assert tensor.dtype == dtype and tensor.shape == shape, (tensor.dtype, tensor.shape, dtype, shape)
    assert tensor.is_cpu and tensor.is_contiguous(), (tensor.device, tensor.stride())
    return tensor.data_ptr()
