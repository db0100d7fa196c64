"""What the device can do at best: the roofs that all else is measured against."""

import torch

import kernels.device
from loadtest.gpu.bench import Bench


def measure_peaks(bench: Bench) -> None:
    size = 2**20 if bench.small else 2**31
    source = torch.zeros(size, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    copied = bench.seconds(lambda: target.copy_(source), 5)
    bench.record.figure("copy_gb_per_s", 2 * size / copied / 1e9)
    n = 128 if bench.small else 8192
    a, b = (torch.randn(n, n, device=bench.device).to(bench.dtype) for _ in range(2))
    out = torch.empty_like(a)
    multiplied = bench.seconds(lambda: torch.mm(a, b, out=out), 10)
    bench.record.figure("matmul_tflops", 2 * n**3 / multiplied / 1e12)


def facts(device: torch.device) -> dict[str, str]:
    """What is measured; makes it the current device."""
    if device.type != "cuda":
        name = "CPU: nothing was measured on a card"
    else:
        torch.cuda.set_device(device)
        properties = torch.cuda.get_device_properties(device)
        memory = properties.total_memory / 2**30
        name = f"{properties.name}, {memory:.0f} GiB, {properties.multi_processor_count} SMs"
    found = {"device": name, "kernels": kernels.device.use("auto")}
    return found | ({"cuda": torch.version.cuda} if torch.version.cuda else {})
