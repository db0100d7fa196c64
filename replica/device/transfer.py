"""Many small arrays to a device in one copy."""

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_ALIGNMENT = 16
"""Bytes. Triton compiles a kernel anew for pointers that aren't its multiples."""
_DTYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}


def send(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Doesn't wait: the copy is in the device's stream, and torch keeps the pinned memory until it is done."""
    starts, end = [], 0
    for array in arrays:
        starts.append(end)
        end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    staged = torch.empty(end, dtype=torch.uint8, pin_memory=device.type == "cuda")
    here = staged.numpy()
    for start, array in zip(starts, arrays, strict=True):
        here[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    there = staged.to(device, non_blocking=True)
    return [
        there[start : start + array.nbytes].view(_DTYPES[array.dtype]).view(array.shape)
        for start, array in zip(starts, arrays, strict=True)
    ]


def fetch(tensor: torch.Tensor) -> torch.Tensor:
    """Into pinned memory, without waiting: it is there once an event that is recorded behind it has come."""
    if tensor.device.type != "cuda":
        return tensor.clone()
    here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return here.copy_(tensor, non_blocking=True)


def current(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Makes it the thread's current device."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def new_event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    return event
