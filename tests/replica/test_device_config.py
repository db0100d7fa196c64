from typing import Any

import pytest

from replica import device_config as module
from replica.config import ConfigError, EngineConfig
from replica.device_config import DeviceConfig, device_config

NOTHING: dict[str, Any] = dict.fromkeys(("weights", "dtype", "kv", "gpu_memory_utilization", "kernels", "cuda_graphs"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"device": "tpu"}, "device: 'tpu' is none of auto, cpu, cuda, cuda:N"),
        ({"dtype": "int8"}, "dtype: 'int8' is none of bf16, fp16, fp32"),
        ({"kv": "fp16"}, "kv: 'fp16' is neither bf16"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization"),
        ({"gpu_memory_utilization": 0.0}, "gpu_memory_utilization"),
        ({"kernels": "cutlass"}, "device_kernels: 'cutlass'"),
    ],
)
def test_a_bad_setting_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DeviceConfig(**fields)


@pytest.mark.parametrize(
    ("device", "given", "message"),
    [
        ("cpu", {"kv": "fp8"}, "kv: fp8 goes with a GPU"),
        ("cpu", {"dtype": "bf16"}, "dtype: goes with a GPU"),
        ("cpu", {"cuda_graphs": False}, "cuda_graphs: goes with a GPU"),
        ("cpu", {"kernels": "triton"}, "device_kernels: goes with a GPU"),
        ("cpu", {"gpu_memory_utilization": 0.5}, "gpu_memory_utilization: goes with a GPU"),
        ("cuda", {"weights": "int8"}, "weights: int8 goes with a CPU; on a GPU give dtype"),
        ("cuda", {"kv": "int8"}, "kv: int8 goes with a CPU"),
        ("cuda:x", {}, "device: 'cuda:x'"),
    ],
)
def test_what_doesn_t_go_together_is_refused(device: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        device_config(device, **NOTHING | given)


@pytest.mark.parametrize("gpu", [True, False])
def test_auto_takes_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch, gpu: bool) -> None:
    monkeypatch.setattr(module, "has_gpu", lambda: gpu)
    assert device_config("auto", **NOTHING) == (DeviceConfig("cuda") if gpu else None)
    for cpus in ({"weights": "fp32"}, {"kv": "int8"}):
        assert device_config("auto", **NOTHING | cpus) is None
    assert device_config("cpu", **NOTHING) is None
    fp8 = device_config("cuda:1", **NOTHING | {"kv": "fp8", "dtype": "fp16", "cuda_graphs": False})
    assert fp8 is not None and (fp8.kv_dtype, fp8.dtype, fp8.cuda_graphs) == ("fp8", "fp16", False)
    assert fp8.torch_device == "cuda:1"


def test_a_gpu_has_larger_defaults() -> None:
    on_cpu, on_gpu = EngineConfig(), EngineConfig(device=DeviceConfig())
    assert (on_cpu.step_tokens, on_cpu.running) == (256, 64)
    assert (on_gpu.step_tokens, on_gpu.running) == (8192, 256)
