"""Prefill attention through torch's own flash attention, which is written for the card it runs on.

It takes no pages of 16 tokens in every build, so K and V are gathered first: a copy of what attention reads once more
for each tile of rows anyway. Shapes come from the page table alone, since the lengths are on the device.
"""

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from kernels.base import PAGE_SIZE
from kernels.device.base import DevicePages
from kernels.device.reference_attention import prefill_attention as reference_prefill

_PROBE_TOLERANCE = 0.05
_MOST_GATHERED_BYTES = 256 << 20
"""Of K and V: many sequences, one of them long, would gather more than there is room for."""


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
    k, v = gathered(kv, page_table, q.dtype)
    sequences, longest = page_table.shape[0], page_table.shape[1] * PAGE_SIZE
    starts = torch.arange(sequences + 1, dtype=torch.int32, device=q.device) * longest
    found = varlen_attn(
        q,
        k,
        v,
        query_start,
        starts,
        max_query,
        longest,
        scale=scale,
        # Causal: nothing to the right; to the left all, or the window but the token itself.
        window_size=(window - 1 if window else -1, 0),
        enable_gqa=q.shape[1] != kv.kv_heads,
        seqused_k=lens,
    )
    assert isinstance(found, Tensor)
    return found


def gathered(kv: DevicePages, page_table: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """K and V of all sequences, each padded to the table's width: [S * width * 16, Hkv, D]."""
    pages = page_table.flatten().long()
    found = []
    for side, part in enumerate((kv.keys, kv.values)):
        values = part[pages]
        if kv.scales is not None:
            values = values.to(dtype) * kv.scales[pages, :, side, :, None].to(dtype)
        found.append(values.transpose(1, 2).reshape(-1, kv.kv_heads, kv.head_dim))
    return found[0], found[1]


def fits(kv: DevicePages, page_table: Tensor, dtype: torch.dtype) -> bool:
    """Whether the gathered K and V stay small."""
    return 2 * page_table.numel() * kv.kv_heads * PAGE_SIZE * kv.head_dim * dtype.itemsize <= _MOST_GATHERED_BYTES


def works(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> bool:
    """On this card, in this build and for this shape, with the right result. Waits for the device."""
    if device.type != "cuda" or dtype == torch.float32:
        return False
    rng = torch.Generator(device).manual_seed(0)
    lens, starts = (torch.tensor(values, dtype=torch.int32, device=device) for values in ([40, 17], [0, 9, 26]))
    table = torch.tensor([[3, 1, 2], [4, 0, 0]], dtype=torch.int32, device=device)
    table[1, 1] = 5
    shape = (6, kv_heads, PAGE_SIZE, head_dim)
    keys, values = (torch.randn(shape, generator=rng, device=device).to(dtype) for _ in range(2))
    for part in (keys, values):
        # Where no token was written may lie anything.
        part[0], part[2, :, 8:], part[5, :, 1:] = torch.nan, torch.nan, torch.nan
    q = torch.randn(26, heads, head_dim, generator=rng, device=device).to(dtype)
    arguments = (q, DevicePages(keys, values), table, starts, lens, 17, head_dim**-0.5)
    try:
        found = prefill_attention(*arguments)
    except (RuntimeError, ValueError, NotImplementedError):
        return False
    return bool((found.float() - reference_prefill(*arguments).float()).abs().max() < _PROBE_TOLERANCE)
