from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels import reference
from kernels.base import Kernels, KVPages

PAGES, POSITIONS = 5, 100


def empty(kv_heads: int, d: int) -> KVPages:
    return KVPages(torch.zeros(PAGES, kv_heads, d, 16), torch.zeros(PAGES, kv_heads, 16, d))


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
    ours, theirs = empty(kv_heads, d), empty(kv_heads, d)
    q = cpu.rope_write_kv(*args, ours, kv_heads * group)
    expected = reference.rope_write_kv(*args, theirs, kv_heads * group)
    assert torch.equal(q, expected)
    assert torch.equal(ours.keys, theirs.keys) and torch.equal(ours.values, theirs.values)


def empty_int8(kv_heads: int, d: int) -> KVPages:
    kv = KVPages.allocate("int8", PAGES, kv_heads, d)
    assert kv.scales is not None
    kv.keys.fill_(7), kv.values.fill_(9), kv.scales.fill_(float("inf"))
    return kv


def parts(kv: KVPages) -> tuple[Tensor, ...]:
    return (kv.keys, kv.values) if kv.scales is None else (kv.keys, kv.values, kv.scales)


@pytest.mark.parametrize("t", [1, 13, 64])
@pytest.mark.parametrize(("kv_heads", "group"), [(1, 1), (3, 3)])
@pytest.mark.parametrize("d", [16, 48, 64, 128])
@pytest.mark.parametrize("threads", [1, 2])
def test_int8_equals_reference_in_every_bit(
    cpu: Kernels, rng: torch.Generator, t: int, kv_heads: int, group: int, d: int, threads: int
) -> None:
    args = arguments(rng, t, (group + 2) * kv_heads * d, d)
    args[0][0] = 0  # a token of zeros has scale 0
    ours, theirs = empty_int8(kv_heads, d), empty_int8(kv_heads, d)
    cpu.set_num_threads(threads)
    q = cpu.rope_write_kv(*args, ours, kv_heads * group)
    cpu.set_num_threads(1)
    assert torch.equal(q, reference.rope_write_kv(*args, theirs, kv_heads * group))
    assert all(torch.equal(a, b) for a, b in zip(parts(ours), parts(theirs), strict=True))


def test_int8_holds_what_fp32_does_to_half_a_step(cpu: Kernels, rng: torch.Generator) -> None:
    qkv, cos, sin, positions, slots = arguments(rng, 20, 3 * 64, 64)
    exact, rounded = empty(1, 64), empty_int8(1, 64)
    for kv in (exact, rounded):
        cpu.rope_write_kv(qkv, cos, sin, positions, slots, kv, 1)
    assert rounded.scales is not None
    page, offset = slots[slots >= 0].long() // 16, slots[slots >= 0].long() % 16
    k_step, v_step = rounded.scales[page, 0, :, offset].unbind(1)
    k = (rounded.keys[page, 0, :, offset].flatten(1).float() - 128) * k_step[:, None]
    v = rounded.values[page, 0, offset // 4, :, offset % 4].float() * v_step[:, None]
    assert ((k - exact.keys[page, 0, :, offset]).abs() <= 0.501 * k_step[:, None]).all()
    assert ((v - exact.values[page, 0, offset]).abs() <= 0.501 * v_step[:, None]).all()


def test_rotation_keeps_scores_relative(cpu: Kernels, rng: torch.Generator) -> None:
    """What RoPE is for: q at position i times k at position j depends on i - j alone."""
    d, table = 16, torch.outer(torch.arange(POSITIONS).float(), 100.0 ** -torch.linspace(0, 1, 8))
    qkv = torch.randn(1, 3 * d, generator=rng)
    scores = []
    for i, j in ((5, 3), (72, 70)):
        kv = empty(1, d)
        rows = torch.cat([qkv, qkv])
        positions, slots = torch.tensor([i, j], dtype=torch.int32), torch.tensor([-1, 7], dtype=torch.int32)
        q = cpu.rope_write_kv(rows, table.cos(), table.sin(), positions, slots, kv, 1)
        scores.append(q[0, 0] @ kv.keys[0, 0, :, 7])
    torch.testing.assert_close(scores[0], scores[1])


@pytest.mark.parametrize(("position", "slot"), [(-1, 0), (POSITIONS, 0), (0, -2), (0, PAGES * 16)])
@pytest.mark.parametrize("make", [empty, empty_int8])
def test_out_of_range_writes_nothing(
    cpu: Kernels, rng: torch.Generator, position: int, slot: int, make: Callable[[int, int], KVPages]
) -> None:
    qkv, cos, sin, positions, slots = arguments(rng, 2, 3 * 16, 16)
    positions[1], slots[1] = position, slot
    kv, before = make(1, 16), make(1, 16)
    with pytest.raises(IndexError):
        cpu.rope_write_kv(qkv, cos, sin, positions, slots, kv, 1)
    assert all(torch.equal(a, b) for a, b in zip(parts(kv), parts(before), strict=True))


def test_int64_positions_are_refused(cpu: Kernels, rng: torch.Generator) -> None:
    qkv, cos, sin, positions, slots = arguments(rng, 2, 3 * 16, 16)
    with pytest.raises(AssertionError):
        cpu.rope_write_kv(qkv, cos, sin, positions.long(), slots, empty(1, 16), 1)
