"""What every implementation of the kernels offers: the contract, and the data types that pass through it."""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

PAGE_SIZE = 16  # tokens in a page of the KV cache
INT8_LAYOUT = 2  # goes up whenever pack_int8's bits change: packed weights are kept in files
GROUP_SIZE = 64  # columns of a row that share a scale in int8; a row's last group may be shorter

SPAN = 8  # pages whose attention weights are rounded relative to the largest of them, with int8 KV
MAX_HEAD_DIM = 512

KVDtype = Literal["fp32", "int8"]


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """A weight [n, k] in int8, one scale a row and group of columns, in the order in which a vector product reads it.

    `n` rounds up to 16 and `k` to whole groups with zeros. A byte is q + 128: what the processor multiplies is unsigned
    bytes by signed ones.
    """

    data: Tensor  # uint8 [n/16, k/4, 16, 4]
    scale: Tensor  # fp32 [n/16, groups, 16]
    n: int
    k: int

    def __post_init__(self) -> None:
        # Once, here, and not at each call: a decode step makes some 120 of them, at 2 µs for these checks.
        blocks = (self.n + 15) // 16
        groups = (self.k + GROUP_SIZE - 1) // GROUP_SIZE
        data_shape, scale_shape = (blocks, groups * GROUP_SIZE // 4, 16, 4), (blocks, groups, 16)
        assert self.data.dtype == torch.uint8 and self.data.shape == data_shape, self.data.shape
        assert self.scale.dtype == torch.float32 and self.scale.shape == scale_shape, self.scale.shape
        assert all(part.is_contiguous() and part.is_cpu for part in (self.data, self.scale))

    def rows(self, indices: Tensor) -> Tensor:
        """Those rows in fp32: int64 [T] to [T, k]. 0.2 ms for 32 rows of 576."""
        block, lane = indices // 16, indices % 16
        groups = (self.data[block, :, lane].float() - 128).view(len(indices), -1, GROUP_SIZE)
        return (groups * self.scale[block, :, lane, None]).flatten(1)[:, : self.k].contiguous()


@dataclass(frozen=True, slots=True)
class KVPages:
    """One layer's paged KV cache, in fp32 or in int8 with a scale (absmax / 127) for each token and head.

    fp32: keys [pages, kv_heads, head_dim, 16], transposed within a page so that one dimension of its 16 tokens is a
    vector; values [pages, kv_heads, 16, head_dim].
    int8: keys [pages, kv_heads, head_dim / 4, 16, 4], stored as uint8 k + 128; values [pages, kv_heads, 4, head_dim,
    4], a vector being 16 dimensions of 4 tokens; scales fp32 [pages, kv_heads, 2, 16], of K and of V.
    """

    keys: Tensor
    values: Tensor
    scales: Tensor | None = None

    def __post_init__(self) -> None:
        pages, heads, d = self.num_pages, self.kv_heads, self.head_dim
        assert 0 < d <= MAX_HEAD_DIM, d
        keys, values = _kv_shapes(self.dtype, pages, heads, d)
        _check(self.keys, torch.float32 if self.scales is None else torch.uint8, keys)
        _check(self.values, torch.float32 if self.scales is None else torch.int8, values)
        if self.scales is not None:
            _check(self.scales, torch.float32, (pages, heads, 2, PAGE_SIZE))

    @staticmethod
    def allocate(dtype: KVDtype, pages: int, kv_heads: int, head_dim: int) -> "KVPages":
        """Memory as it comes: where no token was written lies anything, which is never read or has no effect."""
        keys, values = _kv_shapes(dtype, pages, kv_heads, head_dim)
        if dtype == "fp32":
            return KVPages(torch.empty(keys), torch.empty(values))
        return KVPages(
            keys=torch.empty(keys, dtype=torch.uint8),
            values=torch.empty(values, dtype=torch.int8),
            scales=torch.empty(pages, kv_heads, 2, PAGE_SIZE),
        )

    @property
    def dtype(self) -> KVDtype:
        return "fp32" if self.scales is None else "int8"

    @property
    def num_pages(self) -> int:
        return self.keys.shape[0]

    @property
    def kv_heads(self) -> int:
        return self.keys.shape[1]

    @property
    def head_dim(self) -> int:
        return self.values.shape[3]


def kv_page_bytes(dtype: KVDtype, kv_heads: int, head_dim: int) -> int:
    """Of one page of one layer: keys, values and scales."""
    return 2 * kv_heads * PAGE_SIZE * (4 * head_dim if dtype == "fp32" else head_dim + 4)


def _kv_shapes(dtype: KVDtype, pages: int, heads: int, d: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if dtype == "fp32":
        return (pages, heads, d, PAGE_SIZE), (pages, heads, PAGE_SIZE, d)
    assert d % 16 == 0, d
    return (pages, heads, d // 4, PAGE_SIZE, 4), (pages, heads, PAGE_SIZE // 4, d, 4)


def _check(tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    assert tensor.dtype == dtype and tensor.shape == shape, (tensor.dtype, tensor.shape, dtype, shape)
    assert tensor.is_contiguous(), tensor.stride()


class Kernels(Protocol):
    """One implementation; `kernels/__init__.py` documents each function."""

    def set_num_threads(self, n: int) -> None: ...

    def pack_int8(self, weight: Tensor) -> Int8Weight: ...

    def linear_int8(self, x: Tensor, w: Int8Weight) -> Tensor: ...

    def mlp_int8(self, x: Tensor, gate_up: Int8Weight, down: Int8Weight) -> Tensor: ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def silu_mul(self, gate_up: Tensor) -> Tensor: ...

    def draw(
        self,
        logits: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
        points: Tensor,
    ) -> Tensor: ...

    def rope_write_kv(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        slots: Tensor,
        kv: KVPages,
        num_q_heads: int,
    ) -> Tensor: ...

    def paged_attention(
        self,
        q: Tensor,
        kv: KVPages,
        page_table: Tensor,
        row_seq: Tensor,
        row_len: Tensor,
        scale: float,
        window: int = 0,
    ) -> Tensor: ...
