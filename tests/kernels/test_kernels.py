"""The choice of an implementation, in `kernels/__init__.py`."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import kernels
from kernels import reference
from kernels.cpu import CpuKernels


@pytest.fixture(autouse=True)
def undecided(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kernels, "_implementation", None)
    monkeypatch.delenv("RYOKAN_KERNELS", raising=False)
    yield


def test_default_is_cpu() -> None:
    kernels.silu_mul(torch.ones(1, 2))
    assert isinstance(kernels._implementation, CpuKernels)


def test_environment_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RYOKAN_KERNELS", "reference")
    kernels.silu_mul(torch.ones(1, 2))
    monkeypatch.setenv("RYOKAN_KERNELS", "cpu")
    kernels.silu_mul(torch.ones(1, 2))
    assert kernels._implementation is reference


def test_use_overrides() -> None:
    kernels.use("reference")
    assert kernels._implementation is reference
    kernels.use("cpu")
    assert isinstance(kernels._implementation, CpuKernels)


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        kernels.use("nonsense")


def test_no_compiler_falls_back_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("RYOKAN_CACHE", str(tmp_path))
    for _ in range(2):
        assert torch.equal(kernels.silu_mul(torch.zeros(1, 2)), torch.zeros(1, 1))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "no-such-compiler" in record.getMessage()
    with pytest.raises(kernels.BuildError):
        kernels.use("cpu")


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_public_functions_pass_on(name: str) -> None:
    kernels.use(name)
    x, weight = torch.ones(2, 48), torch.ones(48)
    assert torch.equal(kernels.linear_int8(x, kernels.pack_int8(torch.ones(4, 48))).round(), torch.full((2, 4), 48.0))
    mlp = kernels.mlp_int8(x, kernels.pack_int8(torch.ones(8, 48)), kernels.pack_int8(torch.ones(3, 4)))
    torch.testing.assert_close(mlp, torch.full((2, 3), 4 * 48.0**2))
    torch.testing.assert_close(kernels.rms_norm(x, weight, 0.0), x)
    ones, none = torch.ones(1), torch.zeros(1, dtype=torch.int32)
    assert kernels.draw(torch.eye(3)[1:2], 0 * ones, none, ones, 0 * ones, ones.double() / 2).tolist() == [1]
    residual = torch.zeros(2, 48)
    torch.testing.assert_close(kernels.add_rms_norm(x, residual, weight, 0.0), x)
    assert torch.equal(residual, x)
    cos, sin, numbers = torch.ones(2, 8), torch.zeros(2, 8), torch.tensor([0, 1], dtype=torch.int32)
    for dtype in ("fp32", "int8"):
        _attend_to_ones(x, cos, sin, numbers, kernels.KVPages.allocate(dtype, 1, 1, 16))


def _attend_to_ones(x: Tensor, cos: Tensor, sin: Tensor, numbers: Tensor, kv: kernels.KVPages) -> None:
    q = kernels.rope_write_kv(x, cos, sin, numbers, numbers, kv, 1)
    table, row_seq = torch.zeros(1, 1, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    out = kernels.paged_attention(q, kv, table, row_seq, numbers + 1, 0.25)
    torch.testing.assert_close(out, torch.ones(2, 1, 16), atol=5e-4 if kv.dtype == "int8" else 1e-5, rtol=0)
