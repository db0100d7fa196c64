import pytest
import torch
from torch.testing import assert_close

from kernels import reference
from kernels.base import Kernels

ROWS = [1, 2, 5, 13]
COLUMNS = [1, 15, 16, 33, 576]


@pytest.mark.parametrize("t", ROWS)
@pytest.mark.parametrize("c", COLUMNS)
def test_rms_norm(cpu: Kernels, rng: torch.Generator, t: int, c: int) -> None:
    x, weight = torch.randn(t, c, generator=rng), torch.randn(c, generator=rng)
    assert_close(cpu.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("t", ROWS)
@pytest.mark.parametrize("c", COLUMNS)
def test_add_rms_norm_updates_the_residual(cpu: Kernels, rng: torch.Generator, t: int, c: int) -> None:
    x, residual = torch.randn(t, c, generator=rng), torch.randn(t, c, generator=rng)
    weight, expected_residual = torch.randn(c, generator=rng), residual.clone()
    expected = reference.add_rms_norm(x, expected_residual, weight, 1e-5)
    assert_close(cpu.add_rms_norm(x, residual, weight, 1e-5), expected)
    assert torch.equal(residual, expected_residual)


@pytest.mark.parametrize("t", ROWS)
@pytest.mark.parametrize("f", COLUMNS)
def test_silu_mul(cpu: Kernels, rng: torch.Generator, t: int, f: int) -> None:
    gate_up = torch.randn(t, 2 * f, generator=rng) * 10
    assert_close(cpu.silu_mul(gate_up), reference.silu_mul(gate_up))


def test_exponential_is_accurate_to_a_millionth(cpu: Kernels) -> None:
    gate = torch.linspace(-80, 80, 10_001)
    y = cpu.silu_mul(torch.cat([gate, torch.ones_like(gate)])[None])[0]
    exact = gate.double() * gate.double().sigmoid()
    # x * log2(e) is rounded to fp32 before the exponential sees it, which costs 2^-24 |x| more.
    assert ((y - exact).abs() <= (5e-7 + 2**-24 * gate.abs()) * exact.abs()).all()


def test_silu_of_extremes(cpu: Kernels) -> None:
    gate = torch.tensor([-1e30, -200.0, 0.0, 200.0, float("nan")])
    y = cpu.silu_mul(torch.cat([gate, torch.ones(5)])[None])[0]
    assert_close(y, torch.tensor([-1e-8, 0.0, 0.0, 200.0, float("nan")]), atol=1e-7, rtol=0, equal_nan=True)


def test_rows_are_independent_of_batch_and_threads(cpu: Kernels, rng: torch.Generator) -> None:
    x, weight = torch.randn(80, 1154, generator=rng), torch.randn(1154, generator=rng)
    norms = torch.cat([cpu.rms_norm(row[None], weight, 1e-5) for row in x])
    products = torch.cat([cpu.silu_mul(row[None]) for row in x])
    for threads in (2, 1):
        cpu.set_num_threads(threads)
        assert torch.equal(cpu.rms_norm(x, weight, 1e-5), norms)
        assert torch.equal(cpu.silu_mul(x), products)


def test_wrong_arguments_are_refused(cpu: Kernels) -> None:
    with pytest.raises(AssertionError):
        cpu.rms_norm(torch.ones(2, 8), torch.ones(7), 1e-5)
    with pytest.raises(AssertionError):
        cpu.add_rms_norm(torch.ones(2, 8), torch.ones(3, 8), torch.ones(8), 1e-5)
    with pytest.raises(AssertionError):
        cpu.silu_mul(torch.ones(2, 7))
