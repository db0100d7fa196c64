"""The tensors behind the pages."""

from dataclasses import dataclass

from kernels import KVDtype, KVPages, kv_page_bytes
from replica.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class KVPool:
    layers: tuple[KVPages, ...]

    @classmethod
    def allocate(cls, config: ModelConfig, num_pages: int, dtype: KVDtype = "fp32") -> "KVPool":
        """The operating system gives the memory page by page, as it is first written."""
        heads, dim = config.num_kv_heads, config.head_dim
        return cls(tuple(KVPages.allocate(dtype, num_pages, heads, dim) for _ in range(config.num_layers)))


def page_bytes(config: ModelConfig, dtype: KVDtype) -> int:
    """Of one page over all layers, K and V."""
    return config.num_layers * kv_page_bytes(dtype, config.num_kv_heads, config.head_dim)
