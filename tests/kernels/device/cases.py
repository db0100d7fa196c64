"""Caches and queries for attention, with poison wherever nothing may be read."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.base import PAGE_SIZE
from kernels.device.base import DTYPES, FP8_MAX, DeviceKVDtype, DevicePages

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass
class Cache:
    kv: DevicePages
    table: Tensor
    lens: Tensor

    def row_seq(self) -> Tensor:
        return torch.arange(len(self.lens))


def cache(
    lengths: list[int],
    kv_heads: int,
    dim: int,
    dtype: DeviceKVDtype,
    rng: torch.Generator,
    device: torch.device,
    shared_pages: dict[int, int] | None = None,
) -> Cache:
    """Sequences of these lengths in pages at random places; all else is NaN, also table entries lead there.
    `shared_pages`: a sequence's first so many pages are those of the one before it."""
    widths = [-(-length // PAGE_SIZE) for length in lengths]
    num_pages = sum(widths) + 3
    order = torch.randperm(num_pages - 1, generator=rng).add(1).tolist()
    poison = torch.full((num_pages, kv_heads, PAGE_SIZE, dim), math.nan)
    keys, values = poison.clone(), poison.clone()
    table = torch.zeros(len(lengths), max([*widths, 1]) + 1, dtype=torch.int32)
    for sequence, (length, width) in enumerate(zip(lengths, widths, strict=True)):
        shared = (shared_pages or {}).get(sequence, 0)
        for index in range(width):
            page = int(table[sequence - 1, index]) if index < shared else order.pop()
            table[sequence, index] = page
            count = min(PAGE_SIZE, length - index * PAGE_SIZE)
            if index >= shared:
                for part in (keys, values):
                    part[page, :, :count] = torch.randn(kv_heads, count, dim, generator=rng)
    kv = _stored(keys, values, dtype)
    on = [part.to(device) for part in (kv.keys, kv.values)]
    scales = None if kv.scales is None else kv.scales.to(device)
    lens = torch.tensor(lengths, dtype=torch.int32, device=device)
    return Cache(DevicePages(on[0], on[1], scales), table.to(device), lens)


def queries(rows: int, heads: int, dim: int, dtype: torch.dtype, rng: torch.Generator, device: torch.device) -> Tensor:
    return torch.randn(rows, heads, dim, generator=rng).to(dtype).to(device)


def close(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(found.float(), wanted.float(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def _stored(keys: Tensor, values: Tensor, dtype: DeviceKVDtype) -> DevicePages:
    if dtype != "fp8":
        return DevicePages(keys.to(DTYPES[dtype]), values.to(DTYPES[dtype]))
    scales = torch.stack([part.abs().amax(-1) / FP8_MAX for part in (keys, values)], dim=2)
    quantised = [(part / scales[:, :, side, :, None]).to(DTYPES["fp8"]) for side, part in enumerate((keys, values))]
    return DevicePages(quantised[0], quantised[1], scales.contiguous())
