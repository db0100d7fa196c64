"""Flags of engines that only keep a model's time, for the commands that start replicas."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from replica.config import ConfigError, TimingConfig


class EngineKind(StrEnum):
    TORCH = "torch"
    TIMING = "timing"


Engine = Annotated[
    EngineKind,
    typer.Option(
        help="torch computes the model. timing only takes as long as a profile says, and answers with made-up text, "
        "the same for the same prompt: for trying clients and gateways without a GPU."
    ),
]
ProfileName = Annotated[
    str | None, typer.Option("--profile", help="With engine timing: whose time to keep; a name or a JSON file.")
]
KvTokens = Annotated[
    int | None, typer.Option(help="With engine timing: tokens that the KV memory holds. Default: the profile's.")
]
TimeScale = Annotated[
    float | None, typer.Option(help="With engine timing: 0.1 is ten times as quick as the profile. Default: 1.")
]


def timing_config(
    engine: EngineKind,
    profile: str | None,
    kv_tokens: int | None,
    time_scale: float | None,
    kv_memory_gib: float | None,
) -> TimingConfig | None:
    """None for an engine that computes. Raises ConfigError."""
    flags = {"profile": profile, "kv_tokens": kv_tokens, "time_scale": time_scale}
    if engine is EngineKind.TORCH:
        for name, value in flags.items():
            if value is not None:
                raise ConfigError(f"{name}: goes with --engine timing")
        return None
    from replica.profile_file import ProfileError, read_profile
    from replica.profiles import PROFILES

    if kv_memory_gib is not None:
        raise ConfigError("kv_memory_gib: with --engine timing KV memory is counted in tokens: kv_tokens")
    if profile is None:
        raise ConfigError(f"profile: --engine timing needs one: {', '.join(sorted(PROFILES))}, or a JSON file")
    try:
        return TimingConfig(read_profile(profile), kv_tokens, 1.0 if time_scale is None else time_scale)
    except ProfileError as error:
        raise ConfigError(f"profile: {error}") from error


def no_device(device: str) -> str:
    """Of an engine that computes nothing. Raises ConfigError."""
    if device not in ("auto", "cpu"):
        raise ConfigError(f"device: --engine timing computes nothing, so {device} would have no use")
    return "cpu"


def flags_of(profile: str, kv_tokens: int | None, time_scale: float | None) -> dict[str, str]:
    """The same, for a replica that another process starts."""
    path = Path(profile)
    values = {
        "--engine": EngineKind.TIMING,
        "--profile": str(path.resolve()) if path.is_file() else profile,
        "--kv-tokens": kv_tokens,
        "--time-scale": time_scale,
    }
    return {name: str(value) for name, value in values.items() if value is not None}
