"""The tensors behind the pages.

K is kept transposed within a page, so that one dimension of its 16 tokens is one AVX-512 register.
"""

from dataclasses import dataclass

import torch

from replica.model.config import ModelConfig
from replica.protocol.hashing import BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class KVPool:
    keys: tuple[torch.Tensor, ...]
    """A layer: [pages, kv_heads, head_dim, 16], fp32."""
    values: tuple[torch.Tensor, ...]
    """A layer: [pages, kv_heads, 16, head_dim], fp32."""

    @classmethod
    def allocate(cls, config: ModelConfig, num_pages: int) -> "KVPool":
        """The operating system gives the memory page by page, as it is first written."""
        heads, dim = config.num_kv_heads, config.head_dim
        layers = range(config.num_layers)
        return cls(
            keys=tuple(torch.empty(num_pages, heads, dim, BLOCK_SIZE) for _ in layers),
            values=tuple(torch.empty(num_pages, heads, BLOCK_SIZE, dim) for _ in layers),
        )


def page_bytes(config: ModelConfig) -> int:
    """Of one page over all layers, K and V."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * BLOCK_SIZE * 4
