"""Decode attention over a paged KV cache: one query row a sequence, its tokens split over programs (flash-decoding,
Dao et al. 2023) and the parts merged by their log-sum-exp.

A program takes one KV head and all query heads of its group, so K and V are read once for them. The number of splits
depends on shapes only, never on lengths, so a captured graph stays right; each sequence divides its own length.
"""

# Kernels are in Triton's own language, which only looks like Python.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, possibly-undefined, attr-defined"

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.base import PAGE_SIZE
from kernels.device.base import DevicePages
from kernels.device.launch import INTERPRETED, LOG2_E, check_indices, power_of_two, processors
from kernels.device.online_softmax import BLOCK_TOKENS, STAGES, attend

DOT_ROWS = 16
"""The least that a tensor core multiplies: smaller groups of heads are padded."""
_MIN_SPLIT_TOKENS = 128
_MAX_SPLITS = 128
_ENOUGH_PER_PROCESSOR = 4
_WANTED_PER_PROCESSOR = 8


@triton.jit
def split_kernel(
    q_ptr, keys_ptr, values_ptr, scales_ptr, table_ptr, lens_ptr, skip_ptr, part_ptr, lse_ptr,
    factor, window, table_stride, first_split, num_parts,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr,
    DIM: tl.constexpr, DIM_PADDED: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    WINDOW: tl.constexpr, SKIP: tl.constexpr, FP8: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Part (sequence, head, first_split + split) of num_parts: normalised output and, with lse_ptr, log2-sum-exp2 of
    the scores."""
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    group = tl.arange(0, GROUP_PADDED)
    dims = tl.arange(0, DIM_PADDED)
    rows = sequence.to(tl.int64) * KV_HEADS * GROUP + kv_head * GROUP + group

    length = tl.load(lens_ptr + sequence)
    begin = 0
    if SKIP:
        begin = tl.minimum(tl.load(skip_ptr + sequence) * PAGE, length)
    if WINDOW:
        begin = tl.maximum(begin, length - window)
    aligned = begin // BLOCK * BLOCK
    per_split = tl.cdiv(tl.cdiv(length - aligned, SPLITS), BLOCK) * BLOCK
    start = aligned + split * per_split
    end = tl.minimum(start + per_split, length)

    both = (group < GROUP)[:, None] & (dims < DIM)[None, :]
    q = tl.load(q_ptr + rows[:, None] * DIM + dims[None, :], mask=both, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    top = tl.full([GROUP_PADDED], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PADDED], tl.float32)
    acc = tl.zeros([GROUP_PADDED, DIM_PADDED], tl.float32)
    pages = table_ptr + sequence.to(tl.int64) * table_stride
    for first in range(start, end, BLOCK):
        token = first + tl.arange(0, BLOCK)
        there = (token >= begin) & (token < end)
        top, total, acc = attend(
            q, top, total, acc, keys_ptr, values_ptr, scales_ptr, pages, token, there, there[None, :], kv_head, factor,
            KV_HEADS, DIM, DIM_PADDED, PAGE, True, FP8, UPCAST,
        )  # fmt: skip

    part = rows * num_parts + first_split + split
    some = total > 0
    acc = acc / tl.where(some, total, 1.0)[:, None]
    tl.store(part_ptr + part[:, None] * DIM + dims[None, :], acc.to(part_ptr.dtype.element_ty), mask=both)
    if lse_ptr is not None:
        lse = tl.where(some, top + tl.log2(tl.where(some, total, 1.0)), float("-inf"))
        tl.store(lse_ptr + part, lse, mask=group < GROUP)


@triton.jit
def merge_kernel(
    part_ptr, lse_ptr, skip_ptr, out_ptr,
    HEADS: tl.constexpr, PARTS: tl.constexpr, SHARED_PARTS: tl.constexpr, PARTS_PADDED: tl.constexpr,
    DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
):  # fmt: skip
    """A row and head: its parts, weighed by their share of the sum. Zeros where no part has a token. The first
    SHARED_PARTS are written only where the row shares pages."""
    row = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, PARTS_PADDED)
    dims = tl.arange(0, DIM_PADDED)
    first = 0
    if SHARED_PARTS > 0:
        first = tl.where(tl.load(skip_ptr + row // HEADS) > 0, 0, SHARED_PARTS)
    written = (parts >= first) & (parts < PARTS)
    lse = tl.load(lse_ptr + row * PARTS + parts, mask=written, other=float("-inf"))
    top = tl.max(lse, 0)
    weights = tl.exp2(lse - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(weights, 0)
    weights = weights / tl.where(total > 0, total, 1.0)
    wanted = (lse > float("-inf"))[:, None] & (dims < DIM)[None, :]
    values = tl.load(part_ptr + (row * PARTS + parts)[:, None] * DIM + dims[None, :], mask=wanted, other=0.0)
    out = tl.sum(values * weights[:, None], 0)
    tl.store(out_ptr + row * DIM + dims, out.to(out_ptr.dtype.element_ty), mask=dims < DIM)


def decode_attention(
    q: Tensor, kv: DevicePages, page_table: Tensor, lens: Tensor, scale: float, window: int = 0
) -> Tensor:
    splits = num_splits(len(q) * kv.kv_heads, page_table.shape[1], q.device)
    if splits == 1:
        out = torch.empty_like(q)
        launch_splits(q, kv, page_table, lens, scale, window, 1, (out, None))
        return out
    part, lse = new_parts(q, splits)
    launch_splits(q, kv, page_table, lens, scale, window, splits, (part, lse))
    return merged(q, part, lse)


def num_splits(programs: int, max_pages: int, device: torch.device) -> int:
    """1 where there are programs enough as it is. Else so many that a processor gets one more or less than another
    hardly matters, as far as the sequences may be long enough to be divided."""
    available = processors(device)
    if programs >= _ENOUGH_PER_PROCESSOR * available:
        return 1
    wanted = -(-_WANTED_PER_PROCESSOR * available // max(1, programs))
    most = max(1, max_pages * PAGE_SIZE // _MIN_SPLIT_TOKENS)
    return min(wanted, most, _MAX_SPLITS)


def new_parts(q: Tensor, parts: int) -> tuple[Tensor, Tensor]:
    rows, heads, dim = q.shape
    part = torch.empty(rows, heads, parts, dim, dtype=torch.float32, device=q.device)
    return part, torch.empty(rows, heads, parts, dtype=torch.float32, device=q.device)


def launch_splits(
    q: Tensor,
    kv: DevicePages,
    page_table: Tensor,
    lens: Tensor,
    scale: float,
    window: int,
    splits: int,
    parts: tuple[Tensor, Tensor | None],
    first_split: int = 0,
    skip_pages: Tensor | None = None,
) -> None:
    """Attends to all tokens but those of the first `skip_pages` pages [S]; fills parts [first_split, first_split +
    splits). Without log-sum-exps the only part is the result."""
    rows, heads, dim = q.shape
    assert q.is_contiguous() and dim == kv.head_dim and heads % kv.kv_heads == 0, (q.shape, kv.keys.shape)
    assert page_table.shape[0] == rows and lens.shape == (rows,), (page_table.shape, lens.shape)
    check_indices(q.device, page_table=page_table, lens=lens)
    if rows == 0:
        return
    group = heads // kv.kv_heads
    num_parts = 1 if parts[1] is None else parts[1].shape[2]
    split_kernel[(rows, kv.kv_heads, splits)](
        q, kv.keys, kv.values, kv.scales, page_table, lens, skip_pages, *parts,
        scale * LOG2_E, window, page_table.stride(0), first_split, num_parts,
        KV_HEADS=kv.kv_heads, GROUP=group, GROUP_PADDED=max(DOT_ROWS, power_of_two(group)),
        DIM=dim, DIM_PADDED=max(16, power_of_two(dim)), PAGE=PAGE_SIZE, BLOCK=BLOCK_TOKENS, SPLITS=splits,
        WINDOW=window > 0, SKIP=skip_pages is not None, FP8=kv.scales is not None, UPCAST=INTERPRETED,
        # 4 warps: with 16 rows there is one tile to multiply, and what counts is how many loads are on their way.
        **({} if INTERPRETED else {"num_warps": 4, "num_stages": STAGES}),
    )  # fmt: skip


def merged(q: Tensor, part: Tensor, lse: Tensor, shared_parts: int = 0, skip_pages: Tensor | None = None) -> Tensor:
    rows, heads, dim = q.shape
    out = torch.empty_like(q)
    if rows:
        merge_kernel[(rows * heads,)](
            part, lse, skip_pages, out, HEADS=heads, PARTS=lse.shape[2], SHARED_PARTS=shared_parts,
            PARTS_PADDED=power_of_two(lse.shape[2]), DIM=dim, DIM_PADDED=power_of_two(dim),
            **({} if INTERPRETED else {"num_warps": 4 if lse.shape[2] > 32 else 2}),
        )  # fmt: skip
    return out
