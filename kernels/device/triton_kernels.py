"""All kernels in Triton, under the names of the contract."""

from kernels.device.activation import silu_mul
from kernels.device.cascade import cascade_attention
from kernels.device.decode import decode_attention
from kernels.device.norm import add_rms_norm, norm_heads, rms_norm
from kernels.device.prefill import prefill_attention
from kernels.device.rope import rope_write_kv
from kernels.device.sample import argmax, draw

__all__ = [
    "add_rms_norm",
    "argmax",
    "cascade_attention",
    "decode_attention",
    "draw",
    "norm_heads",
    "prefill_attention",
    "rms_norm",
    "rope_write_kv",
    "silu_mul",
]
