"""Rotary positions (Su et al. 2021) and the ways to stretch them beyond the context a model was trained on.

Each kind gives the frequencies that transformers' `modeling_rope_utils` gives, and a factor on cos and sin. Our cache
keeps rotated keys by position, so a frequency can't depend on how long a sequence has grown:

- `dynamic` (NTK) changes its frequencies only beyond `max_position_embeddings`, and that is where we end: within it
  they are the plain ones.
- `longrope` has a set of factors for short sequences and one for long ones. transformers switches when a sequence
  outgrows the original context, and leaves the keys that are already cached as they were. Here the model's
  `max_position_embeddings` decides once: the long set if it exceeds the original context, else the short one. To serve
  such a model with its short set, set `max_position_embeddings` to the original context.
"""

import math
from collections.abc import Callable

import torch

from replica.model.config import ConfigFields

Frequencies = tuple[torch.Tensor, float]
"""Radians a position for each pair of dimensions, fp64; and the factor on cos and sin."""


def rotary_tables(fields: ConfigFields, head_dim: int, max_context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, each [positions, head_dim / 2], of a model's config. Raises ModelFolderError."""
    rope = rope_fields(fields)
    if any(isinstance(value, dict) for value in rope.values.values()):
        raise fields.error("rope scaling that differs layer by layer is not supported for this architecture")
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind not in _KINDS:
        raise fields.error(f"rope scaling of type {kind!r} is not supported (known: {', '.join(_KINDS)})")
    if rope.number("partial_rotary_factor", 1.0) != 1:
        raise fields.error("rope over a part of a head (partial_rotary_factor) is not supported for this architecture")
    frequencies, factor = _KINDS[kind](rope, head_dim, max_context)
    angles = torch.outer(torch.arange(max_context, dtype=torch.float64), frequencies)
    return (angles.cos() * factor).float(), (angles.sin() * factor).float()


def rope_fields(fields: ConfigFields) -> ConfigFields:
    """Newer configs keep all in `rope_parameters`, older ones theta beside a `rope_scaling`; where both are, the latter
    wins, as in transformers."""
    found = fields.section("rope_scaling" if fields.values.get("rope_scaling") else "rope_parameters")
    outer = ("rope_theta", "partial_rotary_factor")
    rope = {name: fields.values[name] for name in outer if fields.has(name)} | dict(found.values)
    # Phi3 and some others keep the original context outside, and there it has precedence.
    original = fields.values.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
    rope["original_max_position_embeddings"] = original or fields.integer("max_position_embeddings")
    return ConfigFields(fields.source, rope)


def _default(rope: ConfigFields, dim: int, context: int) -> Frequencies:
    return 1 / _wavelengths(rope.number("rope_theta", 10_000.0), dim), 1.0


def _linear(rope: ConfigFields, dim: int, context: int) -> Frequencies:
    return _default(rope, dim, context)[0] / rope.number("factor"), 1.0


def _llama3(rope: ConfigFields, dim: int, context: int) -> Frequencies:
    """Slow frequencies are divided by the factor, fast ones stay, those between are blended."""
    plain = _default(rope, dim, context)[0]
    factor, low, high = rope.number("factor"), rope.number("low_freq_factor"), rope.number("high_freq_factor")
    turns = rope.integer("original_max_position_embeddings") * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * (kept + (1 - kept) / factor), 1.0


def _yarn(rope: ConfigFields, dim: int, context: int) -> Frequencies:
    """Peng et al. 2023: dimensions that turn often stay, those that turn rarely are divided by the factor."""
    theta, original = rope.number("rope_theta", 10_000.0), rope.integer("original_max_position_embeddings")
    factor = rope.number("factor", context / original)

    def dimension(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    # Zero counts as absent, as in transformers.
    low, high = dimension(rope.number("beta_fast", 32) or 32), dimension(rope.number("beta_slow", 1) or 1)
    if rope.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = high - low or 0.001
    divided = ((torch.arange(dim // 2, dtype=torch.float64) - low) / span).clamp(0, 1)
    plain = 1 / _wavelengths(theta, dim)
    return plain * (1 - divided + divided / factor), _yarn_attention_factor(rope, factor)


def _yarn_attention_factor(rope: ConfigFields, factor: float) -> float:
    if rope.has("attention_factor"):
        return rope.number("attention_factor")

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1

    weight, weight_all = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    return scale(weight) / scale(weight_all) if weight and weight_all else scale(1)


def _longrope(rope: ConfigFields, dim: int, context: int) -> Frequencies:
    """Ding et al. 2024: a searched factor for each pair of dimensions."""
    original = rope.integer("original_max_position_embeddings")
    name = "long_factor" if context > original else "short_factor"
    factors = rope.numbers(name)
    if len(factors) != dim // 2:
        raise rope.error(f"rope scaling: {name} must hold {dim // 2} numbers, not {len(factors)}")
    frequencies = 1 / (torch.tensor(factors, dtype=torch.float64) * _wavelengths(rope.number("rope_theta", 1e4), dim))
    factor = rope.number("factor", context / original)
    stretched = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return frequencies, rope.number("attention_factor", stretched)


def _wavelengths(theta: float, dim: int) -> torch.Tensor:
    return theta ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)


_KINDS: dict[str, Callable[[ConfigFields, int, int], Frequencies]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _default,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
}
