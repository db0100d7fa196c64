"""From a config's architecture to the code that computes it; adding one is its file and a line here."""

from pathlib import Path
from typing import Protocol

import torch

from replica.attention.batch import AttentionBatch
from replica.cache.kv_pool import KVPool
from replica.model.config import ConfigFields, ModelConfig, architecture_of
from replica.model.decoder import Architecture, Decoder, DecoderConfig
from replica.model.llama import LLAMA
from replica.model.mistral import MISTRAL
from replica.model.packed import build_packed
from replica.model.qwen2 import QWEN2
from replica.model.qwen3 import QWEN3
from replica.model.weights import WeightFiles


class Model(Protocol):
    def forward(self, tokens: torch.Tensor, batch: AttentionBatch, pool: KVPool) -> torch.Tensor: ...
    def logits(self, hidden: torch.Tensor) -> torch.Tensor: ...


_ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": MISTRAL,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
}


def own_architecture(fields: ConfigFields) -> tuple[str, Architecture | None]:
    """The name of a config's architecture, and our own code for it if there is any. Raises ModelFolderError."""
    name = architecture_of(fields)
    return name, _ARCHITECTURES.get(name)


def own_names() -> list[str]:
    return list(_ARCHITECTURES)


def load_model(folder: Path, int8: bool) -> tuple[ModelConfig, Model]:
    """Our own code where we have the architecture, else transformers' with our attention. Raises ModelFolderError."""
    fields = ConfigFields.load(folder)
    architecture = own_architecture(fields)[1]
    if architecture is None:
        # Only now: importing transformers takes seconds.
        from replica.model.fallback import load_fallback

        return load_fallback(folder, fields, int8)
    fields = fields.with_defaults(architecture.defaults)
    config = DecoderConfig.read(fields, architecture)
    if int8:
        return config.model, build_packed(folder, lambda weights: Decoder(config, fields, weights))
    return config.model, Decoder(config, fields, WeightFiles(folder))
