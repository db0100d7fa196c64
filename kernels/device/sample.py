"""Tokens from logits on the device: the likeliest, or one drawn from what top_k, min_p and top_p leave.

Nothing is sorted. Logits are mapped to 32-bit keys in their own order, and every cut is a threshold on the key: the
k-th largest, the one above which lies top_p of the mass, and at last the one at which the cumulative mass passes the
point. Each is found four bits at a time: a pass over the row looks at 16 candidates at once. All bits take 8 passes;
logits that are narrower have keys that differ in fewer bits, and bf16 takes 4.
The order is that of kernels.draw: logit, then id, or by id alone where nothing is cut.
"""

# Kernels are in Triton's own language, which only looks like Python.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, possibly-undefined, attr-defined"

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
_ARGMAX_BLOCK = 4096
_PIVOTS = 16
_DIGITS = {torch.float32: 8, torch.float16: 5, torch.bfloat16: 4}
"""Of a key, four bits each: as fp32, bf16 fills 16 bits and fp16 19."""
UNUSABLE = -1
"""In place of a token: the row holds NaN or +inf, or nothing but -inf."""


@triton.jit
def _key(x, DIGITS: tl.constexpr):
    """uint32 in the order of the floats; what they don't fill of its lower bits is 0."""
    bits = (x + 0.0).to(tl.uint32, bitcast=True)  # -0.0 becomes 0.0, which it equals
    key = tl.where(bits >> 31 == 1, ~bits, bits | 0x80000000)
    return key >> (32 - 4 * DIGITS) << (32 - 4 * DIGITS)


@triton.jit
def _load(logits_ptr, row, first, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    ids = first + tl.arange(0, BLOCK)
    return tl.load(logits_ptr + row * WIDTH + ids, mask=ids < WIDTH, other=float("-inf")).to(tl.float32)


@triton.jit
def _weight(x, top, temperature):
    return tl.exp((x - top) / temperature)


@triton.jit
def _threshold(
    logits_ptr, row, top, temperature, floor, wanted,
    COUNT: tl.constexpr, STRICTLY: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, PIVOTS: tl.constexpr, DIGITS: tl.constexpr,
):  # fmt: skip
    """The largest key above or at which lies `wanted`: so many tokens (COUNT), else so much mass, or more than that
    (STRICTLY). At the key `floor`, of whose tokens only some may count, all of the mass is there: it always passes."""
    base = tl.full([], 0, tl.uint32)
    lanes = tl.arange(0, PIVOTS).to(tl.uint32)
    shift = tl.full([], 28, tl.uint32)
    # No static_range: unrolled, this takes 9 s to compile instead of 1.6.
    for _ in range(0, DIGITS):
        pivots = base | (lanes << shift)
        sums = tl.zeros([PIVOTS], tl.float32)
        for first in range(0, WIDTH, BLOCK):
            x = _load(logits_ptr, row, first, WIDTH, BLOCK)
            key = _key(x, DIGITS)
            if COUNT:
                real = first + tl.arange(0, BLOCK) < WIDTH
                value = tl.where(real, 1.0, 0.0)
            else:
                value = tl.where(key > floor, _weight(x, top, temperature), 0.0)
            sums += tl.sum(tl.where(key[None, :] >= pivots[:, None], value[None, :], 0.0), 1)
        if COUNT:
            passes = sums >= wanted
        elif STRICTLY:
            passes = (pivots <= floor) | (sums > wanted)
        else:
            passes = (pivots <= floor) | (sums >= wanted)
        passes = passes | (lanes == 0)
        base = base | (tl.max(tl.where(passes, lanes, 0), 0).to(tl.uint32) << shift)
        shift = (shift - 4).to(tl.uint32)
    return base


@triton.jit
def _around(
    logits_ptr, row, key_at, top, temperature, WIDTH: tl.constexpr, BLOCK: tl.constexpr, DIGITS: tl.constexpr
):  # fmt: skip
    """Of a row: the mass above a key, how many tokens lie above it, how many at it, and the weight of each of those."""
    mass = 0.0
    above = 0
    at = 0
    weight = 0.0
    for first in range(0, WIDTH, BLOCK):
        x = _load(logits_ptr, row, first, WIDTH, BLOCK)
        real = first + tl.arange(0, BLOCK) < WIDTH
        key = _key(x, DIGITS)
        weights = _weight(x, top, temperature)
        mass += tl.sum(tl.where(key > key_at, weights, 0.0), 0)
        above += tl.sum((real & (key > key_at)).to(tl.int32), 0)
        at += tl.sum((real & (key == key_at)).to(tl.int32), 0)
        weight = tl.maximum(weight, tl.max(tl.where(key == key_at, weights, 0.0), 0))
    return mass, above, at, weight


@triton.jit
def _nth_at(logits_ptr, row, key_at, n, WIDTH: tl.constexpr, BLOCK: tl.constexpr, DIGITS: tl.constexpr):
    """The id of the n-th token, from 0, whose key is this one."""
    found = WIDTH
    before = 0
    for first in range(0, WIDTH, BLOCK):
        ids = first + tl.arange(0, BLOCK)
        key = _key(_load(logits_ptr, row, first, WIDTH, BLOCK), DIGITS)
        here = ((ids < WIDTH) & (key == key_at)).to(tl.int32)
        place = before + tl.cumsum(here, 0) - here
        found = tl.minimum(found, tl.min(tl.where((here == 1) & (place == n), ids, WIDTH), 0))
        before += tl.sum(here, 0)
    return found


@triton.jit
def _by_id(logits_ptr, row, top, temperature, point, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The first id at which the cumulative mass of all passes the point's share."""
    total = 0.0
    for first in range(0, WIDTH, BLOCK):
        total += tl.sum(_weight(_load(logits_ptr, row, first, WIDTH, BLOCK), top, temperature), 0)
    target = point * total
    found = WIDTH
    last = 0
    before = 0.0
    for first in range(0, WIDTH, BLOCK):
        ids = first + tl.arange(0, BLOCK)
        weights = _weight(_load(logits_ptr, row, first, WIDTH, BLOCK), top, temperature)
        cumulative = before + tl.cumsum(weights, 0)
        found = tl.minimum(found, tl.min(tl.where((cumulative > target) & (weights > 0), ids, WIDTH), 0))
        last = tl.maximum(last, tl.max(tl.where(weights > 0, ids, 0), 0))
        before += tl.sum(weights, 0)
    # Rounding may leave the last token's sum at the target.
    return tl.where(found < WIDTH, found, last)


@triton.jit
def _cut(
    logits_ptr, row, top, temperature, top_k, top_p, min_p, point,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, PIVOTS: tl.constexpr, DIGITS: tl.constexpr,
):  # fmt: skip
    kept = tl.where(top_k > 0, tl.minimum(top_k, WIDTH), WIDTH)
    if min_p > 0:
        least = top + temperature * tl.log(min_p)
        likely = 0
        for first in range(0, WIDTH, BLOCK):
            likely += tl.sum((_load(logits_ptr, row, first, WIDTH, BLOCK) >= least).to(tl.int32), 0)
        kept = tl.maximum(tl.minimum(kept, likely), 1)
    # Kept are all above `floor`, and the first `ties` of those at it.
    floor = tl.full([], 0, tl.uint32)
    if kept < WIDTH:
        wanted = kept.to(tl.float32)
        floor = _threshold(logits_ptr, row, top, temperature, floor, wanted, True, False, WIDTH, BLOCK, PIVOTS, DIGITS)
    mass, above, at, weight = _around(logits_ptr, row, floor, top, temperature, WIDTH, BLOCK, DIGITS)
    ties = tl.minimum(kept - above, at)
    total = mass + ties * weight
    if top_p < 1:
        share = top_p * total
        lower = floor
        floor = _threshold(logits_ptr, row, top, temperature, lower, share, False, False, WIDTH, BLOCK, PIVOTS, DIGITS)
        most = tl.where(floor == lower, ties, WIDTH)
        mass, above, at, weight = _around(logits_ptr, row, floor, top, temperature, WIDTH, BLOCK, DIGITS)
        needed = tl.ceil((share - mass) / tl.where(weight > 0, weight, 1.0)).to(tl.int32)
        ties = tl.minimum(tl.maximum(needed, 1), tl.minimum(at, most))
        total = mass + ties * weight
    # A little less than all, or rounding might leave no token but one of no weight.
    target = point * total * (1 - 1e-6)
    chosen = _threshold(logits_ptr, row, top, temperature, floor, target, False, True, WIDTH, BLOCK, PIVOTS, DIGITS)
    mass, above, at, weight = _around(logits_ptr, row, chosen, top, temperature, WIDTH, BLOCK, DIGITS)
    at = tl.where(chosen == floor, ties, at)
    place = tl.floor((target - mass) / tl.where(weight > 0, weight, 1.0)).to(tl.int32)
    return _nth_at(logits_ptr, row, chosen, tl.minimum(tl.maximum(place, 0), at - 1), WIDTH, BLOCK, DIGITS)


@triton.jit
def draw_kernel(
    logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, points_ptr, out_ptr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, PIVOTS: tl.constexpr, DIGITS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    top = float("-inf")
    bad = 0
    best = WIDTH
    for first in range(0, WIDTH, BLOCK):
        ids = first + tl.arange(0, BLOCK)
        x = _load(logits_ptr, row, first, WIDTH, BLOCK)
        bad += tl.sum(((x != x) | (x == float("inf"))).to(tl.int32), 0)
        here = tl.max(x, 0)
        first_of = tl.min(tl.where(x == here, ids, WIDTH), 0)
        best = tl.where(here > top, first_of, best)
        top = tl.maximum(top, here)
    token = best
    temperature = tl.load(temperature_ptr + row)
    if (bad > 0) | (top == float("-inf")):
        token = -1
    elif temperature > 0:
        top_k = tl.load(top_k_ptr + row)
        top_p = tl.load(top_p_ptr + row)
        min_p = tl.load(min_p_ptr + row)
        point = tl.load(points_ptr + row).to(tl.float32)
        if (top_k <= 0) & (top_p >= 1) & (min_p <= 0):
            token = _by_id(logits_ptr, row, top, temperature, point, WIDTH, BLOCK)
        else:
            token = _cut(logits_ptr, row, top, temperature, top_k, top_p, min_p, point, WIDTH, BLOCK, PIVOTS, DIGITS)
    tl.store(out_ptr + row, token.to(tl.int64))


@triton.jit
def argmax_kernel(logits_ptr, out_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top = float("-inf")
    best = 0
    for first in range(0, WIDTH, BLOCK):
        ids = first + tl.arange(0, BLOCK)
        x = _load(logits_ptr, row, first, WIDTH, BLOCK)
        here = tl.max(x, 0)
        first_of = tl.min(tl.where(x == here, ids, WIDTH), 0)
        best = tl.where(here > top, first_of, best)
        top = tl.maximum(top, here)
    tl.store(out_ptr + row, best.to(tl.int64))


def argmax(logits: Tensor) -> Tensor:
    rows, width = logits.shape
    assert logits.is_contiguous(), logits.stride()
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        argmax_kernel[(rows,)](logits, out, WIDTH=width, BLOCK=_ARGMAX_BLOCK, num_warps=8)
    return out


def draw(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, points: Tensor) -> Tensor:
    rows, width = logits.shape
    assert logits.is_contiguous(), logits.stride()
    assert top_k.dtype == torch.int32 and points.dtype == torch.float64, (top_k.dtype, points.dtype)
    for part in (temperature, top_p, min_p):
        assert part.dtype == torch.float32, part.dtype
    for part in (temperature, top_k, top_p, min_p, points):
        assert part.shape == (rows,) and part.is_contiguous() and part.device == logits.device, part.shape
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        draw_kernel[(rows,)](
            logits, temperature, top_k, top_p, min_p, points, out,
            WIDTH=width, BLOCK=_BLOCK, PIVOTS=_PIVOTS, DIGITS=_DIGITS[logits.dtype], num_warps=8,
        )  # fmt: skip
    return out
