"""Decode attention where rows begin with the same pages: each group's prefix is read once for all of its rows, as one
dense product, the rest of each row as in decode_attention, and the parts are merged by their log-sum-exp (Hydragen,
Juravsky et al. 2024; FlashInfer's cascade).
"""

# Kernels are in Triton's own language, which only looks like Python.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, possibly-undefined, attr-defined"

import triton
import triton.language as tl
from torch import Tensor

from kernels.base import PAGE_SIZE
from kernels.device.base import DevicePages, PrefixGroups
from kernels.device.decode import decode_attention, launch_splits, merged, new_parts, num_splits
from kernels.device.launch import INTERPRETED, LOG2_E, check_indices, power_of_two
from kernels.device.online_softmax import BLOCK_TOKENS, STAGES, attend

_TILE = 64
"""Rows times heads of a KV group that one program multiplies."""
_MAX_PREFIX_SPLITS = 16
"""Programs of groups that aren't there cost their launch."""


@triton.jit
def prefix_kernel(
    q_ptr, keys_ptr, values_ptr, scales_ptr, table_ptr, start_ptr, pages_ptr, part_ptr, lse_ptr,
    factor, table_stride, num_parts,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
    PAGE: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, TILE: tl.constexpr,
    GROUPS: tl.constexpr, GROUPS_PADDED: tl.constexpr, FP8: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Parts [0, SPLITS) of the rows of one group: all of them see the whole prefix. The tiles of all groups are
    numbered through, so that the grid needs no room for each group to hold all rows."""
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    every = tl.arange(0, GROUPS_PADDED)
    starts = tl.load(start_ptr + every, mask=every < GROUPS, other=0)
    ends = tl.load(start_ptr + every + 1, mask=every < GROUPS, other=0)
    shares = tl.load(pages_ptr + every, mask=every < GROUPS, other=0) > 0
    tiles = tl.where(shares, tl.cdiv((ends - starts) * GROUP, TILE), 0)
    row_group = tl.sum((tl.cumsum(tiles, 0) <= tl.program_id(0)).to(tl.int32), 0)
    if row_group < GROUPS:
        tile = tl.program_id(0) - tl.sum(tl.where(every < row_group, tiles, 0), 0)
        first_row = tl.load(start_ptr + row_group)
        num_rows = tl.load(start_ptr + row_group + 1) - first_row
        member = tile * TILE + tl.arange(0, TILE)
        dims = tl.arange(0, DIM_PADDED)
        real_row = member < num_rows * GROUP
        row = (first_row + member // GROUP).to(tl.int64) * (KV_HEADS * GROUP) + kv_head * GROUP + member % GROUP
        both = real_row[:, None] & (dims < DIM)[None, :]
        q = tl.load(q_ptr + row[:, None] * DIM + dims[None, :], mask=both, other=0.0)
        if UPCAST:
            q = q.to(tl.float32)
        length = tl.load(pages_ptr + row_group) * PAGE
        per_split = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK) * BLOCK
        start = split * per_split
        end = tl.minimum(start + per_split, length)
        top = tl.full([TILE], float("-inf"), tl.float32)
        total = tl.zeros([TILE], tl.float32)
        acc = tl.zeros([TILE, DIM_PADDED], tl.float32)
        pages = table_ptr + first_row.to(tl.int64) * table_stride
        for first in range(start, end, BLOCK):
            token = first + tl.arange(0, BLOCK)
            there = token < end
            top, total, acc = attend(
                q, top, total, acc, keys_ptr, values_ptr, scales_ptr, pages, token, there, there[None, :], kv_head,
                factor, KV_HEADS, DIM, DIM_PADDED, PAGE, True, FP8, UPCAST,
            )  # fmt: skip
        part = row * num_parts + split
        some = total > 0
        acc = acc / tl.where(some, total, 1.0)[:, None]
        tl.store(part_ptr + part[:, None] * DIM + dims[None, :], acc, mask=both)
        lse = tl.where(some, top + tl.log2(tl.where(some, total, 1.0)), float("-inf"))
        tl.store(lse_ptr + part, lse, mask=real_row)


def cascade_attention(
    q: Tensor, kv: DevicePages, page_table: Tensor, lens: Tensor, groups: PrefixGroups, scale: float
) -> Tensor:
    """A padding row (length 0) belongs to no group, or to one with 0 pages."""
    rows, heads, dim = q.shape
    assert groups.row_pages.shape == (rows,), (groups.row_pages.shape, rows)
    check_indices(q.device, page_table=page_table, start=groups.start, pages=groups.pages, row_pages=groups.row_pages)
    if rows == 0 or len(groups.pages) == 0:
        return decode_attention(q, kv, page_table, lens, scale)
    group = heads // kv.kv_heads
    num_groups = len(groups.pages)
    # A group's last tile may be cut. Most groups tend to be empty, so splits are counted as if there were one.
    tiles = rows * group // _TILE + min(num_groups, rows)
    one_group = (rows * group // _TILE + 1) * kv.kv_heads
    prefix_splits = min(num_splits(one_group, page_table.shape[1], q.device), _MAX_PREFIX_SPLITS)
    own_splits = num_splits(rows * kv.kv_heads, page_table.shape[1], q.device)
    part, lse = new_parts(q, prefix_splits + own_splits)
    prefix_kernel[(tiles, kv.kv_heads, prefix_splits)](
        q, kv.keys, kv.values, kv.scales, page_table, groups.start, groups.pages, part, lse,
        scale * LOG2_E, page_table.stride(0), prefix_splits + own_splits,
        KV_HEADS=kv.kv_heads, GROUP=group, DIM=dim, DIM_PADDED=max(16, power_of_two(dim)),
        PAGE=PAGE_SIZE, BLOCK=BLOCK_TOKENS, SPLITS=prefix_splits, TILE=_TILE,
        GROUPS=num_groups, GROUPS_PADDED=power_of_two(num_groups), FP8=kv.scales is not None, UPCAST=INTERPRETED,
        **({} if INTERPRETED else {"num_warps": 4, "num_stages": STAGES}),
    )  # fmt: skip
    launch_splits(
        q, kv, page_table, lens, scale, 0, own_splits, (part, lse), prefix_splits, skip_pages=groups.row_pages
    )
    return merged(q, part, lse, prefix_splits, groups.row_pages)
