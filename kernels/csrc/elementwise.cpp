// The row-wise kernels: RMSNorm, its fusion with the residual add, and SwiGLU's silu(gate) * up.
#include "silu.h"
#include "vec.h"

namespace {

constexpr int64_t PARALLEL_FROM = 1 << 15;  // elements; below, waking a thread costs more than it saves

// y = x / sqrt(mean(x^2) + eps) * weight. With a residual, x is added to it first and the sum is normalised.
void norm_row(const float* x, float* residual, const float* weight, float* y, int64_t c, float eps) {
    f32x16 squares[4] = {};  // one chain of additions would wait for each
    int64_t i = 0;
    for (int lane = 0; i + LANES <= c; i += LANES, lane = (lane + 1) % 4) {
        f32x16 v = load(x + i);
        if (residual) store(residual + i, v = v + load(residual + i));
        squares[lane] = fma(v, v, squares[lane]);
    }
    if (i < c) {
        f32x16 v = load_part(x + i, c - i);
        if (residual) store_part(residual + i, v = v + load_part(residual + i, c - i), c - i);
        squares[0] = fma(v, v, squares[0]);
    }
    const float sum = reduce_add((squares[0] + squares[1]) + (squares[2] + squares[3]));
    const float scale = 1.0f / std::sqrt(sum / float(c) + eps);
    const float* from = residual ? residual : x;
    for (i = 0; i < c; i++) y[i] = from[i] * scale * weight[i];
}

}  // namespace

extern "C" void rms_norm(const float* x, float* residual, const float* weight, float* y, int64_t t, int64_t c,
                         float eps, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && t * c >= PARALLEL_FROM)
    for (int64_t row = 0; row < t; row++)
        norm_row(x + row * c, residual ? residual + row * c : nullptr, weight, y + row * c, c, eps);
}

extern "C" void silu_mul(const float* gate_up, float* y, int64_t t, int64_t f, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && t * f >= PARALLEL_FROM)
    for (int64_t row = 0; row < t; row++) silu_mul_row(gate_up + row * 2 * f, y + row * f, f);
}
