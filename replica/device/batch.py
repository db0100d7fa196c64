"""What attention on a device needs to know of a step: decodes go one way, longer chunks another."""

from dataclasses import dataclass

import torch

import kernels.device
from kernels.device.base import DevicePages, PrefixGroups


@dataclass(frozen=True, slots=True)
class Decodes:
    """The first rows, one a sequence; see `kernels.device.decode_attention`. One with `lens` 0 and slot -1 is padding:
    it writes nothing and attends to nothing."""

    page_table: torch.Tensor
    lens: torch.Tensor
    groups: PrefixGroups | None = None

    def attend(self, q: torch.Tensor, kv: DevicePages, scale: float, window: int) -> torch.Tensor:
        if self.groups is not None and window == 0:
            return kernels.device.cascade_attention(q, kv, self.page_table, self.lens, self.groups, scale)
        return kernels.device.decode_attention(q, kv, self.page_table, self.lens, scale, window)


@dataclass(frozen=True, slots=True)
class Prefills:
    """The rows after them; see `kernels.device.prefill_attention`."""

    page_table: torch.Tensor
    lens: torch.Tensor
    query_start: torch.Tensor
    max_query: int

    def attend(self, q: torch.Tensor, kv: DevicePages, scale: float, window: int) -> torch.Tensor:
        return kernels.device.prefill_attention(
            q, kv, self.page_table, self.query_start, self.lens, self.max_query, scale, window
        )


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """Implements `replica.attention.batch.Attention`."""

    positions: torch.Tensor
    slots: torch.Tensor
    decodes: Decodes | None
    prefills: Prefills | None

    def attend(
        self,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        kv: DevicePages,
        num_q_heads: int,
        scale: float,
        window: int,
    ) -> torch.Tensor:
        # All of it, before anything is read: a sequence's chunk sees its own rows.
        q = kernels.device.rope_write_kv(qkv, cos, sin, self.positions, self.slots, kv, num_q_heads)
        if self.prefills is None:
            assert self.decodes is not None
            return self.decodes.attend(q, kv, scale, window)
        if self.decodes is None:
            return self.prefills.attend(q, kv, scale, window)
        first = len(self.decodes.lens)
        decoded = self.decodes.attend(q[:first], kv, scale, window)
        return torch.cat((decoded, self.prefills.attend(q[first:], kv, scale, window)))
