"""Sampling by itself, at vocabularies of real models; and the norms and the activation against the memory's rate."""

from functools import partial

import torch

import kernels.device
from loadtest.gpu.bench import Bench, Run


def measure_small_kernels(bench: Bench) -> None:
    for width in (300,) if bench.small else (49152, 151936):
        if bench.has_time("sampling"):
            _measure_sampling(bench, 4 if bench.small else 64, width)
    rows, width = (4, 96) if bench.small else (8192, 4096)
    x, residual = (torch.randn(rows, width, device=bench.device).to(bench.dtype) for _ in range(2))
    weight, gate_up = torch.ones_like(x[0]), torch.randn(rows, 2 * width, device=bench.device).to(bench.dtype)
    still = torch.zeros_like(x)
    for name, run, moved in (
        ("rms_norm", partial(kernels.device.rms_norm, x, weight, 1e-5), 2 * x.nbytes),
        ("add_rms_norm", partial(kernels.device.add_rms_norm, still, residual, weight, 1e-5), 4 * x.nbytes),
        ("silu_mul", partial(kernels.device.silu_mul, gate_up), 3 * x.nbytes),
    ):
        bench.record.figure(f"{name}_gb_per_s", moved / bench.kernel_seconds(run) / 1e9)


def _measure_sampling(bench: Bench, rows: int, width: int) -> None:
    logits = (torch.randn(rows, width, device=bench.device) * 3).to(bench.dtype)

    points = torch.rand(rows, dtype=torch.float64, device=bench.device)
    none = torch.zeros(rows, dtype=torch.int32, device=bench.device)
    ones = torch.ones(rows, device=bench.device)

    def drawing(top_k: int, top_p: float) -> Run:
        return partial(kernels.device.draw, logits, ones, none + top_k, ones * top_p, ones * 0, points)

    for name, run in (
        ("argmax", partial(kernels.device.argmax, logits)),
        ("draw", drawing(0, 1.0)),
        ("draw_top_p", drawing(0, 0.95)),
        ("draw_top_k_top_p", drawing(50, 0.95)),
    ):
        bench.record.figure(f"{name}_{rows}x{width}_us", bench.kernel_seconds(run) * 1e6)
