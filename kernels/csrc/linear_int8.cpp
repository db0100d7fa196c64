// y = x W^T with int8 weights (one scale a row of W) and activations quantised a row and GROUP columns at a time.
//
// A group's sums are exact integers; its scale and the order in which a row's groups are added are the row's own. So a
// row's result never depends on the rest of the batch, and multiply and add aren't fused, so it's the same everywhere.
// Activations are stored as q + 128, because vpdpbusd multiplies unsigned by signed; `compensation` [K/GROUP][N] =
// -128 * (sum of W's row over the group) takes the offset back out. Weights are packed [N/16][K/4][16][4]: one vector =
// 16 outputs x 4 steps of K.
#include "vec.h"

#include <memory>

namespace {

#ifndef GROUP_SIZE
#define GROUP_SIZE 64
#endif
constexpr int64_t GROUP = GROUP_SIZE;
constexpr int ROWS = 6;    // 6 rows x 4 vectors = 24 accumulators + 4 weights + 1 broadcast of 32 registers
constexpr int BLOCKS = 4;  // of 16 outputs
constexpr int64_t PANEL = 96;  // rows of x that stay in L2 beside a weight block: 96 x 1536 = 144 KiB

struct Linear {
    const uint8_t* x;
    const float* x_scale;
    const int8_t* weight;
    const float* weight_scale;
    const int32_t* compensation;
    float* y;
    int64_t m, n, k4, groups;
};

INLINE i32x16 dot4(i32x16 sum, i32x16 x, const int8_t* w) {
#if defined(__AVX512VNNI__)
    return i32x16(_mm512_dpbusd_epi32(__m512i(sum), __m512i(x), _mm512_loadu_si512(w)));
#else
    const int32_t word = x[0];
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < 4; j++) sum[i] += ((word >> (8 * j)) & 0xff) * w[4 * i + j];
    return sum;
#endif
}

INLINE f32x16 to_float(i32x16 v) { return __builtin_convertvector(v, f32x16); }

template <int R, int B>
void block(const Linear& a, int64_t row, int64_t first_block, const int8_t* next, int64_t lines) {
    const int64_t block_bytes = a.k4 * 64, padded_n = (a.n + LANES - 1) / LANES * LANES;
    const int8_t* w = a.weight + first_block * block_bytes;
    const uint8_t* x = a.x + row * a.k4 * 4;
    f32x16 totals[R][B] = {};
    for (int64_t group = 0; group < a.groups; group++) {
        i32x16 sums[R][B];
        for (int b = 0; b < B; b++) {
            i32x16 start;
            memcpy(&start, a.compensation + group * padded_n + (first_block + b) * LANES, sizeof start);
            for (int r = 0; r < R; r++) sums[r][b] = start;
        }
        const int64_t left = a.k4 - group * (GROUP / 4), steps = left < GROUP / 4 ? left : GROUP / 4;
        for (int64_t k = 0; k < steps; k++, w += 64, x += 4) {
            for (const int8_t* end = next + lines * 64; next < end; next += 64) __builtin_prefetch(next, 0, 2);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                int32_t word;
                memcpy(&word, x + r * a.k4 * 4, sizeof word);
                const i32x16 quad = splat(word);
#pragma GCC unroll 8
                for (int b = 0; b < B; b++) sums[r][b] = dot4(sums[r][b], quad, w + b * block_bytes);
            }
        }
        for (int r = 0; r < R; r++) {
            const f32x16 scale = splat(a.x_scale[(row + r) * a.groups + group]);
            for (int b = 0; b < B; b++) totals[r][b] = totals[r][b] + to_float(sums[r][b]) * scale;
        }
    }
    for (int b = 0; b < B; b++) {
        const int64_t column = (first_block + b) * LANES;
        const f32x16 scale = load(a.weight_scale + column);
        const int64_t count = a.n - column < LANES ? a.n - column : LANES;
        for (int r = 0; r < R; r++) {
            const f32x16 y = totals[r][b] * scale;
            float* to = a.y + (row + r) * a.n + column;
            if (count == LANES) store(to, y);
            else store_part(to, y, count);
        }
    }
}

template <int R>
void row_block(const Linear& a, int64_t row, int64_t from, int64_t to, const int8_t* next, int64_t lines) {
    if (to - from == BLOCKS) return block<R, BLOCKS>(a, row, from, next, lines);
    for (; from < to; from++) block<R, 1>(a, row, from, next, 0);
}

using RowBlock = void (*)(const Linear&, int64_t, int64_t, int64_t, const int8_t*, int64_t);
constexpr RowBlock ROW_BLOCK[ROWS + 1] = {nullptr,      row_block<1>, row_block<2>, row_block<3>,
                                          row_block<4>, row_block<5>, row_block<6>};

// Rows [row, end) by BLOCKS blocks of columns. Meanwhile the next blocks' weights are prefetched into L2, spread over
// the first passes: from DRAM, 6 rows of 3072 x 576 took 96 us with it and 141 us without (1 row, which is all
// bandwidth: 96 us).
void column_task(const Linear& a, int64_t row, int64_t end, int64_t from) {
    const int64_t blocks = (a.n + LANES - 1) / LANES, to = from + BLOCKS < blocks ? from + BLOCKS : blocks;
    const int64_t passes = (end - row + ROWS - 1) / ROWS, lines = (BLOCKS + passes - 1) / passes;
    const int8_t* next = a.weight + to * a.k4 * 64;
    for (int64_t pass = 0; pass < passes; pass++) {
        // 7 rows are 4 + 3, not 6 + 1: a lone row has too few accumulators to hide vpdpbusd's latency.
        const int64_t left = passes - pass, rows = (end - row + left - 1) / left;
        ROW_BLOCK[rows](a, row, from, to, next, pass * lines < BLOCKS ? lines : 0);
        next += lines * a.k4 * 64;
        row += rows;
    }
}

// The bits of a non-negative float order as integers do, and NaN comes last: a NaN anywhere makes the scale NaN.
INLINE float absmax(const float* x, int64_t k) {
    int32_t best = 0;
    for (int64_t i = 0; i < k; i++) {
        int32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffff;
        best = bits > best ? bits : best;
    }
    float out;
    memcpy(&out, &best, sizeof out);
    return out;
}

INLINE float quantise(const float* x, uint8_t* q, int64_t k) {
    const float top = absmax(x, k);
    const float inverse = top > 1e-30f ? 127.0f / top : 0.0f;
    for (int64_t i = 0; i < k; i++) {
        const float shifted = x[i] * inverse + 12582912.0f;  // rounds to nearest even, see exp2
        int32_t bits;
        memcpy(&bits, &shifted, sizeof bits);
        q[i] = uint8_t(bits + 128);
    }
    return top / 127.0f;
}

void quantise_row(const float* x, uint8_t* q, float* scale, int64_t k) {
    for (; k >= GROUP; k -= GROUP, x += GROUP, q += GROUP) *scale++ = quantise(x, q, GROUP);
    if (k > 0) *scale = quantise(x, q, k);
}

}  // namespace

extern "C" void linear_int8(const float* x, const int8_t* weight, const float* weight_scale,
                            const int32_t* compensation, float* y, int64_t m, int64_t n, int64_t k, int threads) {
    const int64_t k4 = (k + 3) / 4, groups = (k + GROUP - 1) / GROUP, blocks = (n + LANES - 1) / LANES;
    std::unique_ptr<uint8_t[]> q(new uint8_t[size_t(m * k4 * 4)]);
    std::unique_ptr<float[]> x_scale(new float[size_t(m * groups)]);
    const Linear a{q.get(), x_scale.get(), weight, weight_scale, compensation, y, m, n, k4, groups};
    const int64_t column_tasks = (blocks + BLOCKS - 1) / BLOCKS, panels = (m + PANEL - 1) / PANEL;

#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for
        for (int64_t row = 0; row < m; row++)
            quantise_row(x + row * k, q.get() + row * k4 * 4, x_scale.get() + row * groups, k);
#pragma omp for collapse(2)
        for (int64_t panel = 0; panel < panels; panel++) {
            for (int64_t task = 0; task < column_tasks; task++) {
                const int64_t end = (panel + 1) * PANEL < m ? (panel + 1) * PANEL : m;
                column_task(a, panel * PANEL, end, task * BLOCKS);
            }
        }
    }
}
