"""The step that all attention kernels repeat: a block of tokens' K and V, by way of the page table, into a running
softmax (Milakov and Gimelshein 2018; flash attention, Dao 2023)."""

# Kernels are in Triton's own language, which only looks like Python.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, possibly-undefined"

import triton
import triton.language as tl

BLOCK_TOKENS = 64
"""Of a step: 4 pages, each a run of memory; 8 KiB of K at dimension 64 in bf16."""

STAGES = 5
"""The addresses of K and V come from the page table, itself a load. Of so many stages the compiler then gives two to
each of these, so two blocks are on their way while a third is multiplied; with 3 or 4 stages it is one buffer only,
whose load begins when the block before it is done with (seen in what it makes for Hopper: 20 KiB of shared memory
against 37 for decode at dimension 64)."""


@triton.jit
def attend(
    q, top, total, acc, keys_ptr, values_ptr, scales_ptr, table_ptr, token, there, seen, kv_head, factor,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, PAGE: tl.constexpr,
    MASKED: tl.constexpr, FP8: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """(top, total, acc) of q's rows after the block `token` of the sequence with the pages at table_ptr. Masked: tokens
    not `there` [BLOCK] aren't read, such as aren't `seen` [rows, BLOCK], a part of them, don't count. Else all do."""
    dims = tl.arange(0, DIM_PADDED)
    # 64 bits: 50,000 pages of 8 heads of dimension 128 are more than 2^31 elements.
    if MASKED:
        page = tl.load(table_ptr + token // PAGE, mask=there, other=0).to(tl.int64)
        wanted = there[:, None] & (dims < DIM)[None, :]
    else:
        page = tl.load(table_ptr + token // PAGE).to(tl.int64)
        wanted = (dims < DIM)[None, :]
    place = (page * KV_HEADS + kv_head) * PAGE + token % PAGE
    offsets = place[:, None] * DIM + dims[None, :]
    if MASKED or DIM < DIM_PADDED:
        k = tl.load(keys_ptr + offsets, mask=wanted, other=0.0)
        v = tl.load(values_ptr + offsets, mask=wanted, other=0.0)
    else:
        k = tl.load(keys_ptr + offsets)
        v = tl.load(values_ptr + offsets)
    if FP8 or UPCAST:
        k = k.to(q.dtype)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
    if FP8:
        scale_at = scales_ptr + (page * KV_HEADS + kv_head) * 2 * PAGE + token % PAGE
        if MASKED:
            k_scale = tl.load(scale_at, mask=there, other=0.0)
            v_scale = tl.load(scale_at + PAGE, mask=there, other=0.0)
        else:
            k_scale = tl.load(scale_at)
            v_scale = tl.load(scale_at + PAGE)
        scores *= k_scale[None, :]
    if MASKED:
        scores = tl.where(seen, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    # Of a window's first block a row may see nothing: -inf less -inf is no number.
    safe_top = tl.where(new_top == float("-inf"), 0.0, new_top) if MASKED else new_top
    shrink = tl.exp2(top - safe_top)
    weights = tl.exp2(scores - safe_top[:, None])
    total = total * shrink + tl.sum(weights, 1)
    if FP8:
        weights *= v_scale[None, :]
        v = v.to(q.dtype)
    if UPCAST:
        v = v.to(tl.float32)
    acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return new_top, total, acc
