"""Prefill attention over a paged KV cache: ragged chunks of several sequences, causal, with whatever is cached before
them. A program takes a tile of query rows times the query heads of one KV head (flash attention, Dao 2023).
"""

# Kernels are in Triton's own language, which only looks like Python.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, possibly-undefined, attr-defined"

import triton
import triton.language as tl
from torch import Tensor

from kernels.base import PAGE_SIZE
from kernels.device.base import DevicePages
from kernels.device.launch import INTERPRETED, LOG2_E, check_indices, power_of_two
from kernels.device.online_softmax import BLOCK_TOKENS, STAGES, attend

_TILE = 128
"""Rows times heads of a group: with fewer, K and V are read more often than a level 2 cache can give them."""


@triton.jit
def prefill_kernel(
    q_ptr, keys_ptr, values_ptr, scales_ptr, table_ptr, start_ptr, lens_ptr, out_ptr,
    factor, window, table_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
    PAGE: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    WINDOW: tl.constexpr, FP8: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    # The last tiles see most tokens: begun first, they don't end last.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = tl.program_id(2)
    first_row = tl.load(start_ptr + sequence)
    num_rows = tl.load(start_ptr + sequence + 1) - first_row
    if tile * TILE < num_rows * GROUP:
        length = tl.load(lens_ptr + sequence)
        member = tile * TILE + tl.arange(0, TILE)
        dims = tl.arange(0, DIM_PADDED)
        real_row = member < num_rows * GROUP
        real_dim = dims < DIM
        position = length - num_rows + member // GROUP
        row = (first_row + member // GROUP).to(tl.int64) * (KV_HEADS * GROUP) + kv_head * GROUP + member % GROUP
        both = real_row[:, None] & real_dim[None, :]
        q = tl.load(q_ptr + row[:, None] * DIM + dims[None, :], mask=both, other=0.0)
        if UPCAST:
            q = q.to(tl.float32)
        pages = table_ptr + sequence.to(tl.int64) * table_stride
        # Blocks that every row sees to the full need no mask: all but the last few, and the first of a window.
        least = length - num_rows + tile * TILE // GROUP
        most = length - num_rows + (tile * TILE + TILE - 1) // GROUP
        end = tl.minimum(most + 1, length)
        begin = 0
        whole_from = 0
        if WINDOW:
            begin = tl.maximum(least - window + 1, 0) // BLOCK * BLOCK
            whole_from = tl.cdiv(tl.maximum(most - window + 1, 0), BLOCK) * BLOCK
        whole_to = tl.minimum(least + 1, end) // BLOCK * BLOCK
        whole_to = tl.maximum(whole_to, whole_from) if WINDOW else whole_to
        top = tl.full([TILE], float("-inf"), tl.float32)
        total = tl.zeros([TILE], tl.float32)
        acc = tl.zeros([TILE, DIM_PADDED], tl.float32)
        if WINDOW:
            for first in range(begin, tl.minimum(whole_from, end), BLOCK):
                token = first + tl.arange(0, BLOCK)
                there = token < end
                seen = there[None, :] & (token[None, :] <= position[:, None])
                seen = seen & (token[None, :] > position[:, None] - window)
                top, total, acc = attend(
                    q, top, total, acc, keys_ptr, values_ptr, scales_ptr, pages, token, there, seen, kv_head, factor,
                    KV_HEADS, DIM, DIM_PADDED, PAGE, True, FP8, UPCAST,
                )  # fmt: skip
        for first in range(whole_from, whole_to, BLOCK):
            token = first + tl.arange(0, BLOCK)
            top, total, acc = attend(
                q, top, total, acc, keys_ptr, values_ptr, scales_ptr, pages, token, token, token, kv_head, factor,
                KV_HEADS, DIM, DIM_PADDED, PAGE, False, FP8, UPCAST,
            )  # fmt: skip
        for first in range(whole_to, end, BLOCK):
            token = first + tl.arange(0, BLOCK)
            there = token < end
            seen = there[None, :] & (token[None, :] <= position[:, None])
            if WINDOW:
                seen = seen & (token[None, :] > position[:, None] - window)
            top, total, acc = attend(
                q, top, total, acc, keys_ptr, values_ptr, scales_ptr, pages, token, there, seen, kv_head, factor,
                KV_HEADS, DIM, DIM_PADDED, PAGE, True, FP8, UPCAST,
            )  # fmt: skip
        acc = acc / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out_ptr + row[:, None] * DIM + dims[None, :], acc.to(out_ptr.dtype.element_ty), mask=both)


def prefill_attention(
    q: Tensor,
    kv: DevicePages,
    page_table: Tensor,
    query_start: Tensor,
    lens: Tensor,
    max_query: int,
    scale: float,
    window: int = 0,
) -> Tensor:
    _, heads, dim = q.shape
    sequences = len(lens)
    assert q.is_contiguous() and dim == kv.head_dim and heads % kv.kv_heads == 0, (q.shape, kv.keys.shape)
    assert query_start.shape == (sequences + 1,) and page_table.shape[0] == sequences, query_start.shape
    check_indices(q.device, page_table=page_table, query_start=query_start, lens=lens)
    out = q.new_zeros(q.shape)
    if len(q) == 0:
        return out
    group = heads // kv.kv_heads
    tile = min(_TILE, max(16, power_of_two(max_query * group)))
    prefill_kernel[(-(-max_query * group // tile), kv.kv_heads, sequences)](
        q, kv.keys, kv.values, kv.scales, page_table, query_start, lens, out,
        scale * LOG2_E, window, page_table.stride(0),
        KV_HEADS=kv.kv_heads, GROUP=group, DIM=dim, DIM_PADDED=max(16, power_of_two(dim)),
        PAGE=PAGE_SIZE, BLOCK=BLOCK_TOKENS, TILE=tile,
        WINDOW=window > 0, FP8=kv.scales is not None, UPCAST=INTERPRETED,
        **({} if INTERPRETED else {"num_warps": 8 if tile == _TILE else 4, "num_stages": STAGES}),
    )  # fmt: skip
    return out
