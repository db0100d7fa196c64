"""The other kernels in plain torch, in fp32: the oracle of the tests, and the fallback without Triton."""

import torch
from torch import Tensor
from torch.nn import functional

import kernels.reference
from kernels.base import PAGE_SIZE
from kernels.device.base import FP8_MAX, DevicePages
from kernels.device.reference_attention import cascade_attention, decode_attention, prefill_attention

__all__ = [
    "add_rms_norm",
    "argmax",
    "cascade_attention",
    "decode_attention",
    "draw",
    "norm_heads",
    "prefill_attention",
    "rms_norm",
    "rope_write_kv",
    "silu_mul",
]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return kernels.reference.rms_norm(x.float(), weight.float(), eps).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    residual.copy_(residual.float() + x.float())
    return rms_norm(residual, weight, eps).to(x.dtype)


def norm_heads(qkv: Tensor, q_norm: Tensor, k_norm: Tensor, eps: float, num_q_heads: int, num_kv_heads: int) -> None:
    heads = qkv.view(len(qkv), -1, len(q_norm))
    for part, weight in ((heads[:, :num_q_heads], q_norm), (heads[:, num_q_heads:][:, :num_kv_heads], k_norm)):
        part.copy_(rms_norm(part, weight, eps))


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (functional.silu(gate) * up).to(gate_up.dtype)


def rope_write_kv(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    kv: DevicePages,
    num_q_heads: int,
) -> Tensor:
    kv_heads, d = kv.kv_heads, kv.head_dim
    heads = qkv.float().view(len(qkv), num_q_heads + 2 * kv_heads, d)
    c, s = cos[positions.long()][:, None], sin[positions.long()][:, None]
    q = _rotated(heads[:, :num_q_heads], c, s)
    written = slots >= 0
    page, offset = slots[written].long() // PAGE_SIZE, slots[written].long() % PAGE_SIZE
    k = _rotated(heads[:, num_q_heads:-kv_heads], c, s)[written]
    v = heads[:, -kv_heads:][written]
    for side, (pages, new) in enumerate(((kv.keys, k), (kv.values, v))):
        if kv.scales is not None:
            most = new.abs().amax(-1)
            kv.scales[page, :, side, offset] = most / FP8_MAX
            new = new * torch.where(most > 0, FP8_MAX / most, 0.0)[..., None]
        pages[page, :, offset] = new.to(pages.dtype)
    return q.to(qkv.dtype)


def argmax(logits: Tensor) -> Tensor:
    """By numpy's rule, where torch says nothing: of equals the first."""
    top = logits.amax(-1, keepdim=True)
    return (logits == top).int().argmax(-1)


def draw(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, points: Tensor) -> Tensor:
    settings = (part.cpu() for part in (temperature, top_k, top_p, min_p, points))
    return kernels.reference.draw(logits.float().cpu(), *settings).to(logits.device)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
