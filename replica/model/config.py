"""The shape of a model, from its config.json."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replica.protocol.text import ModelFolderError


@dataclass(frozen=True, slots=True)
class ModelConfig:
    architecture: str
    vocab_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context: int
    rms_norm_eps: float
    rope_theta: float
    tied_embeddings: bool

    @classmethod
    def load(cls, folder: Path) -> "ModelConfig":
        """Raises ModelFolderError, also for variants that would silently compute something else."""
        try:
            fields: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
            heads = int(fields["num_attention_heads"])
            rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
            config = cls(
                architecture=str(fields["architectures"][0]),
                vocab_size=int(fields["vocab_size"]),
                num_layers=int(fields["num_hidden_layers"]),
                num_heads=heads,
                num_kv_heads=int(fields.get("num_key_value_heads") or heads),
                head_dim=int(fields.get("head_dim") or fields["hidden_size"] // heads),
                max_context=int(fields["max_position_embeddings"]),
                rms_norm_eps=float(fields["rms_norm_eps"]),
                rope_theta=float(rope.get("rope_theta") or fields.get("rope_theta") or 10_000.0),
                tied_embeddings=bool(fields.get("tie_word_embeddings", False)),
            )
        except (OSError, KeyError, IndexError, TypeError, ValueError) as error:
            raise ModelFolderError(f"{folder / 'config.json'}: {type(error).__name__}: {error}") from error
        kind = rope.get("rope_type") or rope.get("type") or "default"
        unsupported = {
            "rope scaling": kind != "default",
            "attention bias": bool(fields.get("attention_bias")),
            "mlp bias": bool(fields.get("mlp_bias")),
            "activation": fields.get("hidden_act", "silu") != "silu",
        }
        for what, is_so in unsupported.items():
            if is_so:
                raise ModelFolderError(f"{folder}: this model's {what} is not supported yet")
        return config
