import pytest
import torch
from torch.testing import assert_close

from kernels import reference
from kernels.base import Kernels

SHAPES = [(1, 1), (7, 3), (16, 4), (17, 5), (65, 66), (48, 128), (130, 576), (100, 1537)]  # (n, k)


@pytest.mark.parametrize("m", [1, 2, 5, 8, 9, 17, 64, 97])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_equals_reference_in_every_bit(cpu: Kernels, rng: torch.Generator, m: int, n: int, k: int) -> None:
    x = torch.randn(m, k, generator=rng)
    w = cpu.pack_int8(torch.randn(n, k, generator=rng))
    assert torch.equal(cpu.linear_int8(x, w), reference.linear_int8(x, w))


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_pack_equals_reference_in_every_bit(cpu: Kernels, rng: torch.Generator, n: int, k: int) -> None:
    weight = torch.randn(n, k, generator=rng) * torch.rand(n, 1, generator=rng)
    ours, plain = cpu.pack_int8(weight), reference.pack_int8(weight)
    for part in ("data", "scale"):
        assert torch.equal(getattr(ours, part), getattr(plain, part)), part


@pytest.mark.parametrize(("n", "k"), [(1, 1), (17, 64), (50, 100)])
def test_rows_are_the_weight_as_it_is_multiplied(cpu: Kernels, rng: torch.Generator, n: int, k: int) -> None:
    weight = torch.randn(n, k, generator=rng)
    packed = cpu.pack_int8(weight)
    rows = torch.randint(n, (7,), generator=rng)
    assert torch.equal(packed.rows(rows), packed.rows(torch.arange(n))[rows])
    # What is left of a row after it was quantised is quantised to itself.
    assert torch.equal(cpu.pack_int8(packed.rows(torch.arange(n))).data, packed.data)
    assert (packed.rows(torch.arange(n)) - weight).abs().max() <= weight.abs().max() / 254 + 1e-6


@pytest.mark.parametrize("k", [576, 1536])
def test_error_against_fp32(cpu: Kernels, rng: torch.Generator, k: int) -> None:
    x, weight = torch.randn(32, k, generator=rng), torch.randn(200, k, generator=rng)
    exact = x.double() @ weight.double().T
    error = (cpu.linear_int8(x, cpu.pack_int8(weight)) - exact).norm() / exact.norm()
    assert error < 0.015


@pytest.mark.parametrize("side", ["x", "weight"])
def test_outlier_costs_its_own_group_alone(cpu: Kernels, rng: torch.Generator, side: str) -> None:
    """With one scale for the row, an outlier of 100 would round most of the rest to nothing: an error of 0.2."""
    x, weight = torch.randn(8, 576, generator=rng), torch.randn(50, 576, generator=rng)
    with_outlier, other = (x, weight) if side == "x" else (weight, x)
    with_outlier[:, 100] = 100
    other[:, 64:128] = 0  # the outlier's own group
    exact = x.double() @ weight.double().T
    error = (cpu.linear_int8(x, cpu.pack_int8(weight)) - exact).norm() / exact.norm()
    assert error < 0.015


def test_row_is_independent_of_batch_and_threads(cpu: Kernels, rng: torch.Generator) -> None:
    x = torch.randn(203, 100, generator=rng) * torch.rand(203, 1, generator=rng) * 100
    w = cpu.pack_int8(torch.randn(150, 100, generator=rng))
    alone = torch.cat([cpu.linear_int8(row[None], w) for row in x])
    cpu.set_num_threads(2)
    together = cpu.linear_int8(x, w)
    cpu.set_num_threads(1)
    assert torch.equal(together, alone)
    assert torch.equal(together, cpu.linear_int8(x, w))


@pytest.mark.parametrize("m", [0, 1, 9, 70])
@pytest.mark.parametrize(("k", "f", "n"), [(7, 5, 3), (64, 128, 64), (100, 65, 130)])
def test_mlp_has_the_bits_of_its_parts(cpu: Kernels, rng: torch.Generator, m: int, k: int, f: int, n: int) -> None:
    x = torch.randn(m, k, generator=rng)
    gate_up = cpu.pack_int8(torch.randn(2 * f, k, generator=rng))
    down = cpu.pack_int8(torch.randn(n, f, generator=rng))
    expected = cpu.linear_int8(cpu.silu_mul(cpu.linear_int8(x, gate_up)), down)
    for threads in (2, 1):
        cpu.set_num_threads(threads)
        assert torch.equal(cpu.mlp_int8(x, gate_up, down), expected)
    if m:
        plain = reference.mlp_int8(x, gate_up, down)
        assert (plain - expected).norm() < 0.01 * expected.norm()  # exp differs in a bit, a rounding here or there
    with pytest.raises(AssertionError):
        cpu.mlp_int8(x, down, gate_up)


def test_extreme_products_dont_saturate(cpu: Kernels) -> None:
    """All ones quantise to 127: pairs of products exceed int16, which maddubs-style instructions would clip."""
    x, weight = torch.ones(2, 1536), torch.ones(16, 1536)
    assert_close(cpu.linear_int8(x, cpu.pack_int8(weight)), torch.full((2, 16), 1536.0))
    assert_close(cpu.linear_int8(-x, cpu.pack_int8(weight)), torch.full((2, 16), -1536.0))


def test_zero_and_tiny_rows_give_zeros(cpu: Kernels) -> None:
    x = torch.stack([torch.zeros(8), torch.full((8,), 1e-40)])
    weight = torch.ones(3, 8)
    weight[1] = 0
    assert torch.equal(cpu.linear_int8(x, cpu.pack_int8(weight)), torch.zeros(2, 3))


def test_nan_stays_in_its_row(cpu: Kernels) -> None:
    x = torch.ones(3, 8)
    x[1, 5] = float("nan")
    y = cpu.linear_int8(x, cpu.pack_int8(torch.ones(4, 8)))
    assert y[1].isnan().all() and y[[0, 2]].isfinite().all()


def test_wrong_arguments_are_refused(cpu: Kernels) -> None:
    w = cpu.pack_int8(torch.ones(4, 8))
    for x in (torch.ones(2, 7), torch.ones(2, 8, dtype=torch.float64), torch.ones(8, 2).T):
        with pytest.raises(AssertionError):
            cpu.linear_int8(x, w)
    for weight in (torch.ones(4, 8, dtype=torch.float64), torch.ones(8, 4).T):
        with pytest.raises(AssertionError):
            cpu.pack_int8(weight)


def test_empty_batch(cpu: Kernels) -> None:
    assert cpu.linear_int8(torch.ones(0, 8), cpu.pack_int8(torch.ones(4, 8))).shape == (0, 4)
