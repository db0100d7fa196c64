"""A paged cache full of gaussian K and V, and batches that attend to it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.base import PAGE_SIZE
from kernels.device import reference
from kernels.device.base import DeviceKVDtype, DevicePages
from loadtest.gpu.steps import pages_of


@dataclass(frozen=True, slots=True)
class Heads:
    q: int
    kv: int
    dim: int

    @property
    def width(self) -> int:
        return (self.q + 2 * self.kv) * self.dim


SMOLLM2 = Heads(9, 3, 64)
LLAMA_8B = Heads(32, 8, 128)


@dataclass(frozen=True, slots=True)
class Paged:
    kv: DevicePages
    table: Tensor
    lens: Tensor


def paged(
    lengths: list[int], heads: Heads, stored: DeviceKVDtype, device: torch.device, shared_pages: int = 0
) -> Paged:
    """Pages at random places, of which all sequences share the first `shared_pages`."""
    widths = [pages_of(length) for length in lengths]
    num_pages = shared_pages + sum(width - shared_pages for width in widths)
    order = torch.randperm(num_pages)
    table = torch.zeros(len(lengths), max(widths), dtype=torch.int32)
    first = shared_pages
    for row, width in enumerate(widths):
        own = width - shared_pages
        table[row, :shared_pages] = order[:shared_pages]
        table[row, shared_pages:width] = order[first : first + own]
        first += own
    lens = torch.tensor(lengths, dtype=torch.int32, device=device)
    return Paged(full_pages(num_pages, heads, stored, device), table.to(device), lens)


def full_pages(num_pages: int, heads: Heads, stored: DeviceKVDtype, device: torch.device) -> DevicePages:
    """Written by the reference, a part at a time: in fp32 the whole of it wouldn't be small."""
    kv = DevicePages.allocate(stored, num_pages, heads.kv, heads.dim, device)
    still = torch.ones(1, heads.dim // 2, device=device), torch.zeros(1, heads.dim // 2, device=device)
    part = 1 << 16
    for first in range(0, num_pages * PAGE_SIZE, part):
        slots = torch.arange(first, min(first + part, num_pages * PAGE_SIZE), dtype=torch.int32, device=device)
        qkv = torch.randn(len(slots), 2 * heads.kv * heads.dim, device=device)
        reference.rope_write_kv(qkv, *still, torch.zeros_like(slots), slots, kv, 0)
    return kv


def queries(rows: int, heads: Heads, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(rows, heads.q, heads.dim, device=device).to(dtype)
