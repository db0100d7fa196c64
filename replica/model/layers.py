"""A linear map, in fp32 or int8."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

import kernels

Linear = Callable[[torch.Tensor], torch.Tensor]
"""x [tokens, in] -> [tokens, out]; fp32 on a CPU."""


@dataclass(frozen=True, slots=True)
class Int8Linear:
    """x is quantised at each call, as the weight is, by row and group of columns; the bias never."""

    weight: kernels.Int8Weight
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = kernels.linear_int8(x, self.weight)
        return y if self.bias is None else y.add_(self.bias)


def make_linear(weight: torch.Tensor, int8: bool, bias: torch.Tensor | None = None) -> Linear:
    """`weight` is [out, in], fp32."""
    if int8:
        return Int8Linear(kernels.pack_int8(weight), bias)
    return lambda x: F.linear(x, weight, bias)


def make_mlp(gate_up: Linear, down: Linear, silu_mul: Callable[[torch.Tensor], torch.Tensor]) -> Linear:
    """SwiGLU: down(silu(gate) * up)."""
    if isinstance(gate_up, Int8Linear) and isinstance(down, Int8Linear) and gate_up.bias is None and down.bias is None:
        return partial(kernels.mlp_int8, gate_up=gate_up.weight, down=down.weight)
    return lambda x: down(silu_mul(gate_up(x)))
