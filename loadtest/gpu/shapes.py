"""Models to time: the real ones' shapes, with random weights, since how long a step takes doesn't depend on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import kernels.device
from replica.model.config import ConfigFields
from replica.model.decoder import Decoder, DecoderConfig
from replica.model.layers import Linear
from replica.model.llama import LLAMA
from replica.model.weights import Split

Fields = dict[str, Any]

_LLAMA: Fields = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
}


def fields(
    hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, head_dim: int, vocabulary: int, tied: bool
) -> Fields:
    return _LLAMA | {
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 36864,
    }


SMOLLM2_135M = fields(576, 1536, 30, 9, 3, 64, 49152, tied=True)
LLAMA_8B = fields(4096, 14336, 32, 32, 8, 128, 128256, tied=False)
TINY = fields(96, 128, 2, 3, 1, 32, 300, tied=True) | {"max_position_embeddings": 512}
TINY_8B = fields(128, 192, 2, 4, 2, 32, 320, tied=False) | {"max_position_embeddings": 512}


@dataclass(frozen=True, slots=True)
class TimedModel:
    config: DecoderConfig
    model: Decoder
    read_bytes: int
    """Of weights, in each step: all but the rows of an embedding that isn't the head as well."""
    parameters: int
    """Of linear maps: a token takes two operations for each."""


class RandomWeights:
    """Implements `Weights`: as large as the config says."""

    def __init__(self, config: Fields, device: torch.device, dtype: torch.dtype) -> None:
        self._config = config
        self._device = device
        self._dtype = dtype
        self._held: dict[str, torch.Tensor] = {}
        self.read_bytes = 0
        self.parameters = 0

    def load(self, name: str, split: Split = Split.NONE) -> torch.Tensor:
        if name not in self._held:
            shape = self._shape(name)
            made = torch.empty(shape, dtype=self._dtype, device=self._device)
            self._held[name] = made.fill_(1) if len(shape) == 1 else made.normal_(std=shape[-1] ** -0.5)
        return self._held[name]

    def linear(self, names: Sequence[str], bias: torch.Tensor | None = None, split: Split = Split.NONE) -> Linear:
        # Held nowhere else but for a tied embedding: 8B weights are made once.
        parts = [self.load(name) if "embed" in name else self._made(name) for name in names]
        weight = parts[0] if len(parts) == 1 else torch.cat(parts)
        self.read_bytes += weight.nbytes
        self.parameters += weight.numel()
        return lambda x: F.linear(x, weight, bias)

    def _made(self, name: str) -> torch.Tensor:
        made = self.load(name)
        del self._held[name]
        return made

    def _shape(self, name: str) -> tuple[int, ...]:
        config = self._config
        hidden, ffn, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
        q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
        matrices = {
            "embed_tokens": (config["vocab_size"], hidden),
            "lm_head": (config["vocab_size"], hidden),
            "q_proj": (q, hidden),
            "k_proj": (kv, hidden),
            "v_proj": (kv, hidden),
            "o_proj": (hidden, q),
            "gate_proj": (ffn, hidden),
            "up_proj": (ffn, hidden),
            "down_proj": (hidden, ffn),
        }
        return matrices.get(name.split(".")[-2], (hidden,))


def random_model(config: Fields, device: torch.device, dtype: torch.dtype) -> TimedModel:
    found = ConfigFields(Path("random"), config).with_defaults(LLAMA.defaults)
    decoder_config = DecoderConfig.read(found, LLAMA)
    weights = RandomWeights(config, device, dtype)
    model = Decoder(decoder_config, found, weights, kernels.device)
    return TimedModel(decoder_config, model, weights.read_bytes, weights.parameters)
