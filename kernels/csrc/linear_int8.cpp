// y = x W^T in int8, and the packing of W; see gemm_int8.h.
#include "gemm_int8.h"

namespace {

// `data` and `scale` are those of the row's lane in its block of 16.
void pack_row(const float* weight, uint8_t* data, float* scale, int64_t k) {
    for (; k > 0; k -= GROUP, weight += GROUP, scale += LANES) {
        int8_t q[GROUP];
        *scale = quantise(weight, q, k).scale;
        for (int64_t i = 0; i < GROUP; i += 4, data += 4 * LANES)
            for (int64_t j = 0; j < 4; j++) data[j] = uint8_t(q[i + j] + 128);
    }
}

}  // namespace

// Rows that pad the last block of 16 are left as they are.
extern "C" void pack_int8(const float* weight, uint8_t* data, float* scale, int64_t n, int64_t k, int threads) {
    const int64_t groups = (k + GROUP - 1) / GROUP;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < n; row++) {
        const int64_t first = row / LANES * groups * LANES, lane = row % LANES;
        pack_row(weight + row * k, data + first * GROUP + lane * 4, scale + first + lane, k);
    }
}

extern "C" void linear_int8(const float* x, const uint8_t* weight, const float* weight_scale, float* y, int64_t m,
                            int64_t n, int64_t k, int threads) {
    Rows rows(m, k);
    const Weight w{weight, weight_scale, n, k};
    on_threads(threads, [&] {
#pragma omp for
        for (int64_t row = 0; row < m; row++) rows.set(row, x + row * k);
        multiply(rows, w, y);
    });
}
