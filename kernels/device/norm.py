"""RMS norm of rows, with the residual stream added first, and of the heads of q and k. Sums are in fp32."""

# Kernels are in Triton's own language, which only looks like Python.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, possibly-undefined, attr-defined"

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.device.launch import power_of_two


@triton.jit
def norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, eps,
    WIDTH: tl.constexpr, WIDTH_PADDED: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH_PADDED)
    real = columns < WIDTH
    x = tl.load(x_ptr + row * WIDTH + columns, mask=real, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(residual_ptr + row * WIDTH + columns, mask=real, other=0.0).to(tl.float32)
        # The stream keeps its own precision, and what is normalised is what it keeps.
        kept = x.to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + row * WIDTH + columns, kept, mask=real)
        x = kept.to(tl.float32)
    mean = tl.sum(x * x, 0) / WIDTH
    weight = tl.load(weight_ptr + columns, mask=real, other=0.0).to(tl.float32)
    out = x * tl.rsqrt(mean + eps) * weight
    tl.store(out_ptr + row * WIDTH + columns, out.to(out_ptr.dtype.element_ty), mask=real)


@triton.jit
def norm_heads_kernel(
    qkv_ptr, q_weight_ptr, k_weight_ptr, eps, row_stride,
    Q_HEADS: tl.constexpr, HEADS: tl.constexpr, HEADS_PADDED: tl.constexpr,
    DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    heads = tl.arange(0, HEADS_PADDED)
    dims = tl.arange(0, DIM_PADDED)
    real = (heads < HEADS)[:, None] & (dims < DIM)[None, :]
    place = qkv_ptr + row * row_stride + heads[:, None] * DIM + dims[None, :]
    x = tl.load(place, mask=real, other=0.0).to(tl.float32)
    mean = tl.sum(x * x, 1) / DIM
    q_weight = tl.load(q_weight_ptr + dims, mask=dims < DIM, other=0.0).to(tl.float32)
    k_weight = tl.load(k_weight_ptr + dims, mask=dims < DIM, other=0.0).to(tl.float32)
    weight = tl.where((heads < Q_HEADS)[:, None], q_weight[None, :], k_weight[None, :])
    out = x * tl.rsqrt(mean + eps)[:, None] * weight
    tl.store(place, out.to(qkv_ptr.dtype.element_ty), mask=real)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _norm(x, None, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    assert residual.shape == x.shape and residual.is_contiguous(), (residual.shape, residual.stride())
    return _norm(x, residual, weight, eps)


def norm_heads(qkv: Tensor, q_norm: Tensor, k_norm: Tensor, eps: float, num_q_heads: int, num_kv_heads: int) -> None:
    rows, dim = len(qkv), len(q_norm)
    heads = num_q_heads + num_kv_heads
    assert qkv.is_contiguous() and qkv.shape[1] == (heads + num_kv_heads) * dim, (qkv.shape, heads, dim)
    assert len(k_norm) == dim
    if rows:
        norm_heads_kernel[(rows,)](
            qkv, q_norm, k_norm, eps, qkv.stride(0),
            Q_HEADS=num_q_heads, HEADS=heads, HEADS_PADDED=power_of_two(heads), DIM=dim, DIM_PADDED=power_of_two(dim),
        )  # fmt: skip


def _norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    rows, width = x.shape
    assert x.is_contiguous() and weight.shape == (width,), (x.shape, x.stride(), weight.shape)
    out = torch.empty_like(x)
    if rows:
        padded = power_of_two(width)
        norm_kernel[(rows,)](
            x, residual, weight, out, eps, WIDTH=width, WIDTH_PADDED=padded, ADD=residual is not None,
            num_warps=4 if padded <= 2048 else 8,
        )  # fmt: skip
    return out
