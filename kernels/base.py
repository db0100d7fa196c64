"""What every implementation of the kernels offers: the contract, and the one data type that passes through it."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

PAGE_SIZE = 16  # tokens in a page of the KV cache
GROUP_SIZE = 64  # columns of a row that share a scale in int8; a row's last group may be shorter


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """A weight [n, k] in int8, one scale a row and group of columns, in the order in which a vector product reads it.

    `n` rounds up to 16 and `k` to 4 with zeros. `group_sums` is the sum of each row over each group: it takes out again
    what comes of activations being stored as q + 128.
    """

    data: Tensor  # int8 [n/16, k/4, 16, 4]
    scale: Tensor  # fp32 [n/16, groups, 16]
    group_sums: Tensor  # int16 [n/16, groups, 16]
    n: int
    k: int

    def __post_init__(self) -> None:
        # Once, here, and not at each call: a decode step makes some 120 of them, at 2 µs for these checks.
        blocks = (self.n + 15) // 16
        assert self.data.dtype == torch.int8 and self.data.shape == (blocks, (self.k + 3) // 4, 16, 4), self.data.shape
        groups = (self.k + GROUP_SIZE - 1) // GROUP_SIZE
        assert self.scale.dtype == torch.float32 and self.scale.shape == (blocks, groups, 16), self.scale.shape
        assert self.group_sums.dtype == torch.int16 and self.group_sums.shape == (blocks, groups, 16)
        assert all(part.is_contiguous() for part in (self.data, self.scale, self.group_sums))


class Kernels(Protocol):
    """One implementation; `kernels/__init__.py` documents each function."""

    def set_num_threads(self, n: int) -> None: ...

    def pack_int8(self, weight: Tensor) -> Int8Weight: ...

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
