"""SwiGLU's activation: silu(gate) · up."""

# Kernels are in Triton's own language, which only looks like Python.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, possibly-undefined, attr-defined"

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def silu_mul_kernel(x_ptr, out_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = column < WIDTH
    gate = tl.load(x_ptr + row * 2 * WIDTH + column, mask=real, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * WIDTH + WIDTH + column, mask=real, other=0.0).to(tl.float32)
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * WIDTH + column, out.to(out_ptr.dtype.element_ty), mask=real)


def silu_mul(gate_up: Tensor) -> Tensor:
    rows, both = gate_up.shape
    assert gate_up.is_contiguous() and both % 2 == 0, (gate_up.shape, gate_up.stride())
    out = gate_up.new_empty(rows, both // 2)
    if rows:
        silu_mul_kernel[(rows, -(-both // 2 // _BLOCK))](gate_up, out, WIDTH=both // 2, BLOCK=_BLOCK)
    return out
