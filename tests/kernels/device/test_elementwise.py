"""Norms, activation, rotary positions and the KV write in Triton against plain torch in fp32."""

import pytest
import torch

from kernels.device import reference, triton_kernels
from kernels.device.base import DeviceKVDtype, DevicePages
from tests.kernels.device.cases import close

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def random(*shape: int, dtype: torch.dtype, rng: torch.Generator, device: torch.device) -> torch.Tensor:
    return torch.randn(*shape, generator=rng).to(dtype).to(device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "width"), [(1, 576), (5, 96), (0, 64)])
def test_norms(rows: int, width: int, dtype: torch.dtype, rng: torch.Generator, device: torch.device) -> None:
    x, residual = (random(rows, width, dtype=dtype, rng=rng, device=device) for _ in range(2))
    weight = random(width, dtype=dtype, rng=rng, device=device)
    close(triton_kernels.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5), dtype)
    stream, other = residual.clone(), residual.clone()
    found = triton_kernels.add_rms_norm(x, stream, weight, 1e-5)
    close(found, reference.add_rms_norm(x, other, weight, 1e-5), dtype)
    close(stream, other, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_silu_mul(dtype: torch.dtype, rng: torch.Generator, device: torch.device) -> None:
    x = random(3, 2 * 1100, dtype=dtype, rng=rng, device=device)
    close(triton_kernels.silu_mul(x), reference.silu_mul(x), dtype)


def test_norm_of_heads_leaves_values_alone(rng: torch.Generator, device: torch.device) -> None:
    qkv = random(4, (9 + 2 * 3) * 48, dtype=torch.float32, rng=rng, device=device)
    q_norm, k_norm = (random(48, dtype=torch.float32, rng=rng, device=device) for _ in range(2))
    found, wanted = qkv.clone(), qkv.clone()
    triton_kernels.norm_heads(found, q_norm, k_norm, 1e-6, 9, 3)
    reference.norm_heads(wanted, q_norm, k_norm, 1e-6, 9, 3)
    close(found, wanted, torch.float32)
    assert torch.equal(found[:, -3 * 48 :], qkv[:, -3 * 48 :])


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (4, 4, 96)])
@pytest.mark.parametrize("stored", ["fp32", "bf16", "fp8"])
def test_rope_write_kv(
    stored: DeviceKVDtype, heads: int, kv_heads: int, dim: int, rng: torch.Generator, device: torch.device
) -> None:
    dtype = torch.float32 if stored == "fp32" else torch.bfloat16
    qkv = random(5, (heads + 2 * kv_heads) * dim, dtype=dtype, rng=rng, device=device)
    qkv[2] = 0  # nothing to scale by
    angles = torch.randn(40, dim // 2, generator=rng, device="cpu").to(device)
    positions = torch.tensor([3, 39, 0, 7, 7], dtype=torch.int32, device=device)
    slots = torch.tensor([17, 0, 33, -1, 63], dtype=torch.int32, device=device)
    caches: list[DevicePages] = []
    found = []
    for implementation in (triton_kernels, reference):
        kv = DevicePages.allocate(stored, 4, kv_heads, dim, device)
        for part in (kv.keys, kv.values, kv.scales):
            if part is not None:
                part.view(torch.uint8).fill_(1)
        caches.append(kv)
        found.append(implementation.rope_write_kv(qkv, angles.cos(), angles.sin(), positions, slots, kv, heads))
    close(found[0], found[1], dtype)
    for one, other in ((caches[0].keys, caches[1].keys), (caches[0].values, caches[1].values)):
        if stored == "fp8":
            # The interpreter rounds to fp8 in a way of its own, now and then by more than a step.
            apart = (one.float() - other.float()).abs() > 0.13 * other.float().abs()
            assert apart.float().mean() <= (0 if device.type == "cuda" else 0.01)
        else:
            close(one, other, dtype)
    if caches[0].scales is not None and caches[1].scales is not None:
        close(caches[0].scales, caches[1].scales, torch.float32)
