"""Weights of a folder in Hugging Face format: safetensors, whole or in shards, read one tensor at a time."""

import json
from pathlib import Path

import torch
from safetensors import safe_open

from replica.protocol.text import ModelFolderError


class WeightFiles:
    """Each tensor is read when asked for, as fp32, so a model is never held twice."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelFolderError."""
        self._folder = folder
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            self._file_of: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
        elif (folder / "model.safetensors").is_file():
            with safe_open(folder / "model.safetensors", framework="pt") as file:
                self._file_of = dict.fromkeys(file.keys(), "model.safetensors")
        else:
            raise ModelFolderError(f"{folder} has no model.safetensors")

    def load(self, name: str) -> torch.Tensor:
        """Raises ModelFolderError."""
        if name not in self._file_of:
            raise ModelFolderError(f"{self._folder} has no weight {name}")
        with safe_open(self._folder / self._file_of[name], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor.float().contiguous()
