import pytest
import torch

from replica.config import ConfigError
from replica.device.pool import DeviceMemory, DevicePool, pages_that_fit, pool_page_bytes
from replica.model.config import ModelConfig

GIB = 2**30
CONFIG = ModelConfig("LlamaForCausalLM", 100, num_layers=3, num_kv_heads=2, head_dim=16, max_context=64)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "fp8"])
def test_a_page_takes_what_it_is_said_to(dtype: str) -> None:
    pool = DevicePool.allocate(CONFIG, 5, dtype, torch.device("cpu"))  # type: ignore[arg-type]
    tensors = [part for layer in pool.layers for part in (layer.keys, layer.values, layer.scales) if part is not None]
    assert sum(part.nbytes for part in tensors) == 5 * pool_page_bytes(CONFIG, dtype)  # type: ignore[arg-type]


def test_pages_take_what_is_left_of_the_share() -> None:
    memory = DeviceMemory(total=80 * GIB, others=2 * GIB, peak=20 * GIB, reserve=GIB)
    assert pages_that_fit(memory, 0.9, 2**20) == (72 - 23) * 1024
    with pytest.raises(ConfigError, match=r"gpu_memory_utilization: 0\.25 of 80\.0 GiB .* others take 2\.0, .* 20\.0"):
        pages_that_fit(memory, 0.25, 2**20)
