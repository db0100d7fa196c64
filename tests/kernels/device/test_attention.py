"""Attention in Triton against plain torch in fp32."""

import pytest
import torch

from kernels.base import PAGE_SIZE
from kernels.device import reference_attention as reference
from kernels.device import triton_kernels
from kernels.device.base import DeviceKVDtype, DevicePages, PrefixGroups
from kernels.device.prefill_flash import fits, gathered, prefill_attention, works
from tests.kernels.device.cases import cache, close, queries

LENGTHS = [0, 1, 15, 16, 17, 33, 100]
SHAPES = [(9, 3, 64), (8, 8, 16), (4, 1, 96), (16, 2, 128)]
"""Query heads, KV heads, dimension: neither the first model's heads nor 96 are powers of two."""
DTYPES: list[tuple[torch.dtype, DeviceKVDtype]] = [
    (torch.float32, "fp32"),
    (torch.float16, "fp16"),
    (torch.bfloat16, "bf16"),
    (torch.bfloat16, "fp8"),
]


@pytest.mark.parametrize(("dtype", "stored"), DTYPES, ids=[stored for _, stored in DTYPES])
def test_decode(dtype: torch.dtype, stored: DeviceKVDtype, rng: torch.Generator, device: torch.device) -> None:
    made = cache(LENGTHS, 3, 64, stored, rng, device)
    q = queries(len(LENGTHS), 9, 64, dtype, rng, device)
    wanted = reference.decode_attention(q, made.kv, made.table, made.lens, 0.125)
    found = triton_kernels.decode_attention(q, made.kv, made.table, made.lens, 0.125)
    close(found, wanted, dtype)
    assert not found[0].any(), "a padding row is zeros"


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
def test_decode_shapes(heads: int, kv_heads: int, dim: int, rng: torch.Generator, device: torch.device) -> None:
    made = cache([70, 5], kv_heads, dim, "fp32", rng, device)
    q = queries(2, heads, dim, torch.float32, rng, device)
    wanted = reference.decode_attention(q, made.kv, made.table, made.lens, 0.3)
    close(triton_kernels.decode_attention(q, made.kv, made.table, made.lens, 0.3), wanted, torch.float32)


@pytest.mark.parametrize("window", [1, 16, 40])
def test_decode_in_a_window(window: int, rng: torch.Generator, device: torch.device) -> None:
    made = cache([0, 3, 100, 700], 1, 16, "fp32", rng, device)
    q = queries(4, 2, 16, torch.float32, rng, device)
    wanted = reference.decode_attention(q, made.kv, made.table, made.lens, 0.25, window)
    close(triton_kernels.decode_attention(q, made.kv, made.table, made.lens, 0.25, window), wanted, torch.float32)


def test_a_long_sequence_is_split_and_short_ones_beside_it_are_right(
    rng: torch.Generator, device: torch.device
) -> None:
    made = cache([2000, 1, 0, 300], 1, 16, "fp32", rng, device)
    q = queries(4, 2, 16, torch.float32, rng, device)
    wanted = reference.decode_attention(q, made.kv, made.table, made.lens, 0.25)
    close(triton_kernels.decode_attention(q, made.kv, made.table, made.lens, 0.25), wanted, torch.float32)


@pytest.mark.parametrize(("dtype", "stored"), DTYPES, ids=[stored for _, stored in DTYPES])
def test_prefill(dtype: torch.dtype, stored: DeviceKVDtype, rng: torch.Generator, device: torch.device) -> None:
    """Chunks from the start, after a cached prefix, of one token, and none."""
    lengths, counts = [17, 100, 33, 0, 40], [17, 50, 1, 0, 40]
    made = cache(lengths, 3, 64, stored, rng, device)
    starts = torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32, device=device)
    q = queries(sum(counts), 9, 64, dtype, rng, device)
    arguments = (q, made.kv, made.table, starts, made.lens, max(counts), 0.125)
    close(triton_kernels.prefill_attention(*arguments), reference.prefill_attention(*arguments), dtype)


@pytest.mark.parametrize("window", [1, 20, 64])
def test_prefill_in_a_window(window: int, rng: torch.Generator, device: torch.device) -> None:
    lengths, counts = [150, 30], [90, 30]
    made = cache(lengths, 1, 96, "fp32", rng, device)
    starts = torch.tensor([0, 90, 120], dtype=torch.int32, device=device)
    q = queries(120, 4, 96, torch.float32, rng, device)
    arguments = (q, made.kv, made.table, starts, made.lens, max(counts), 0.1, window)
    close(triton_kernels.prefill_attention(*arguments), reference.prefill_attention(*arguments), torch.float32)


@pytest.mark.parametrize("stored", ["fp32", "fp8"])
def test_a_cascade_changes_nothing(stored: DeviceKVDtype, rng: torch.Generator, device: torch.device) -> None:
    """Groups of 3, 1 and 2 rows, a row of none, a padding row, and empty groups behind them."""
    lengths = [100, 70, 65, 20, 90, 81, 5, 0]
    shared = {1: 4, 2: 4, 5: 5}
    made = cache(lengths, 3, 64, stored, rng, device, shared)
    start = torch.tensor([0, 3, 4, 6, 8, 8, 8], dtype=torch.int32, device=device)
    pages = torch.tensor([4, 1, 5, 0, 0, 0], dtype=torch.int32, device=device)
    of_rows = torch.tensor([4, 4, 4, 1, 5, 5, 0, 0], dtype=torch.int32, device=device)
    q = queries(8, 9, 64, torch.float32, rng, device)
    wanted = reference.decode_attention(q, made.kv, made.table, made.lens, 0.125)
    groups = PrefixGroups(start, pages, of_rows)
    found = triton_kernels.cascade_attention(q, made.kv, made.table, made.lens, groups, 0.125)
    close(found, wanted, torch.float32)


@pytest.mark.parametrize("stored", ["fp32", "fp8"])
def test_gathered_pages_are_the_sequences(stored: DeviceKVDtype, rng: torch.Generator, device: torch.device) -> None:
    made = cache([33, 16], 3, 64, stored, rng, device)
    k, v = gathered(made.kv, made.table, torch.float32)
    width = made.table.shape[1] * PAGE_SIZE
    for sequence, length in enumerate(made.lens.tolist()):
        pages = made.table[sequence].long()
        for side, (stored_part, found) in enumerate(((made.kv.keys, k), (made.kv.values, v))):
            rows = stored_part[pages].float().transpose(1, 2).flatten(0, 1)[:length]
            if made.kv.scales is not None:
                rows = rows * made.kv.scales[pages, :, side].transpose(1, 2).flatten(0, 1)[:length, :, None]
            close(found[sequence * width :][:length], rows, torch.float32)


def test_what_is_gathered_is_bounded(device: torch.device) -> None:
    kv = DevicePages.allocate("fp8", 2, 3, 64, device)
    table = torch.empty(4, 5461, dtype=torch.int32, device=device)
    assert fits(kv, table, torch.bfloat16)
    assert not fits(kv, torch.empty(5, 5461, dtype=torch.int32, device=device), torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch's flash attention runs on CUDA alone")
@pytest.mark.parametrize("window", [0, 20])
def test_prefill_through_torch(window: int, rng: torch.Generator, device: torch.device) -> None:
    assert works(9, 3, 64, torch.bfloat16, device)
    made = cache([150, 30], 3, 64, "bf16", rng, device)
    starts = torch.tensor([0, 90, 120], dtype=torch.int32, device=device)
    q = queries(120, 9, 64, torch.bfloat16, rng, device)
    arguments = (q, made.kv, made.table, starts, made.lens, 90, 0.1, window)
    close(prefill_attention(*arguments), reference.prefill_attention(*arguments), torch.bfloat16)


def test_nothing_at_all(device: torch.device) -> None:
    kv = DevicePages.allocate("fp32", 2, 1, 16, device)
    none = torch.empty(0, 2, 16, device=device)
    empty = torch.empty(0, dtype=torch.int32, device=device)
    table = torch.empty(0, 1, dtype=torch.int32, device=device)
    assert triton_kernels.decode_attention(none, kv, table, empty, 1.0).shape == (0, 2, 16)
    start = torch.zeros(1, dtype=torch.int32, device=device)
    assert triton_kernels.prefill_attention(none, kv, table, start, empty, 0, 1.0).shape == (0, 2, 16)


def test_a_wrong_layout_is_refused(rng: torch.Generator, device: torch.device) -> None:
    made = cache([PAGE_SIZE], 1, 16, "fp32", rng, device)
    q = queries(1, 2, 16, torch.float32, rng, device)
    with pytest.raises(AssertionError):
        triton_kernels.decode_attention(q.transpose(1, 2), made.kv, made.table, made.lens, 1.0)
    with pytest.raises(AssertionError):
        triton_kernels.decode_attention(q, made.kv, made.table.long(), made.lens, 1.0)
