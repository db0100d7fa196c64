"""The KV cache on a device, and how many pages there is room for."""

from dataclasses import dataclass

import torch

from kernels.device.base import DeviceKVDtype, DevicePages, device_page_bytes
from replica.config_error import ConfigError
from replica.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class DevicePool:
    layers: tuple[DevicePages, ...]

    @classmethod
    def allocate(cls, config: ModelConfig, num_pages: int, dtype: DeviceKVDtype, device: torch.device) -> "DevicePool":
        heads, dim = config.num_kv_heads, config.head_dim
        return cls(tuple(DevicePages.allocate(dtype, num_pages, heads, dim, device) for _ in range(config.num_layers)))


def pool_page_bytes(config: ModelConfig, dtype: DeviceKVDtype) -> int:
    """Of one page over all layers."""
    return config.num_layers * device_page_bytes(dtype, config.num_kv_heads, config.head_dim)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes, after a step of the largest size."""

    total: int
    others: int
    """What is taken by others, or by what isn't a tensor: other processes, the driver, libraries."""
    peak: int
    """The most that our tensors took at a time, weights included."""
    reserve: int
    """For what comes later: graphs, and what the allocator can't use."""


def pages_that_fit(memory: DeviceMemory, utilization: float, page_bytes: int) -> int:
    """Raises ConfigError."""
    room = int(memory.total * utilization) - memory.others - memory.peak - memory.reserve
    pages = room // page_bytes
    if pages < 2:
        gib = 2**30
        raise ConfigError(
            f"gpu_memory_utilization: {utilization:g} of {memory.total / gib:.1f} GiB leave no room for KV blocks: "
            f"others take {memory.others / gib:.1f}, weights and a step {memory.peak / gib:.1f}, "
            f"{memory.reserve / gib:.1f} are kept back"
        )
    return pages
