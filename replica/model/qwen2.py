"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biases on q, k and v, and sliding windows in the upper layers."""

from replica.model.config import ConfigFields
from replica.model.decoder import Architecture, Variant


def layer_windows(fields: ConfigFields) -> tuple[int, ...]:
    """Named layer by layer in `layer_types`, or all from `max_window_layers` up; none unless `use_sliding_window`."""
    layers = fields.integer("num_hidden_layers")
    window = fields.integer("sliding_window", 0) if fields.flag("use_sliding_window") else 0
    if not fields.has("layer_types"):
        full = fields.integer("max_window_layers")
        return tuple(window if index >= full else 0 for index in range(layers))
    types = fields.texts("layer_types")
    if len(types) != layers or not set(types) <= {"full_attention", "sliding_attention"}:
        raise fields.error(f"layer_types must hold {layers} times full_attention or sliding_attention, not {types}")
    if "sliding_attention" in types and not window:
        raise fields.error("layer_types has sliding_attention, but use_sliding_window or sliding_window is not set")
    return tuple(window if kind == "sliding_attention" else 0 for kind in types)


def _variant(fields: ConfigFields) -> Variant:
    return Variant(qkv_bias=True, windows=layer_windows(fields))


QWEN2 = Architecture(
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32_768,
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    variant=_variant,
)
