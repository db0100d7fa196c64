"""Rotary positions and the KV write in one pass over q, k and v: rotates q and k, writes k and v to their slots."""

# Kernels are in Triton's own language, which only looks like Python.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, possibly-undefined, attr-defined"

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.base import PAGE_SIZE
from kernels.device.base import FP8_MAX, DevicePages
from kernels.device.launch import check_indices, power_of_two


@triton.jit
def rope_write_kv_kernel(
    qkv_ptr, cos_ptr, sin_ptr, positions_ptr, slots_ptr, keys_ptr, values_ptr, scales_ptr, q_ptr,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEADS_PADDED: tl.constexpr,
    HALF: tl.constexpr, HALF_PADDED: tl.constexpr, PAGE: tl.constexpr, FP8: tl.constexpr, FP8_TOP: tl.constexpr,
):  # fmt: skip
    """A token: all of its heads, each as two halves that are rotated together."""
    row = tl.program_id(0).to(tl.int64)
    heads = tl.arange(0, HEADS_PADDED)
    dims = tl.arange(0, HALF_PADDED)
    real_dim = dims < HALF
    real = (heads < Q_HEADS + 2 * KV_HEADS)[:, None] & real_dim[None, :]
    place = row * (Q_HEADS + 2 * KV_HEADS) * 2 * HALF + heads[:, None] * 2 * HALF + dims[None, :]
    first = tl.load(qkv_ptr + place, mask=real, other=0.0).to(tl.float32)
    second = tl.load(qkv_ptr + place + HALF, mask=real, other=0.0).to(tl.float32)
    position = tl.load(positions_ptr + row).to(tl.int64)
    cos = tl.load(cos_ptr + position * HALF + dims, mask=real_dim, other=0.0)[None, :]
    sin = tl.load(sin_ptr + position * HALF + dims, mask=real_dim, other=0.0)[None, :]
    is_value = (heads >= Q_HEADS + KV_HEADS)[:, None]
    turned_first = tl.where(is_value, first, first * cos - second * sin)
    turned_second = tl.where(is_value, second, second * cos + first * sin)

    is_q = (heads < Q_HEADS)[:, None] & real_dim[None, :]
    q_place = row * Q_HEADS * 2 * HALF + heads[:, None] * 2 * HALF + dims[None, :]
    tl.store(q_ptr + q_place, turned_first.to(q_ptr.dtype.element_ty), mask=is_q)
    tl.store(q_ptr + q_place + HALF, turned_second.to(q_ptr.dtype.element_ty), mask=is_q)

    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot >= 0:
        side = (heads >= Q_HEADS + KV_HEADS).to(tl.int64)
        kv_head = heads - Q_HEADS - side * KV_HEADS
        page_head = slot // PAGE * KV_HEADS + kv_head
        is_k = ((heads >= Q_HEADS) & (heads < Q_HEADS + KV_HEADS))[:, None] & real_dim[None, :]
        is_v = is_value & real
        if FP8:
            most = tl.maximum(tl.max(tl.abs(turned_first), 1), tl.max(tl.abs(turned_second), 1))
            scale = most / FP8_TOP
            inverse = (FP8_TOP / tl.where(most > 0, most, 1.0))[:, None]
            turned_first = turned_first * inverse
            turned_second = turned_second * inverse
            written = (heads >= Q_HEADS) & (heads < Q_HEADS + 2 * KV_HEADS)
            tl.store(scales_ptr + (page_head * 2 + side) * PAGE + slot % PAGE, scale, mask=written)
        at = (page_head * PAGE + slot % PAGE)[:, None] * 2 * HALF + dims[None, :]
        tl.store(keys_ptr + at, turned_first.to(keys_ptr.dtype.element_ty), mask=is_k)
        tl.store(keys_ptr + at + HALF, turned_second.to(keys_ptr.dtype.element_ty), mask=is_k)
        tl.store(values_ptr + at, turned_first.to(values_ptr.dtype.element_ty), mask=is_v)
        tl.store(values_ptr + at + HALF, turned_second.to(values_ptr.dtype.element_ty), mask=is_v)


def rope_write_kv(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    kv: DevicePages,
    num_q_heads: int,
) -> Tensor:
    rows, dim, heads = len(qkv), kv.head_dim, num_q_heads + 2 * kv.kv_heads
    assert qkv.is_contiguous() and qkv.shape == (rows, heads * dim), (qkv.shape, qkv.stride(), heads, dim)
    assert cos.dtype == sin.dtype == torch.float32 and cos.shape[1] == sin.shape[1] == dim // 2
    assert cos.is_contiguous() and sin.is_contiguous()
    check_indices(qkv.device, positions=positions, slots=slots)
    assert positions.shape == slots.shape == (rows,), (positions.shape, slots.shape)
    q = qkv.new_empty(rows, num_q_heads, dim)
    if rows:
        rope_write_kv_kernel[(rows,)](
            qkv, cos, sin, positions, slots, kv.keys, kv.values, kv.scales, q,
            Q_HEADS=num_q_heads, KV_HEADS=kv.kv_heads, HEADS_PADDED=power_of_two(heads),
            HALF=dim // 2, HALF_PADDED=power_of_two(dim // 2), PAGE=PAGE_SIZE,
            FP8=kv.scales is not None, FP8_TOP=FP8_MAX,
        )  # fmt: skip
    return q
