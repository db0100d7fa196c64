"""The C++ kernels: each method checks shapes, dtypes and strides, then passes raw pointers to `csrc/`.

The checks are what stands between a wrong shape and a segmentation fault, so no pointer is taken without them.
"""

import ctypes

import torch
from torch import Tensor

from kernels.base import GROUP_SIZE, Int8Weight, KVPages

_POINTER, _INT64, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_SIGNATURES = {
    "pack_int8": [_POINTER] * 3 + [_INT64] * 2 + [_INT],
    "linear_int8": [_POINTER] * 4 + [_INT64] * 3 + [_INT],
    "mlp_int8": [_POINTER] * 6 + [_INT64] * 4 + [_INT],
    "rms_norm": [_POINTER] * 4 + [_INT64] * 2 + [_FLOAT, _INT],
    "silu_mul": [_POINTER] * 2 + [_INT64] * 2 + [_INT],
    "draw": [_POINTER] * 7 + [_INT64] * 2 + [_INT],
    "rope_write_kv": [_POINTER] * 8 + [_INT64] * 6 + [_INT],
    "rope_write_kv_int8": [_POINTER] * 9 + [_INT64] * 6 + [_INT],
    "paged_attention": [_POINTER] * 7 + [_INT64] * 8 + [_FLOAT, _INT],
    "paged_attention_int8": [_POINTER] * 8 + [_INT64] * 8 + [_FLOAT, _INT],
}


class CpuKernels:
    """The kernels of one loaded library, on `num_threads` cores."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, argtypes in _SIGNATURES.items():
            getattr(library, name).argtypes = argtypes
        self._library = library
        self._rope_write_kv = {"fp32": library.rope_write_kv, "int8": library.rope_write_kv_int8}
        self._paged_attention = {"fp32": library.paged_attention, "int8": library.paged_attention_int8}
        self._num_threads = 1

    def set_num_threads(self, n: int) -> None:
        assert n >= 1, n
        self._num_threads = n

    def pack_int8(self, weight: Tensor) -> Int8Weight:
        n, k = weight.shape
        blocks, groups = -(-n // 16), -(-k // GROUP_SIZE)
        data = torch.full((blocks, groups * GROUP_SIZE // 4, 16, 4), 128, dtype=torch.uint8)
        scale = torch.zeros(blocks, groups, 16)
        self._library.pack_int8(
            _pointer(weight, torch.float32, (n, k)), data.data_ptr(), scale.data_ptr(), n, k, self._num_threads
        )
        return Int8Weight(data, scale, n, k)

    def linear_int8(self, x: Tensor, w: Int8Weight) -> Tensor:
        m = x.shape[0]
        y = torch.empty(m, w.n)
        self._library.linear_int8(
            _pointer(x, torch.float32, (m, w.k)),
            w.data.data_ptr(), w.scale.data_ptr(), y.data_ptr(), m, w.n, w.k, self._num_threads,
        )  # fmt: skip
        return y

    def mlp_int8(self, x: Tensor, gate_up: Int8Weight, down: Int8Weight) -> Tensor:
        m = x.shape[0]
        assert gate_up.n == 2 * down.k, (gate_up.n, down.k)
        y = torch.empty(m, down.n)
        self._library.mlp_int8(
            _pointer(x, torch.float32, (m, gate_up.k)),
            gate_up.data.data_ptr(), gate_up.scale.data_ptr(), down.data.data_ptr(), down.scale.data_ptr(),
            y.data_ptr(), m, gate_up.k, down.k, down.n, self._num_threads,
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

    def draw(
        self,
        logits: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
        points: Tensor,
    ) -> Tensor:
        rows, n = logits.shape
        tokens = torch.empty(rows, dtype=torch.int64)
        self._library.draw(
            _pointer(logits, torch.float32, (rows, n)),
            _pointer(temperature, torch.float32, (rows,)),
            _pointer(top_k, torch.int32, (rows,)),
            _pointer(top_p, torch.float32, (rows,)),
            _pointer(min_p, torch.float32, (rows,)),
            _pointer(points, torch.float64, (rows,)),
            tokens.data_ptr(), rows, n, self._num_threads,
        )  # fmt: skip
        return tokens

    def rope_write_kv(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        slots: Tensor,
        kv: KVPages,
        num_q_heads: int,
    ) -> Tensor:
        t, kv_heads, d, limit = qkv.shape[0], kv.kv_heads, kv.head_dim, cos.shape[0]
        assert d % 2 == 0, d
        q = torch.empty(t, num_q_heads, d)
        status = self._rope_write_kv[kv.dtype](
            _pointer(qkv, torch.float32, (t, (num_q_heads + 2 * kv_heads) * d)),
            _pointer(cos, torch.float32, (limit, d // 2)),
            _pointer(sin, torch.float32, (limit, d // 2)),
            _pointer(positions, torch.int32, (t,)),
            _pointer(slots, torch.int32, (t,)),
            *_cache_pointers(kv), q.data_ptr(), t, num_q_heads, kv_heads, d, limit, kv.num_pages, self._num_threads,
        )  # fmt: skip
        if status:
            raise IndexError(("a position", "a slot")[status - 1] + " is out of range")
        return q

    def paged_attention(
        self,
        q: Tensor,
        kv: KVPages,
        page_table: Tensor,
        row_seq: Tensor,
        row_len: Tensor,
        scale: float,
        window: int = 0,
    ) -> Tensor:
        (t, q_heads, d), kv_heads, (sequences, max_pages) = q.shape, kv.kv_heads, page_table.shape
        assert d % 16 == 0 and d == kv.head_dim and q_heads % kv_heads == 0, (d, kv.head_dim, q_heads, kv_heads)
        assert window >= 0, window
        out = torch.empty(t, q_heads, d)
        status = self._paged_attention[kv.dtype](
            _pointer(q, torch.float32, (t, q_heads, d)),
            *_cache_pointers(kv),
            _pointer(page_table, torch.int32, (sequences, max_pages)),
            _pointer(row_seq, torch.int32, (t,)),
            _pointer(row_len, torch.int32, (t,)),
            out.data_ptr(), t, sequences, max_pages, kv.num_pages, kv_heads, q_heads // kv_heads, d,
            window, scale, self._num_threads,
        )  # fmt: skip
        if status:
            raise IndexError("a sequence, a length or a page id is out of range")
        return out


def _cache_pointers(kv: KVPages) -> tuple[int, ...]:
    # Shapes and dtypes were checked when it was made.
    assert kv.keys.is_cpu, kv.keys.device
    both = kv.keys.data_ptr(), kv.values.data_ptr()
    return both if kv.scales is None else (*both, kv.scales.data_ptr())


def _pointer(tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    assert tensor.dtype == dtype and tensor.shape == shape, (tensor.dtype, tensor.shape, dtype, shape)
    assert tensor.is_cpu and tensor.is_contiguous(), (tensor.device, tensor.stride())
    return tensor.data_ptr()
