"""Drawing without a sort against kernels.reference, which sorts, in double precision."""

import math

import pytest
import torch
from torch import Tensor

import kernels.reference
from kernels.device import triton_kernels
from kernels.device.sample import UNUSABLE

Settings = tuple[float, int, float, float]
"""Temperature, top_k, top_p, min_p."""
SETTINGS: list[Settings] = [
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.7, 1, 1.0, 0.0),
    (1.3, 50, 1.0, 0.0),
    (1.0, 0, 0.9, 0.0),
    (1.0, 0, 1e-4, 0.0),
    (0.5, 40, 0.95, 0.0),
    (2.0, 0, 1.0, 0.1),
    (1.0, 30, 0.7, 0.05),
    (1.0, 5000, 0.999, 0.0),
]
EDGE = 1e-5
"""In single precision a point or a share this near to a token's boundary may fall on either side of it."""


def drawn(draw: object, logits: Tensor, settings: list[Settings], points: Tensor) -> Tensor:
    temperature, top_k, top_p, min_p = zip(*settings, strict=True)
    device = logits.device
    assert callable(draw)
    found: Tensor = draw(
        logits,
        torch.tensor(temperature, device=device),
        torch.tensor(top_k, dtype=torch.int32, device=device),
        torch.tensor(top_p, device=device),
        torch.tensor(min_p, device=device),
        points.to(device),
    )
    return found


def check(logits: Tensor, settings: list[Settings], points: Tensor) -> None:
    found = drawn(triton_kernels.draw, logits, settings, points).tolist()
    allowed: list[set[int]] = [set() for _ in settings]
    for shift in (-EDGE, 0.0, EDGE):
        for share in (-EDGE, 0.0, EDGE):
            moved = [(t, k, min(1.0, p + share) if p < 1 else p, m) for t, k, p, m in settings]
            moved = [(t, k, max(p, 1e-9), m) for t, k, p, m in moved]
            near = drawn(kernels.reference.draw, logits.float().cpu(), moved, (points + shift).clamp(0, 1 - 1e-12))
            for tokens, token in zip(allowed, near.tolist(), strict=True):
                tokens.add(token)
    for row, (token, tokens) in enumerate(zip(found, allowed, strict=True)):
        assert token in tokens, (row, settings[row], float(points[row]))


@pytest.mark.parametrize(
    ("width", "dtype"),
    [(1, torch.float32), (7, torch.bfloat16), (1024, torch.float16), (1500, torch.bfloat16), (3001, torch.float32)],
)
def test_as_the_one_that_sorts(width: int, dtype: torch.dtype, rng: torch.Generator, device: torch.device) -> None:
    """Narrow logits have many equals."""
    logits = (torch.randn(len(SETTINGS), width, generator=rng) * 3).to(dtype)
    check(logits.to(device), SETTINGS, torch.rand(len(SETTINGS), dtype=torch.float64, generator=rng))


def test_ties_go_by_id(rng: torch.Generator, device: torch.device) -> None:
    """Few values, so that each cut goes through the middle of equals; -0.0 and 0.0 are equals too."""
    logits = torch.randint(-2, 3, (len(SETTINGS), 300), generator=rng).float()
    logits[:, ::7] *= -1
    for point in (0.3, 0.999999):
        check(logits.to(device), SETTINGS, torch.full((len(SETTINGS),), point, dtype=torch.float64))


def test_what_is_impossible_is_never_drawn(rng: torch.Generator, device: torch.device) -> None:
    logits = torch.full((len(SETTINGS), 400), -math.inf)
    possible = torch.randperm(400, generator=rng)[:3]
    logits[:, possible] = torch.randn(len(SETTINGS), 3, generator=rng) * 60
    for point in (0.0, 1 - 1e-12):
        points = torch.full((len(SETTINGS),), point, dtype=torch.float64)
        found = drawn(triton_kernels.draw, logits.to(device), SETTINGS, points)
        assert set(found.tolist()) <= set(possible.tolist()), point


def test_a_row_of_no_use_harms_no_other(device: torch.device) -> None:
    logits = torch.zeros(5, 50)
    logits[0, 3], logits[1, 49], logits[2], logits[3, 7] = math.nan, math.inf, -math.inf, 1e4
    settings: list[Settings] = [(1.0, 5, 0.9, 0.0)] * 4 + [(0.0, 0, 1.0, 0.0)]
    found = drawn(triton_kernels.draw, logits.to(device), settings, torch.full((5,), 0.5, dtype=torch.float64))
    assert found.tolist() == [UNUSABLE, UNUSABLE, UNUSABLE, 7, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_argmax_takes_the_first_of_equals(dtype: torch.dtype, rng: torch.Generator, device: torch.device) -> None:
    logits = torch.randint(-5, 6, (4, 5000), generator=rng).to(dtype)
    logits[0, :] = -math.inf
    found = triton_kernels.argmax(logits.to(device)).cpu()
    assert found.tolist() == [int(row.float().numpy().argmax()) for row in logits]
