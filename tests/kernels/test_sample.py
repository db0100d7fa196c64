import math

import pytest
import torch
from torch import Tensor

from kernels import reference
from kernels.base import Kernels

INF = float("inf")


def run(
    on: Kernels,
    logits: Tensor,
    points: Tensor | float,
    temperature: Tensor | float = 1.0,
    top_k: Tensor | int = 0,
    top_p: Tensor | float = 1.0,
    min_p: Tensor | float = 0.0,
) -> Tensor:
    rows = len(logits)
    return on.draw(
        logits.contiguous(),
        torch.as_tensor(temperature).expand(rows).contiguous(),
        torch.as_tensor(top_k, dtype=torch.int32).expand(rows).contiguous(),
        torch.as_tensor(top_p).expand(rows).contiguous(),
        torch.as_tensor(min_p).expand(rows).contiguous(),
        torch.as_tensor(points, dtype=torch.float64).expand(rows).contiguous(),
    )


def one_of(rng: torch.Generator, values: list[float], count: int) -> Tensor:
    return torch.tensor(values)[torch.randint(len(values), (count,), generator=rng)]


@pytest.mark.parametrize("kind", ["normal", "peaked", "flat", "ties", "banned", "two heaps"])
@pytest.mark.parametrize("v", [1, 2, 15, 17, 512, 3001])
def test_equals_reference(cpu: Kernels, rng: torch.Generator, v: int, kind: str) -> None:
    rows = 120
    logits = torch.randn(rows, v, generator=rng)
    if kind == "peaked":
        logits *= 8
    elif kind == "flat":
        logits *= 1e-3
    elif kind == "ties":
        logits = logits.mul(2).round()
    elif kind == "banned":
        logits[torch.rand(logits.shape, generator=rng) < 0.9] = -INF
        logits[:, -1] = 0.5
    elif kind == "two heaps":
        logits = logits * 1e-4 - 20 * (torch.rand(logits.shape, generator=rng) < 0.5)
    parameters = {
        "temperature": one_of(rng, [0, 1e-4, 0.3, 1, 1.7, 1e6], rows),
        "top_k": torch.tensor([0, 0, 1, 2, 50, v, v + 1])[torch.randint(7, (rows,), generator=rng)],
        "top_p": one_of(rng, [1, 1, 0.95, 0.5, 0.01, 0], rows),
        "min_p": one_of(rng, [0, 0, 0.05, 0.5, 1], rows),
        "points": torch.rand(rows, generator=rng, dtype=torch.float64),
    }
    assert torch.equal(run(cpu, logits, **parameters), run(reference, logits, **parameters))


@pytest.mark.parametrize("top_p", [1.0, 0.95])
def test_equals_reference_at_a_real_vocabulary(cpu: Kernels, rng: torch.Generator, top_p: float) -> None:
    logits = torch.randn(30, 49152, generator=rng) * torch.logspace(-2, 1.3, 30)[:, None]
    points = torch.rand(30, generator=rng, dtype=torch.float64)
    assert torch.equal(run(cpu, logits, points, top_p=top_p), run(reference, logits, points, top_p=top_p))


@pytest.mark.parametrize("on", ["cpu", "reference"])
def test_exact_sums(cpu: Kernels, on: str) -> None:
    """Eight equals: a half is four of them, and a point on the border of two belongs to the second."""
    which = cpu if on == "cpu" else reference
    logits, points = torch.zeros(8, 8), torch.arange(8) / 8
    assert run(which, logits, points).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert run(which, logits, points, top_p=0.5).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert run(which, logits, points, top_p=0.51).tolist() == [0, 0, 1, 1, 2, 3, 3, 4]
    assert run(which, logits, points, top_k=2).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert run(which, logits, points, top_k=4, top_p=0.5).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert run(which, logits, points, min_p=1.0).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert run(which, logits, points, temperature=0.0).tolist() == [0] * 8


def test_the_order_is_by_logit_then_id_where_something_is_cut(cpu: Kernels) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0, -INF]])
    drawn = [run(cpu, logits, point, top_p=0.999).item() for point in torch.linspace(0, 0.999, 50).tolist()]
    assert list(dict.fromkeys(drawn)) == [1, 3, 2, 0]
    drawn = [run(cpu, logits, point).item() for point in torch.linspace(0, 0.999, 50).tolist()]
    assert list(dict.fromkeys(drawn)) == [0, 1, 2, 3]


@pytest.mark.parametrize("cut", [{}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}])
def test_all_but_one_banned(cpu: Kernels, cut: dict[str, float]) -> None:
    logits = torch.full((3, 1000), -INF)
    logits[:, 777] = -50
    points = torch.tensor([0, 0.5, math.nextafter(1, 0)], dtype=torch.float64)
    for temperature in (0.0, 1e-30, 1.0, 1e30):
        assert run(cpu, logits, points, temperature, **cut).tolist() == [777] * 3  # type: ignore[arg-type]


@pytest.mark.parametrize("cut", [{}, {"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.1}])
def test_frequencies_follow_the_distribution(cpu: Kernels, rng: torch.Generator, cut: dict[str, float]) -> None:
    logits, draws = torch.randn(50, generator=rng), 20_000
    points = (torch.arange(draws) + torch.rand(draws, generator=rng, dtype=torch.float64)) / draws
    tokens = run(cpu, logits.expand(draws, 50), points, temperature=0.8, **cut)  # type: ignore[arg-type]
    expected = torch.softmax(logits.double() / 0.8, 0)
    order = expected.sort(descending=True).indices
    if "top_k" in cut:
        expected[order[20:]] = 0
    elif "min_p" in cut:
        expected[expected < 0.1 * expected.max()] = 0
    elif "top_p" in cut:
        expected[order[expected[order].cumsum(0) - expected[order] >= 0.9]] = 0
    expected /= expected.sum()
    # The points are one to each of 20,000 strata, so a frequency is off by two strata at most.
    assert (torch.bincount(tokens, minlength=50) / draws - expected).abs().max() < 2.5 / draws


@pytest.mark.parametrize("on", ["cpu", "reference"])
@pytest.mark.parametrize("bad", [float("nan"), INF])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_unusable_logits_give_no_token_and_harm_no_other_row(
    cpu: Kernels, on: str, bad: float, temperature: float
) -> None:
    which = cpu if on == "cpu" else reference
    logits = torch.zeros(4, 20)
    fine = run(which, logits, 0.5, temperature).tolist()
    logits[2, 17] = bad
    assert run(which, logits, 0.5, temperature).tolist() == [*fine[:2], -1, fine[3]]
    logits[2] = -INF
    assert run(which, logits, 0.5, temperature).tolist() == [*fine[:2], -1, fine[3]]


def test_a_row_does_not_depend_on_the_others_or_on_threads(cpu: Kernels, rng: torch.Generator) -> None:
    logits = torch.randn(20, 999, generator=rng)
    points = torch.rand(20, generator=rng, dtype=torch.float64)
    alone = torch.cat([run(cpu, logits[i : i + 1], points[i : i + 1], top_p=0.9) for i in range(20)])
    for threads in (2, 1):
        cpu.set_num_threads(threads)
        assert torch.equal(run(cpu, logits, points, top_p=0.9), alone)


def test_wrong_arguments_are_refused(cpu: Kernels) -> None:
    with pytest.raises(AssertionError):
        run(cpu, torch.zeros(2, 8).double(), 0.5)
    with pytest.raises(AssertionError):
        cpu.draw(torch.zeros(2, 8), *(torch.zeros(2) for _ in range(5)))


def test_no_rows(cpu: Kernels) -> None:
    assert run(cpu, torch.zeros(0, 8), 0.5).tolist() == []
