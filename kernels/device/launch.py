"""What all launchers share."""

import os

import torch
import triton
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Kernels run in Triton's interpreter, on a CPU. Its dot product is silently wrong for bf16, and knows no fp8: there
operands are cast to fp32 first."""

LOG2_E = 1.4426950408889634
"""exp(x) is exp2(x · log2 e), and exp2 is what the hardware has."""


def power_of_two(n: int) -> int:
    found: int = triton.next_power_of_2(n)
    return found


def processors(device: torch.device) -> int:
    """Streaming multiprocessors, each of which runs programs of its own."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def check_indices(device: torch.device, **tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        assert tensor.dtype == torch.int32 and tensor.is_contiguous(), (name, tensor.dtype, tensor.stride())
        assert tensor.device == device, (name, tensor.device)
