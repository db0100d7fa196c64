"""Weights of a folder in Hugging Face format: safetensors, whole or in shards, read one tensor at a time."""

import json
from collections.abc import Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open

from replica.model.layers import Linear, make_linear
from replica.protocol.text import ModelFolderError


class Split(Enum):
    """How ranks that compute one model together (tensor parallelism) share a weight. Alone, one has all of it."""

    NONE = auto()
    """Each has all of it."""
    ROWS = auto()
    """Each has its share of each weight's rows: a linear map's outputs, its own heads or hidden units, stay apart."""
    COLUMNS = auto()
    """Each has its share of the columns: what comes in is its own, and the products are summed over all ranks."""
    VOCABULARY = auto()
    """Each has its share of the rows, and the outputs of all ranks are put side by side."""


class Weights(Protocol):
    """What an architecture is built from. It asks by name and learns neither the format nor the precision."""

    def load(self, name: str, split: Split = Split.NONE) -> torch.Tensor:
        """fp32 on a CPU. Raises ModelFolderError."""
        ...

    def linear(self, names: Sequence[str], bias: torch.Tensor | None = None, split: Split = Split.NONE) -> Linear:
        """Of these weights' rows, one weight's below the other's. The bias is as the outputs are. Raises
        ModelFolderError."""
        ...


class WeightFiles:
    """Each tensor is read when asked for, as fp32, so a model is never held twice; one that is fp32 in its file is
    mapped."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelFolderError."""
        self.folder = folder
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            self._file_of: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
        elif (folder / "model.safetensors").is_file():
            with safe_open(folder / "model.safetensors", framework="pt") as file:
                self._file_of = dict.fromkeys(file.keys(), "model.safetensors")
        else:
            raise ModelFolderError(f"{folder} has no model.safetensors")

    @property
    def files(self) -> list[Path]:
        return [self.folder / name for name in sorted(set(self._file_of.values()))]

    def load(self, name: str, split: Split = Split.NONE) -> torch.Tensor:
        return self.load_stored(name).float().contiguous()

    def load_stored(self, name: str) -> torch.Tensor:
        """As the file has it. Raises ModelFolderError."""
        with safe_open(self.path_of(name), framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor

    def path_of(self, name: str) -> Path:
        """The file that holds it. Raises ModelFolderError."""
        if name not in self._file_of:
            raise ModelFolderError(f"{self.folder} has no weight {name}")
        return self.folder / self._file_of[name]

    def linear(self, names: Sequence[str], bias: torch.Tensor | None = None, split: Split = Split.NONE) -> Linear:
        return make_linear(self.load_rows(names), int8=False, bias=bias)

    def load_rows(self, names: Sequence[str]) -> torch.Tensor:
        """One below the other; a lone weight isn't copied."""
        weights = [self.load(name) for name in names]
        return weights[0] if len(weights) == 1 else torch.cat(weights)
