"""Layers that architectures share: a linear map in fp32 or int8, and the rotary tables."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

import kernels

Linear = Callable[[torch.Tensor], torch.Tensor]
"""x [tokens, in] -> [tokens, out], fp32."""


def make_linear(weight: torch.Tensor, int8: bool) -> Linear:
    """`weight` is [out, in], fp32. Int8 quantises it, and x at each call, by row and group of columns."""
    if not int8:
        return lambda x: F.linear(x, weight)
    packed = kernels.pack_int8(weight)
    return lambda x: kernels.linear_int8(x, packed)


def rotary_tables(head_dim: int, max_positions: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, each [positions, head_dim / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    angles = torch.outer(torch.arange(max_positions, dtype=torch.float64), theta**-exponents)
    return angles.cos().float(), angles.sin().float()
