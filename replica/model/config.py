"""The shape of a model, and the fields of a config.json that say so."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replica.protocol.text import ModelFolderError

HEAD_DIM_STEP = 16
"""The attention kernels' head dimensions are its multiples, up to `kernels.base.MAX_HEAD_DIM`."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the engine needs to know of any model, whoever computes it."""

    architecture: str
    vocab_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    """Of a cached K or V, a multiple of HEAD_DIM_STEP."""
    max_context: int


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """One JSON object of a model's configuration.

    A getter takes null as absent, as transformers does; yet null overrides a default of `with_defaults`. Every getter
    raises ModelFolderError, naming file and field, where a value is absent without a default or of the wrong type.
    """

    source: Path
    values: Mapping[str, Any]

    @classmethod
    def load(cls, folder: Path) -> "ConfigFields":
        path = folder / "config.json"
        try:
            values = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ModelFolderError(f"{path}: {type(error).__name__}: {error}") from error
        if not isinstance(values, dict):
            raise ModelFolderError(f"{path} holds no JSON object")
        return cls(path, values)

    def with_defaults(self, defaults: Mapping[str, Any]) -> "ConfigFields":
        return ConfigFields(self.source, {**defaults, **self.values})

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"{name} must be a whole number, not {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(f"{name} must be a number, not {value!r}")
        return float(value)

    def numbers(self, name: str) -> list[float]:
        value = self._value(name, None)
        if not isinstance(value, list) or not all(isinstance(item, int | float) for item in value):
            raise self.error(f"{name} must be a list of numbers")
        return [float(item) for item in value]

    def texts(self, name: str) -> list[str]:
        value = self._value(name, None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(f"{name} must be a list of texts, not {value!r}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.error(f"{name} must be true or false, not {value!r}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.error(f"{name} must be a text, not {value!r}")
        return value

    def section(self, name: str) -> "ConfigFields":
        """A nested object; empty where it is absent."""
        value = self._value(name, {})
        if not isinstance(value, dict):
            raise self.error(f"{name} must be an object, not {value!r}")
        return ConfigFields(self.source, value)

    def error(self, message: str) -> ModelFolderError:
        return ModelFolderError(f"{self.source}: {message}")

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is None:
            value = default
        if value is None:
            raise self.error(f"{name} is missing")
        return value


def architecture_of(fields: ConfigFields) -> str:
    """The class that wrote the model, by which we choose ours. Raises ModelFolderError."""
    names = fields.texts("architectures")
    if len(names) != 1:
        raise fields.error(f"architectures must name one class, not {names}")
    return names[0]
