import pytest
import torch
from torch import Tensor

from kernels import reference
from kernels.base import Kernels

PAGES, POSITIONS = 5, 100


def caches(kv_heads: int, d: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(PAGES, kv_heads, d, 16), torch.zeros(PAGES, kv_heads, 16, d)


def arguments(rng: torch.Generator, t: int, width: int, d: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """qkv, cos, sin, positions, slots; every third token isn't written."""
    angle = torch.rand(POSITIONS, d // 2, generator=rng) * 6
    positions = torch.randint(POSITIONS, (t,), generator=rng, dtype=torch.int32)
    slots = torch.randperm(PAGES * 16, generator=rng)[:t].int()
    slots[2::3] = -1
    return torch.randn(t, width, generator=rng), angle.cos(), angle.sin(), positions, slots


@pytest.mark.parametrize("t", [1, 2, 13, 64])
@pytest.mark.parametrize(("kv_heads", "group"), [(1, 1), (3, 3), (2, 8)])
@pytest.mark.parametrize("d", [16, 48, 64])
def test_equals_reference_in_every_bit(
    cpu: Kernels, rng: torch.Generator, t: int, kv_heads: int, group: int, d: int
) -> None:
    args = arguments(rng, t, (group + 2) * kv_heads * d, d)
    ours, theirs = caches(kv_heads, d), caches(kv_heads, d)
    q = cpu.rope_write_kv(*args, *ours, kv_heads * group)
    expected = reference.rope_write_kv(*args, *theirs, kv_heads * group)
    assert torch.equal(q, expected)
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


def test_rotation_keeps_scores_relative(cpu: Kernels, rng: torch.Generator) -> None:
    """What RoPE is for: q at position i times k at position j depends on i - j alone."""
    d, table = 16, torch.outer(torch.arange(POSITIONS).float(), 100.0 ** -torch.linspace(0, 1, 8))
    qkv = torch.randn(1, 3 * d, generator=rng)
    scores = []
    for i, j in ((5, 3), (72, 70)):
        k_cache, v_cache = caches(1, d)
        rows = torch.cat([qkv, qkv])
        positions, slots = torch.tensor([i, j], dtype=torch.int32), torch.tensor([-1, 7], dtype=torch.int32)
        q = cpu.rope_write_kv(rows, table.cos(), table.sin(), positions, slots, k_cache, v_cache, 1)
        scores.append(q[0, 0] @ k_cache[0, 0, :, 7])
    torch.testing.assert_close(scores[0], scores[1])


@pytest.mark.parametrize(("position", "slot"), [(-1, 0), (POSITIONS, 0), (0, -2), (0, PAGES * 16)])
def test_out_of_range_writes_nothing(cpu: Kernels, rng: torch.Generator, position: int, slot: int) -> None:
    qkv, cos, sin, positions, slots = arguments(rng, 2, 3 * 16, 16)
    positions[1], slots[1] = position, slot
    k_cache, v_cache = caches(1, 16)
    with pytest.raises(IndexError):
        cpu.rope_write_kv(qkv, cos, sin, positions, slots, k_cache, v_cache, 1)
    assert not k_cache.any() and not v_cache.any()


def test_int64_positions_are_refused(cpu: Kernels, rng: torch.Generator) -> None:
    qkv, cos, sin, positions, slots = arguments(rng, 2, 3 * 16, 16)
    with pytest.raises(AssertionError):
        cpu.rope_write_kv(qkv, cos, sin, positions.long(), slots, *caches(1, 16), 1)
