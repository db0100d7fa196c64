"""Qwen3 (Yang et al. 2025): Llama with an RMS norm of every head of q and k, and Qwen2's windows."""

from replica.model.config import ConfigFields
from replica.model.decoder import Architecture, Variant
from replica.model.qwen2 import QWEN2, layer_windows


def _variant(fields: ConfigFields) -> Variant:
    bias = fields.flag("attention_bias")
    return Variant(qkv_bias=bias, output_bias=bias, qk_norm=True, windows=layer_windows(fields))


QWEN3 = Architecture(defaults={**QWEN2.defaults, "head_dim": 128}, variant=_variant)
