"""Every kernel in plain torch: the oracle of the tests, and the fallback where no compiler is at hand."""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.base import GROUP_SIZE, PAGE_SIZE, Int8Weight

_TINY = 1e-30  # where the largest magnitude is below this, all is quantised to zeros: 127 / absmax would overflow


def set_num_threads(n: int) -> None:
    torch.set_num_threads(n)


def pack_int8(weight: Tensor) -> Int8Weight:
    assert weight.dtype == torch.float32 and weight.dim() == 2, (weight.dtype, weight.shape)
    n, k = weight.shape
    groups, k4 = -(-k // GROUP_SIZE), -(-k // 4)
    padded = functional.pad(weight, (0, groups * GROUP_SIZE - k, 0, -n % 16))
    q, scale = _quantise(padded.view(-1, 16, groups, GROUP_SIZE))
    return Int8Weight(
        data=q.flatten(2)[..., : k4 * 4].reshape(-1, 16, k4, 4).transpose(1, 2).contiguous(),
        scale=scale.transpose(1, 2).contiguous(),
        group_sums=q.sum(-1, dtype=torch.int16).transpose(1, 2).contiguous(),
        n=n,
        k=k,
    )


def linear_int8(x: Tensor, w: Int8Weight) -> Tensor:
    weight = w.data.transpose(1, 2).flatten(2).flatten(0, 1)[: w.n, : w.k]
    weight_scale = w.scale.transpose(1, 2).flatten(0, 1)[: w.n]
    y = torch.zeros(x.shape[0], w.n)
    for group in range(weight_scale.shape[1]):
        part = slice(group * GROUP_SIZE, (group + 1) * GROUP_SIZE)
        q, scale = _quantise(x[:, part])
        # Sums of 64 products of int8 are integers below 2^24, so an fp32 matmul has them exactly.
        y += (q.float() @ weight[:, part].float().T) * (scale[:, None] * weight_scale[:, group])
    return y


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    residual += x
    return rms_norm(residual, weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def rope_write_kv(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    num_q_heads: int,
) -> Tensor:
    _, kv_heads, d, _ = k_cache.shape
    heads = qkv.view(qkv.shape[0], num_q_heads + 2 * kv_heads, d)
    q, k, v = heads[:, :num_q_heads], heads[:, num_q_heads:-kv_heads], heads[:, -kv_heads:]
    c, s = cos[positions.long()][:, None], sin[positions.long()][:, None]
    written = slots >= 0
    page, offset = slots[written].long() // PAGE_SIZE, slots[written].long() % PAGE_SIZE
    k_cache[page, :, :, offset] = _rotate(k, c, s)[written]
    v_cache[page, :, offset] = v[written]
    return _rotate(q, c, s)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    row_seq: Tensor,
    row_len: Tensor,
    scale: float,
) -> Tensor:
    _, q_heads, d = q.shape
    kv_heads = k_cache.shape[1]
    out = torch.zeros_like(q)
    for sequence in set(row_seq.tolist()):
        rows = ((row_seq == sequence) & (row_len > 0)).nonzero().squeeze(1)
        if rows.numel() == 0:
            continue
        length = int(row_len[rows].max())
        pages = page_table[sequence, : -(-length // PAGE_SIZE)].long()
        k = k_cache[pages].permute(1, 2, 0, 3).reshape(kv_heads, 1, d, -1)[..., :length]
        v = v_cache[pages].permute(1, 0, 2, 3).reshape(kv_heads, 1, -1, d)[:, :, :length]
        queries = q[rows].view(rows.numel(), kv_heads, -1, d).permute(1, 2, 0, 3)
        masked = torch.arange(length) >= row_len[rows, None]
        weights = (queries @ k * scale).masked_fill(masked, float("-inf")).softmax(-1)
        out[rows] = (weights @ v).permute(2, 0, 1, 3).reshape(-1, q_heads, d)
    return out


def _quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric, along the last dimension: (int8 like x, fp32 scales)."""
    top = x.abs().amax(-1)
    # A plain 127.0 / top is top.reciprocal() * 127.0 to torch, which rounds twice and differs from C++ now and then.
    inverse = torch.where(top > _TINY, torch.full_like(top, 127.0) / top, 0.0)
    return torch.round(x * inverse[..., None]).to(torch.int8), top / 127.0


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
