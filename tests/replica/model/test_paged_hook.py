from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

from replica.model.paged_hook import LayerShape, window_mask


@pytest.mark.parametrize(
    ("mask_function", "window"),
    [
        (causal_mask_function, 0),
        (sliding_window_causal_mask_function(1), 1),
        (sliding_window_causal_mask_function(20), 20),
        (sliding_window_causal_mask_function(99), 99),
        (sliding_window_causal_mask_function(100), 0),
        (sliding_window_causal_mask_function(500), 0),
        (bidirectional_mask_function, -1),
        (chunked_causal_mask_function(16, torch.zeros(1, dtype=torch.int64)), -1),
        (chunked_causal_mask_function(30, torch.zeros(1, dtype=torch.int64)), -1),
        (chunked_causal_mask_function(100, torch.zeros(1, dtype=torch.int64)), 0),
    ],
)
def test_a_mask_is_read_as_its_window(mask_function: Any, window: int) -> None:
    mask = window_mask(3, 5, SimpleNamespace(max_position_embeddings=100), mask_function)
    assert mask.shape == (1, 1, 3, 5)
    assert set(mask.flatten().tolist()) == {window}


@pytest.mark.parametrize(("key", "value", "padded"), [(16, 16, 16), (24, 24, 32), (192, 128, 192), (8, 80, 80)])
def test_heads_are_padded_to_the_kernels_step(key: int, value: int, padded: int) -> None:
    assert LayerShape(1, key, value, 0).padded_dim == padded
