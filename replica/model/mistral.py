"""Mistral (Jiang et al. 2023): Llama with a sliding window in every layer, or in none."""

from replica.model.config import ConfigFields
from replica.model.decoder import Architecture, Variant


def _variant(fields: ConfigFields) -> Variant:
    if fields.has("layer_types"):
        raise fields.error("layer_types of a Mistral model would be ignored; Ministral is the architecture with them")
    if not fields.has("sliding_window"):
        return Variant()
    return Variant(windows=(fields.integer("sliding_window"),) * fields.integer("num_hidden_layers"))


MISTRAL = Architecture(
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    variant=_variant,
)
