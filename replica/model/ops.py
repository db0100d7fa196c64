"""The elementwise kernels that a decoder needs besides its linear maps: those of a CPU, and the contract for others."""

from typing import Protocol

from torch import Tensor

import kernels


class Ops(Protocol):
    """`kernels.device` is one as well."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def silu_mul(self, gate_up: Tensor) -> Tensor: ...

    def norm_heads(
        self, qkv: Tensor, q_norm: Tensor, k_norm: Tensor, eps: float, num_q_heads: int, num_kv_heads: int
    ) -> None:
        """RMS norm of each head of q and of k in qkv [T, (Hq + 2 Hkv) D], in place."""
        ...


class CpuOps:
    rms_norm = staticmethod(kernels.rms_norm)
    add_rms_norm = staticmethod(kernels.add_rms_norm)
    silu_mul = staticmethod(kernels.silu_mul)

    @staticmethod
    def norm_heads(
        qkv: Tensor, q_norm: Tensor, k_norm: Tensor, eps: float, num_q_heads: int, num_kv_heads: int
    ) -> None:
        dim = len(q_norm)
        heads = qkv.view(len(qkv), -1, dim)
        for part, weight in ((heads[:, :num_q_heads], q_norm), (heads[:, num_q_heads:][:, :num_kv_heads], k_norm)):
            part.copy_(kernels.rms_norm(part.reshape(-1, dim), weight, eps).view(part.shape))


CPU_OPS: Ops = CpuOps()
