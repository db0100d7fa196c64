"""Settings of a replica that computes on a GPU, and how they are told from flags. Imports no torch unless asked whether
there is a GPU."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from replica.config_error import ConfigError

DTYPES = ("bf16", "fp16", "fp32")
KERNELS = ("auto", "triton", "torch")
TENSORS_ON_CPU = "torch-cpu"
_DEVICE = re.compile(r"cuda(:\d+)?|torch-cpu")
_NVIDIA = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""One of them is there wherever a driver is: /dev/dxg under WSL."""


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    device: str = "cuda"
    """cuda, cuda:N, or torch-cpu: the same path on a CPU's tensors, slow, for tests and for finding errors."""
    dtype: str = "bf16"
    """Of weights and activations."""
    kv: str | None = None
    """Of the KV cache: None: as dtype; or fp8, with a scale for each token and head."""
    gpu_memory_utilization: float = 0.9
    """Of the card's memory, what weights, a step and KV blocks may take together."""
    kernels: str = "auto"
    """triton, torch (slow, the reference), or auto: triton where it runs."""
    cuda_graphs: bool = True
    tensor_parallel: int = 1
    """Cards that compute the model together, one process each: those that are visible, from cuda:0."""

    def __post_init__(self) -> None:
        if not _DEVICE.fullmatch(self.device):
            raise ConfigError(f"device: {self.device!r} is none of auto, cpu, cuda, cuda:N")
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype: {self.dtype!r} is none of {', '.join(DTYPES)}")
        if self.kv not in (None, self.dtype, "fp8"):
            raise ConfigError(f"kv: {self.kv!r} is neither {self.dtype} (as --dtype) nor fp8")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(f"gpu_memory_utilization: {self.gpu_memory_utilization} is not above 0 and at most 1")
        if self.tensor_parallel < 1:
            raise ConfigError("tensor_parallel must be at least 1")
        if self.tensor_parallel > 1 and self.device.startswith("cuda:"):
            raise ConfigError(
                f"device: {self.device} is one card, and tensor_parallel wants {self.tensor_parallel}; give cuda, and "
                "choose the cards with CUDA_VISIBLE_DEVICES"
            )
        if self.kernels not in KERNELS:
            raise ConfigError(f"device_kernels: {self.kernels!r} is none of {', '.join(KERNELS)}")

    @property
    def kv_dtype(self) -> Literal["bf16", "fp16", "fp32", "fp8"]:
        return self.kv or self.dtype  # type: ignore[return-value]  # checked at the start

    @property
    def torch_device(self) -> str:
        if self.device == TENSORS_ON_CPU:
            return "cpu"
        return "cuda:0" if self.device == "cuda" else self.device

    def of_rank(self, rank: int) -> "DeviceConfig":
        """With the card that is the rank's own."""
        return replace(self, device=f"cuda:{rank}", tensor_parallel=1) if self.device == "cuda" else self


def device_config(
    device: str,
    weights: str | None,
    dtype: str | None,
    kv: str | None,
    gpu_memory_utilization: float | None,
    kernels: str | None,
    cuda_graphs: bool | None,
    tensor_parallel: int | None = None,
) -> DeviceConfig | None:
    """None for a replica that computes on the CPU. What isn't given is None. Raises ConfigError.

    `auto` takes a GPU where torch has one, unless settings are given that only a CPU has: weights, or kv int8.
    """
    wants_cpu = weights is not None or kv == "int8"
    if device == "cpu" or (device == "auto" and (wants_cpu or not has_gpu())):
        given = {
            "dtype": dtype,
            "gpu_memory_utilization": gpu_memory_utilization,
            "device_kernels": kernels,
            "cuda_graphs": cuda_graphs,
            "tensor_parallel": tensor_parallel,
        }
        for name, value in given.items():
            if value is not None:
                raise ConfigError(f"{name}: goes with a GPU, and this replica computes on the CPU (device)")
        if kv == "fp8":
            raise ConfigError("kv: fp8 goes with a GPU; on a CPU it is int8 or fp32")
        return None
    if weights is not None:
        raise ConfigError(f"weights: {weights} goes with a CPU; on a GPU give dtype: {', '.join(DTYPES)}")
    if kv == "int8":
        raise ConfigError("kv: int8 goes with a CPU; on a GPU it is as dtype, or fp8")
    defaults = DeviceConfig()
    return DeviceConfig(
        device="cuda" if device == "auto" else device,
        dtype=dtype or defaults.dtype,
        kv=kv,
        gpu_memory_utilization=(
            defaults.gpu_memory_utilization if gpu_memory_utilization is None else gpu_memory_utilization
        ),
        kernels=kernels or defaults.kernels,
        cuda_graphs=defaults.cuda_graphs if cuda_graphs is None else cuda_graphs,
        tensor_parallel=defaults.tensor_parallel if tensor_parallel is None else tensor_parallel,
    )


def has_gpu() -> bool:
    """Whether torch can compute on one. It is loaded only where a driver is."""
    if not any(path.exists() for path in _NVIDIA):
        return False
    import torch

    return torch.cuda.is_available()
