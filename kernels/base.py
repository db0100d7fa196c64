"""What every implementation of the kernels offers: the contract, and the one data type that passes through it."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

PAGE_SIZE = 16  # tokens in a page of the KV cache
MAX_K = 1 << 16  # 127 * 255 * k must fit in int32


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """A weight [n, k] in int8, one scale an output row, in the order in which a vector dot product reads it.

    `n` rounds up to 16 and `k` to 4 with zeros; `scale` and `compensation` are as long as the padded `n`.
    """

    data: Tensor  # int8 [n/16, k/4, 16, 4]
    scale: Tensor  # fp32 [n]
    compensation: Tensor  # int32 [n]: -128 * the row's sum, since activations are stored as q + 128
    n: int
    k: int

    def __post_init__(self) -> None:
        # Once, here, and not at each call: a decode step makes some 120 of them, at 2 µs for these checks.
        blocks = (self.n + 15) // 16
        assert self.k <= MAX_K, self.k
        assert self.data.dtype == torch.int8 and self.data.shape == (blocks, (self.k + 3) // 4, 16, 4), self.data.shape
        assert self.scale.dtype == torch.float32 and self.scale.shape == (blocks * 16,), self.scale.shape
        assert self.compensation.dtype == torch.int32 and self.compensation.shape == (blocks * 16,)
        assert all(part.is_contiguous() for part in (self.data, self.scale, self.compensation))


class Kernels(Protocol):
    """One implementation; `kernels/__init__.py` documents each function."""

    def set_num_threads(self, n: int) -> None: ...

    def linear_int8(self, x: Tensor, w: Int8Weight) -> Tensor: ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def silu_mul(self, gate_up: Tensor) -> Tensor: ...

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
    ) -> Tensor: ...

    def paged_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        page_table: Tensor,
        row_seq: Tensor,
        row_len: Tensor,
        scale: float,
    ) -> Tensor: ...
