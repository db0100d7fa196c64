// SwiGLU's activation, for the kernels that need it.
#pragma once

#include "vec.h"

INLINE f32x16 silu(f32x16 x) {
    const f32x16 t = x * splat(-1.44269504088896341f), top = splat(126.0f);
    return x / (splat(1.0f) + exp2(select(t > top, top, t)));
}

// y [f] = silu(first half) * second half of gate_up [2 f].
INLINE void silu_mul_row(const float* gate_up, float* y, int64_t f) {
    const float *gate = gate_up, *up = gate + f;
    int64_t i = 0;
    for (; i + LANES <= f; i += LANES) store(y + i, silu(load(gate + i)) * load(up + i));
    if (i < f) store_part(y + i, silu(load_part(gate + i, f - i)) * load_part(up + i, f - i), f - i);
}
