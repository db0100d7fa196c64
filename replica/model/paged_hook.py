"""Our paged attention as an attention function of transformers (its `AttentionInterface`).

Its models hand over rotated q, k and v of a layer. `observe` finds out, in one forward over made-up tokens, what the
layers are; `attend` is what serves: it writes K and V to the pages and attends to them.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function

import kernels
from replica.attention.batch import AttentionBatch
from replica.cache.kv_pool import KVPool
from replica.model.config import HEAD_DIM_STEP

PAGED = "ryokan_paged"
"""Has no mask function of its own, so transformers builds no masks for it."""
OBSERVED = "ryokan_observed"

_HARMLESS = {"dropout", "is_causal", "output_attentions", "position_ids", "sliding_window", "use_cache"}
"""Keyword arguments that change nothing here: the window is read off the mask, which is what eager attention obeys."""


class UnsupportedModel(ValueError):
    """It asks for what we don't do; the message says what."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int

    @property
    def padded_dim(self) -> int:
        return -(-max(self.key_dim, self.value_dim) // HEAD_DIM_STEP) * HEAD_DIM_STEP


class PagedHook:
    """Hangs on every module of one model, since transformers' functions are found by name in a global registry, and
    are given the module. One forward at a time."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.layers: dict[int, LayerShape] = {}
        self._batch: AttentionBatch | None = None
        self._pool: KVPool | None = None
        for module in model.modules():
            module.paged_hook = self  # type: ignore[assignment]  # a plain attribute, no submodule

    def start(self, batch: AttentionBatch, pool: KVPool) -> None:
        self._batch, self._pool = batch, pool

    def observe(self, index: int, key: torch.Tensor, value: torch.Tensor, window: int) -> None:
        if index in self.layers:
            raise UnsupportedModel(f"layer {index} attends twice")
        self.layers[index] = LayerShape(key.shape[1], key.shape[3], value.shape[3], window)

    def attend(
        self, index: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """q, k and v [1, heads, rows, dim] -> [1, rows, heads, dim]."""
        assert self._batch is not None and self._pool is not None
        batch, kv, layer = self._batch, self._pool.layers[index], self.layers[index]
        qkv = torch.cat([_rows(part, kv.head_dim) for part in (query, key, value)], dim=1)
        rows = len(qkv)
        # A rotation by nothing: this writes the pages in whatever layout they have.
        cos, sin = torch.ones(1, kv.head_dim // 2), torch.zeros(1, kv.head_dim // 2)
        nowhere = torch.zeros(rows, dtype=torch.int32)
        q = kernels.rope_write_kv(qkv.view(rows, -1), cos, sin, nowhere, batch.slots, kv, query.shape[1])
        out = kernels.paged_attention(q, kv, batch.page_table, batch.row_seq, batch.row_len, scale, layer.window)
        return out[None, :, :, : layer.value_dim]


def register() -> None:
    """Idempotent."""
    AttentionInterface.register(PAGED, _attend)
    AttentionInterface.register(OBSERVED, _observe)
    AttentionMaskInterface.register(OBSERVED, window_mask)


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return module.paged_hook.attend(module.layer_idx, query, key, value, scale), None


def _observe(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    unknown = sorted(name for name, argument in others.items() if argument is not None and name not in _HARMLESS)
    if unknown:
        raise UnsupportedModel(f"its attention takes {', '.join(unknown)}")
    if len(query) != 1 or query.shape[2] != key.shape[2] or query.shape[1] % key.shape[1]:
        raise UnsupportedModel(f"its attention is given q {list(query.shape)} and k {list(key.shape)}")
    if attention_mask is None or attention_mask.amin() != attention_mask.amax():
        raise UnsupportedModel("it builds its attention masks in a way of its own")
    window = int(attention_mask.flatten()[0])
    if window < 0:
        raise UnsupportedModel("its attention mask is neither causal nor a sliding window")
    module.paged_hook.observe(module.layer_idx, key, value, window)
    return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None


def window_mask(
    q_length: int, kv_length: int, config: Any, mask_function: Any = causal_mask_function, **_: Any
) -> torch.Tensor:
    """In place of a mask a tensor of its shape, filled with its window (0: none, -1: no window says it). Evaluated to
    the end of the context, where a mask of chunks or the like shows itself, and in a few other places."""
    context = getattr(config, "max_position_embeddings", None)
    if not isinstance(context, int):
        raise UnsupportedModel("its config names no max_position_embeddings")
    tokens, zero = torch.arange(context), torch.tensor(0)

    def seen(position: int) -> torch.Tensor:
        visible: torch.Tensor = mask_function(zero, zero, torch.tensor(position), tokens)
        return visible.expand(context)

    width = int(seen(context - 1).sum())
    window = 0 if width == context else width
    for position in {0, width - 1, width, context // 2, context - 1} & set(range(context)):
        if not torch.equal(seen(position), (tokens <= position) & (tokens > position - width)):
            window = -1
    return torch.full((1, 1, q_length, kv_length), float(window))


def _rows(part: torch.Tensor, dim: int) -> torch.Tensor:
    """[1, heads, rows, d] -> [rows, heads, dim], padded with zeros, which add nothing to a dot product."""
    return F.pad(part[0].transpose(0, 1), (0, dim - part.shape[3]))
