"""A replica's answer doesn't depend on the machine it runs on, as long as that has a fused multiply-add."""

from dataclasses import replace

import pytest
import torch

from kernels.base import Kernels
from kernels.build import load
from kernels.cpu import CpuKernels
from tests.kernels.attention_cases import in_int8, mixed
from tests.kernels.conftest import HAS_AVX2

pytestmark = pytest.mark.skipif(not HAS_AVX2, reason="the processor lacks AVX2")


@pytest.fixture(scope="module")
def native() -> Kernels:
    return CpuKernels(load())


@pytest.fixture(scope="module")
def avx2() -> Kernels:
    return CpuKernels(load("x86-64-v3"))


@pytest.mark.parametrize("columns", [1, 33, 576, 1154])
def test_rows(native: Kernels, avx2: Kernels, rng: torch.Generator, columns: int) -> None:
    x, weight = torch.randn(9, columns, generator=rng), torch.randn(columns, generator=rng)
    gate_up = torch.randn(9, 2 * columns, generator=rng) * 10
    residuals = x.flip(0), x.flip(0)
    assert torch.equal(native.rms_norm(x, weight, 1e-5), avx2.rms_norm(x, weight, 1e-5))
    added = [on.add_rms_norm(x, sum_, weight, 1e-5) for on, sum_ in zip((native, avx2), residuals, strict=True)]
    assert torch.equal(*added) and torch.equal(*residuals)
    assert torch.equal(native.silu_mul(gate_up), avx2.silu_mul(gate_up))


@pytest.mark.parametrize("m", [1, 7, 70])
def test_mlp(native: Kernels, avx2: Kernels, rng: torch.Generator, m: int) -> None:
    x = torch.randn(m, 100, generator=rng)
    gate_up, down = (native.pack_int8(torch.randn(shape, generator=rng)) for shape in ((130, 100), (70, 65)))
    assert torch.equal(native.mlp_int8(x, gate_up, down), avx2.mlp_int8(x, gate_up, down))


@pytest.mark.parametrize("window", [0, 50])
@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_attention(native: Kernels, avx2: Kernels, rng: torch.Generator, dtype: str, window: int) -> None:
    case = replace(mixed(rng), window=window)
    case = in_int8(case, rng) if dtype == "int8" else case
    assert torch.equal(case.run(native), case.run(avx2))


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_draws(native: Kernels, avx2: Kernels, rng: torch.Generator, top_p: float) -> None:
    rows = 50
    logits, points = torch.randn(rows, 5000, generator=rng), torch.rand(rows, generator=rng, dtype=torch.float64)
    ones, none = torch.ones(rows), torch.zeros(rows, dtype=torch.int32)
    drawn = [on.draw(logits, ones, none, top_p * ones, 0 * ones, points) for on in (native, avx2)]
    assert torch.equal(*drawn)
