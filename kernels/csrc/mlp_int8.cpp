// down(silu(gate(x)) * up(x)) in int8: two products and what is between them, in one call. Its bits are those of
// linear_int8, silu_mul and linear_int8.
#include "gemm_int8.h"
#include "silu.h"

#include <vector>

namespace {

constexpr int64_t ROWS = 64;  // at once: what is between the products stays near, 64 x 3072 floats = 768 KiB

void mlp(const float* x, const Weight& gate_up, const Weight& down, float* y, int64_t m, int threads) {
    Rows in(m, gate_up.k), hidden(m, down.k);
    std::unique_ptr<float[]> expanded(new float[size_t(m * gate_up.n)]);
    on_threads(threads, [&] {
        std::vector<float> activated(size_t(down.k));
#pragma omp for
        for (int64_t row = 0; row < m; row++) in.set(row, x + row * gate_up.k);
        multiply(in, gate_up, expanded.get());
#pragma omp for
        for (int64_t row = 0; row < m; row++) {
            silu_mul_row(expanded.get() + row * gate_up.n, activated.data(), down.k);
            hidden.set(row, activated.data());
        }
        multiply(hidden, down, y);
    });
}

}  // namespace

// gate_up [2 f, k], down [n, f].
extern "C" void mlp_int8(const float* x, const uint8_t* gate_up, const float* gate_up_scale, const uint8_t* down,
                         const float* down_scale, float* y, int64_t m, int64_t k, int64_t f, int64_t n, int threads) {
    for (int64_t row = 0; row < m; row += ROWS)
        mlp(x + row * k, {gate_up, gate_up_scale, 2 * f, k}, {down, down_scale, n, f}, y + row * n,
            std::min(ROWS, m - row), threads);
}
