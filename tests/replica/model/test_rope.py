"""The tables against those that transformers' Llama makes of the same config."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from replica.model.config import ConfigFields
from replica.model.rope import rotary_tables
from replica.protocol.text import ModelFolderError
from tests.tiny_model import TINY

CONTEXT, DIM = 512, 32
LONGROPE = {"short_factor": [1.1] * 16, "long_factor": [1 + index / 4 for index in range(16)]}


def fields_of(values: dict[str, Any]) -> ConfigFields:
    return ConfigFields(Path("config.json"), {"max_position_embeddings": CONTEXT, **values})


def theirs(values: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the whole context at once, so that what transformers adapts to a sequence's length is adapted to the end."""
    config = transformers.LlamaConfig(**TINY | {"head_dim": DIM}, **values)
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(CONTEXT)[None])
    return cos[0, :, : DIM // 2], sin[0, :, : DIM // 2]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"rope_theta": 5e5},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_theta": 300.0, "rope_scaling": {"type": "linear", "factor": 2.5}},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 2.0, "attention_factor": 1.5}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 8, "beta_slow": 2, "truncate": False}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.2}},
        {
            "rope_scaling": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            }
        },
        {"rope_scaling": {"rope_type": "longrope", "original_max_position_embeddings": 128, **LONGROPE}},
        {"rope_scaling": {"rope_type": "longrope", "attention_factor": 1.3, **LONGROPE}},
        {"original_max_position_embeddings": 64, "rope_scaling": {"rope_type": "longrope", **LONGROPE}},
    ],
)  # fmt: skip
def test_tables_equal_transformers(values: dict[str, Any]) -> None:
    cos, sin = rotary_tables(fields_of(values), DIM, CONTEXT)
    expected_cos, expected_sin = theirs(values)
    # Their angles are of fp32: at 512 radians that is 3e-5.
    torch.testing.assert_close(cos, expected_cos, atol=2e-4, rtol=0)
    torch.testing.assert_close(sin, expected_sin, atol=2e-4, rtol=0)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"rope_scaling": {"rope_type": "mrope"}}, "'mrope'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": "four"}}, "factor must be a number"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}}, "16 numbers"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "layer by layer"),
        ({"rope_scaling": "yarn"}, "rope_scaling must be an object"),
    ],
)
def test_what_is_not_known_is_refused_by_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelFolderError, match=named):
        rotary_tables(fields_of(values), DIM, CONTEXT)
