"""The data types of the kernels for an accelerator: what its KV cache looks like."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kernels.base import PAGE_SIZE

DeviceKVDtype = Literal["fp32", "fp16", "bf16", "fp8"]

DTYPES: dict[DeviceKVDtype, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
}
FP8_MAX = 448.0


@dataclass(frozen=True, slots=True)
class DevicePages:
    """One layer's paged KV cache: keys and values [pages, kv_heads, 16, head_dim], so that a page of a head is one run
    of memory. In fp8 (e4m3) with scales fp32 [pages, kv_heads, 2, 16], absmax / 448 of each token's K and V."""

    keys: Tensor
    values: Tensor
    scales: Tensor | None = None

    def __post_init__(self) -> None:
        shape = self.keys.shape
        assert len(shape) == 4 and shape[2] == PAGE_SIZE, shape
        assert self.values.shape == shape and self.values.dtype == self.keys.dtype, (self.values.shape, shape)
        assert self.keys.is_contiguous() and self.values.is_contiguous()
        assert self.keys.dtype in DTYPES.values(), self.keys.dtype
        assert (self.scales is not None) == (self.keys.dtype == torch.float8_e4m3fn)
        if self.scales is not None:
            assert self.scales.dtype == torch.float32 and self.scales.is_contiguous()
            assert self.scales.shape == (shape[0], shape[1], 2, PAGE_SIZE), self.scales.shape

    @staticmethod
    def allocate(dtype: DeviceKVDtype, pages: int, kv_heads: int, head_dim: int, device: torch.device) -> "DevicePages":
        """Memory as it comes: where no token was written lies anything, which has no effect."""
        shape = (pages, kv_heads, PAGE_SIZE, head_dim)
        scales = torch.empty(pages, kv_heads, 2, PAGE_SIZE, device=device) if dtype == "fp8" else None
        keys, values = (torch.empty(shape, dtype=DTYPES[dtype], device=device) for _ in range(2))
        return DevicePages(keys, values, scales)

    @property
    def num_pages(self) -> int:
        return self.keys.shape[0]

    @property
    def kv_heads(self) -> int:
        return self.keys.shape[1]

    @property
    def head_dim(self) -> int:
        return self.keys.shape[3]


@dataclass(frozen=True, slots=True)
class PrefixGroups:
    """Rows of a decode batch that begin with the same pages, int32 on the device. Group g holds rows [start[g],
    start[g + 1]), all of whose first pages[g] pages are the same. Groups without a row, and such with 0 pages, may
    fill it up to a fixed size."""

    start: Tensor  # [groups + 1]
    pages: Tensor  # [groups]
    row_pages: Tensor  # [rows]: of the row's group

    def __post_init__(self) -> None:
        assert self.start.shape == (len(self.pages) + 1,), (self.start.shape, self.pages.shape)
        assert all(part.dtype == torch.int32 for part in (self.start, self.pages, self.row_pages))


def device_page_bytes(dtype: DeviceKVDtype, kv_heads: int, head_dim: int) -> int:
    """Of one page of one layer: keys, values and scales."""
    scale = 4 if dtype == "fp8" else 0
    return 2 * kv_heads * PAGE_SIZE * (DTYPES[dtype].itemsize * head_dim + scale)
