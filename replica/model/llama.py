"""Llama (Touvron et al. 2023), with the biases that later configs allow."""

from replica.model.config import ConfigFields
from replica.model.decoder import Architecture, Variant


def _variant(fields: ConfigFields) -> Variant:
    bias = fields.flag("attention_bias")
    return Variant(qkv_bias=bias, output_bias=bias, mlp_bias=fields.flag("mlp_bias"))


LLAMA = Architecture(
    defaults={"hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
    variant=_variant,
)
