"""Every kernel in plain torch: the oracle of the tests, and the fallback where no compiler is at hand."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from kernels.base import GROUP_SIZE, PAGE_SIZE, SPAN, Int8Weight, KVPages

_TINY = 1e-30  # where the largest magnitude is below this, all is quantised to zeros: 127 / absmax would overflow


def set_num_threads(n: int) -> None:
    torch.set_num_threads(n)


def pack_int8(weight: Tensor) -> Int8Weight:
    assert weight.dtype == torch.float32 and weight.dim() == 2, (weight.dtype, weight.shape)
    n, k = weight.shape
    groups = -(-k // GROUP_SIZE)
    padded = functional.pad(weight, (0, groups * GROUP_SIZE - k, 0, -n % 16))
    q, scale = _quantise(padded.view(-1, 16, groups, GROUP_SIZE))
    return Int8Weight(
        data=(q.view(torch.uint8) ^ 128).view(-1, 16, groups * GROUP_SIZE // 4, 4).transpose(1, 2).contiguous(),
        scale=scale.transpose(1, 2).contiguous(),
        n=n,
        k=k,
    )


def linear_int8(x: Tensor, w: Int8Weight) -> Tensor:
    weight = w.data.transpose(1, 2).flatten(2).flatten(0, 1)[: w.n, : w.k].float() - 128
    weight_scale = w.scale.transpose(1, 2).flatten(0, 1)[: w.n]
    y = torch.zeros(x.shape[0], w.n)
    for group in range(weight_scale.shape[1]):
        part = slice(group * GROUP_SIZE, (group + 1) * GROUP_SIZE)
        q, scale = _quantise(x[:, part])
        # Sums of 64 products of int8 are integers below 2^24, so an fp32 matmul has them exactly.
        y += (q.float() @ weight[:, part].T) * (scale[:, None] * weight_scale[:, group])
    return y


def mlp_int8(x: Tensor, gate_up: Int8Weight, down: Int8Weight) -> Tensor:
    return linear_int8(silu_mul(linear_int8(x, gate_up)), down)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    residual += x
    return rms_norm(residual, weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def draw(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    points: Tensor,
) -> Tensor:
    parameters = (part.tolist() for part in (temperature, top_k, top_p, min_p, points))
    tokens = [_draw(row.double(), *rest) for row, *rest in zip(logits, *parameters, strict=True)]
    return torch.tensor(tokens, dtype=torch.int64)


def _draw(logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float, point: float) -> int:
    # amax gives NaN where there is one.
    top = logits.amax()
    if not top.isfinite():
        return -1
    if temperature == 0:
        return int((logits == top).nonzero()[0])
    weights = ((logits - top) / temperature).exp()
    if top_k <= 0 and top_p >= 1 and min_p <= 0:
        order = torch.arange(len(logits))
    else:
        order = logits.sort(descending=True, stable=True).indices
        kept = min(top_k, len(order)) if top_k > 0 else len(order)
        if min_p > 0:
            least = float(top) + temperature * math.log(min_p)
            kept = max(min(kept, int((logits >= least).sum())), 1)
        if top_p < 1:
            cumulative = weights[order[:kept]].cumsum(0)
            kept = min(kept, int(torch.searchsorted(cumulative, top_p * cumulative[-1])) + 1)
        order = order[:kept]
    cumulative = weights[order].cumsum(0)
    index = int(torch.searchsorted(cumulative, point * cumulative[-1], right=True))
    last = int((weights[order] > 0).nonzero()[-1])
    return int(order[min(index, last)])


def rope_write_kv(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    kv: KVPages,
    num_q_heads: int,
) -> Tensor:
    kv_heads, d = kv.kv_heads, kv.head_dim
    heads = qkv.view(qkv.shape[0], num_q_heads + 2 * kv_heads, d)
    q, k, v = heads[:, :num_q_heads], heads[:, num_q_heads:-kv_heads], heads[:, -kv_heads:]
    c, s = cos[positions.long()][:, None], sin[positions.long()][:, None]
    written = slots >= 0
    page, offset = slots[written].long() // PAGE_SIZE, slots[written].long() % PAGE_SIZE
    k, v = _rotate(k, c, s)[written], v[written]
    if kv.scales is None:
        kv.keys[page, :, :, offset], kv.values[page, :, offset] = k, v
    else:
        k, kv.scales[page, :, 0, offset] = _quantise(k)
        v, kv.scales[page, :, 1, offset] = _quantise(v)
        kv.keys[page, :, :, offset] = (k.int() + 128).byte().view(*k.shape[:2], -1, 4)
        kv.values[page, :, offset // 4, :, offset % 4] = v
    return _rotate(q, c, s)


def paged_attention(
    q: Tensor,
    kv: KVPages,
    page_table: Tensor,
    row_seq: Tensor,
    row_len: Tensor,
    scale: float,
    window: int = 0,
) -> Tensor:
    _, q_heads, d = q.shape
    row_start = (row_len - window).clamp(min=0) if window else torch.zeros_like(row_len)
    out = torch.zeros_like(q)
    for sequence in set(row_seq.tolist()):
        rows = ((row_seq == sequence) & (row_len > 0)).nonzero().squeeze(1)
        if rows.numel() == 0:
            continue
        first, end = int(row_start[rows].min()), int(row_len[rows].max())
        pages = page_table[sequence, first // PAGE_SIZE : -(-end // PAGE_SIZE)].long()
        position = first // PAGE_SIZE * PAGE_SIZE + torch.arange(len(pages) * PAGE_SIZE)
        seen = (position >= row_start[rows, None]) & (position < row_len[rows, None])
        queries = q[rows].view(rows.numel(), kv.kv_heads, -1, d).permute(1, 2, 0, 3)
        attended = (_attend if kv.scales is None else _attend_int8)(queries, kv, pages, position, seen, scale)
        out[rows] = attended.permute(2, 0, 1, 3).reshape(-1, q_heads, d)
    return out


def _attend(q: Tensor, kv: KVPages, pages: Tensor, position: Tensor, seen: Tensor, scale: float) -> Tensor:
    """q [Hkv, G, rows, D] over the tokens at `position` that a row has `seen` [rows, tokens]."""
    used = seen.any(0)  # others may be NaN
    k = kv.keys[pages].permute(1, 2, 0, 3).flatten(2)[:, None, :, used]
    v = kv.values[pages].transpose(0, 1).flatten(1, 2)[:, None, used]
    weights = (q @ k * scale).masked_fill(~seen[:, used], float("-inf")).softmax(-1)
    return weights @ v


def _attend_int8(q: Tensor, kv: KVPages, pages: Tensor, position: Tensor, seen: Tensor, scale: float) -> Tensor:
    """As csrc/paged_attention_int8.cpp, in every bit: the sums of integers are below 2^24, exact in fp32."""
    assert kv.scales is not None
    k = kv.keys[pages].permute(1, 2, 4, 0, 3).flatten(3).flatten(1, 2)[:, None].float() - 128
    v = kv.values[pages].permute(1, 0, 2, 4, 3).flatten(1, 3)[:, None].float()
    k_scale, v_scale = kv.scales[pages].permute(2, 1, 0, 3).flatten(2)[:, :, None, None]
    q8, q_scale = _quantise(q)
    factor = (q_scale * (torch.tensor(scale) * 1.44269504088896341))[..., None]
    scores = (q8.float() @ k * k_scale).masked_fill(~seen, float("-inf"))
    out, sums, top = torch.zeros_like(q), torch.zeros(*q.shape[:3], PAGE_SIZE), torch.full_like(factor, -1e37)
    spans = position // (SPAN * PAGE_SIZE)
    for span in range(int(spans[0]), int(spans[-1]) + 1):
        tokens = spans == span
        unseen = ~seen[:, tokens]
        now = torch.maximum(top, scores[..., tokens].amax(-1, keepdim=True))
        shrink = torch.where(now != top, _exp2((top - now) * factor), 1.0)
        weights = _exp2((scores[..., tokens] - now) * factor).masked_fill(unseen, 0.0)
        sums, top = sums * shrink, now
        for first in range(0, weights.shape[-1], PAGE_SIZE):
            sums = sums + weights[..., first : first + PAGE_SIZE]
        scaled = (weights * v_scale[..., tokens]).masked_fill(unseen, 0.0)
        most = scaled.amax(-1, keepdim=True)
        inverse = torch.where(most > _TINY, torch.full_like(most, 255.0) / most, 0.0)
        out = out * shrink + torch.round(scaled * inverse) @ v[:, :, tokens] * (most / 255.0)
    while sums.shape[-1] > 1:
        sums = sums[..., : sums.shape[-1] // 2] + sums[..., sums.shape[-1] // 2 :]
    return out * (1.0 / sums)


def _exp2(x: Tensor) -> Tensor:
    """exp2_unfused of csrc/int8.h."""
    x = x.clamp(min=-125.0)
    whole = x.floor()
    f = x - whole
    p = ((0.07802397757768631 * f + 0.22606702148914337) * f + 0.6958341002464294) * f + 0.9999251365661621
    return (p.view(torch.int32) + whole.int() * (1 << 23)).view(torch.float32)


def _quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric, along the last dimension: (int8 like x, fp32 scales)."""
    top = x.abs().amax(-1)
    # A plain 127.0 / top is top.reciprocal() * 127.0 to torch, which rounds twice and differs from C++ now and then.
    inverse = torch.where(top > _TINY, torch.full_like(top, 127.0) / top, 0.0)
    return torch.round(x * inverse[..., None]).to(torch.int8), top / 127.0


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
