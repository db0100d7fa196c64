"""A model of random weights that 2 and 3 ranks can share, with every bias there is, and a vocabulary that neither
divides."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.tiny_model import write_tiny_model

VOCABULARY = 301
LAYERS, HIDDEN, HEADS, KV_HEADS, DIM, FFN = 2, 48, 12, 6, 16, 72


def write_shared_model(folder: Path, seed: int = 0) -> None:
    """Tokenizer and all else are the tiny model's."""
    write_tiny_model(folder)
    path = folder / "config.json"
    shape = {
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "intermediate_size": FFN,
        "vocab_size": VOCABULARY,
        "attention_bias": True,
        "mlp_bias": True,
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | shape))
    generator = torch.Generator().manual_seed(seed)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator).mul(float(size[-1]) ** -0.5)

    weights = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN, generator=generator),
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": random(VOCABULARY, HIDDEN) * 4,
    }
    maps = {
        "self_attn.q_proj": (HEADS * DIM, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * DIM, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * DIM),
        "mlp.gate_proj": (FFN, HIDDEN),
        "mlp.up_proj": (FFN, HIDDEN),
        "mlp.down_proj": (HIDDEN, FFN),
    }
    for index in range(LAYERS):
        layer = f"model.layers.{index}."
        for name, (rows, columns) in maps.items():
            weights[f"{layer}{name}.weight"] = random(rows, columns)
            weights[f"{layer}{name}.bias"] = random(rows) * 2
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{layer}{norm}.weight"] = torch.ones(HIDDEN)
    save_file(weights, folder / "model.safetensors")
