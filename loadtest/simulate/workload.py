"""What a workload is, and what it is made for."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loadtest.simulate.prompts import Request


@dataclass(frozen=True, slots=True)
class Setting:
    """What a workload is made for."""

    seed: int
    rate_scale: float
    replicas: int
    kv_tokens: int
    """Real ones, of each replica."""
    traces: Path | None = None
    limit: int | None = None
    """Requests at most."""


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    requests: list[Request]
    stride: int
    """Real tokens that a token of a prompt stands for."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A workload that can be made, with what it was thought for."""

    make: Callable[[Setting], Workload]
    meaning: str
    profile: str = "h100-qwen3-32b"
    replicas: int = 8
    rate_scale: float = 1.0
    """Near the fleet's knee, but not past it."""
    prefill_only_rate_scale: float = 1.0
    kv_tokens: int | None = None
    """None: the profile's."""
