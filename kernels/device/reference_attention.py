"""Attention over a paged KV cache in plain torch, in fp32: the oracle of the tests, and the fallback without Triton."""

import torch
from torch import Tensor

from kernels.base import PAGE_SIZE
from kernels.device.base import DevicePages, PrefixGroups


def decode_attention(
    q: Tensor, kv: DevicePages, page_table: Tensor, lens: Tensor, scale: float, window: int = 0
) -> Tensor:
    starts = torch.arange(len(q) + 1, dtype=torch.int32, device=q.device)
    return prefill_attention(q, kv, page_table, starts, lens, 1, scale, window)


def prefill_attention(
    q: Tensor,
    kv: DevicePages,
    page_table: Tensor,
    query_start: Tensor,
    lens: Tensor,
    max_query: int,
    scale: float,
    window: int = 0,
) -> Tensor:
    out = torch.zeros_like(q)
    starts = query_start.tolist()
    for sequence, length in enumerate(lens.tolist()):
        rows = slice(starts[sequence], starts[sequence + 1])
        if length > 0 and rows.stop > rows.start:
            pages = page_table[sequence, : -(-length // PAGE_SIZE)].long()
            out[rows] = _attend(q[rows], *_gathered(kv, pages, length), scale, window).to(q.dtype)
    return out


def cascade_attention(
    q: Tensor, kv: DevicePages, page_table: Tensor, lens: Tensor, groups: PrefixGroups, scale: float
) -> Tensor:
    """How rows are grouped is a matter of speed alone."""
    return decode_attention(q, kv, page_table, lens, scale)


def _gathered(kv: DevicePages, pages: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """K and V of a sequence in fp32, [Hkv, length, D]."""
    found = []
    for side, part in enumerate((kv.keys, kv.values)):
        values = part[pages].float()
        if kv.scales is not None:
            values = values * kv.scales[pages, :, side, :, None]
        found.append(values.transpose(0, 1).flatten(1, 2)[:, :length])
    return found[0], found[1]


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int) -> Tensor:
    """q [rows, Hq, D], the last rows of a sequence of k's length: [rows, Hq, D]."""
    rows, length = len(q), k.shape[1]
    queries = q.float().view(rows, k.shape[0], -1, q.shape[2]).permute(1, 2, 0, 3)
    position = torch.arange(length - rows, length, device=q.device)[:, None]
    token = torch.arange(length, device=q.device)
    seen = token <= position
    if window:
        seen &= token > position - window
    weights = (queries @ k[:, None].transpose(2, 3) * scale).masked_fill(~seen, float("-inf")).softmax(-1)
    return (weights @ v[:, None]).permute(2, 0, 1, 3).reshape(q.shape)
