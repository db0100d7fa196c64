"""From a config's architecture to its class; adding one is its file and a line here."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch

from replica.attention.batch import AttentionBatch
from replica.cache.kv_pool import KVPool
from replica.model.config import ModelConfig
from replica.model.llama import Llama
from replica.model.weights import WeightFiles
from replica.protocol.text import ModelFolderError


class Model(Protocol):
    def forward(self, tokens: torch.Tensor, batch: AttentionBatch, pool: KVPool) -> torch.Tensor: ...
    def logits(self, hidden: torch.Tensor) -> torch.Tensor: ...


_ARCHITECTURES: dict[str, Callable[[ModelConfig, WeightFiles, bool], Model]] = {
    "LlamaForCausalLM": Llama,
}


def load_model(folder: Path, int8: bool) -> tuple[ModelConfig, Model]:
    """Raises ModelFolderError."""
    config = ModelConfig.load(folder)
    if config.architecture not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise ModelFolderError(f"{folder}: architecture {config.architecture} is not supported (known: {known})")
    return config, _ARCHITECTURES[config.architecture](config, WeightFiles(folder), int8)
