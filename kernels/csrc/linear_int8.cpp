// y = x W^T in int8: each GROUP columns of a row, of x as of W, have a scale of their own, since one outlier would blow
// up the scale of a whole row.
//
// A group's sums are exact integers, and a row's groups are added in ascending order, unfused. So a row's result never
// depends on the rest of the batch, and has the same bits with any instruction set. Activations are stored as q + 128,
// because vpdpbusd multiplies unsigned by signed; `group_sums`, the sums of W over each group, take the
// offset back out.
// Weights are packed [N/16][K/4][16][4] (one vector = 16 outputs x 4 steps of K), their scales and group sums
// [N/16][K/GROUP][16].
#include "vec.h"

#include <memory>

namespace {

constexpr int64_t GROUP = 64;  // GROUP_SIZE of base.py
constexpr int ROWS = 6;        // 6 rows x 2 vectors = 12 sums + 12 totals + 2 weights + 1 broadcast of 32 registers
constexpr int BLOCKS = 2;      // of 16 outputs
constexpr int64_t PANEL = 96;  // rows of x that stay in L2 beside a weight block: 96 x 1536 = 144 KiB

typedef int16_t i16x16 __attribute__((vector_size(32)));

struct Linear {
    const uint8_t* x;      // [groups][m][GROUP]: the rows of a block lie at distances that the compiler knows
    const float* x_scale;  // [groups][m]
    const int8_t* weight;
    const float* weight_scale;
    const int16_t* group_sums;
    float* y;
    int64_t m, n, k4, groups;
};

// Distances from a weight to the two that are fetched into L2 meanwhile; 0 for none.
struct Ahead {
    int64_t first, second;
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

INLINE i32x16 minus_128_times(const int16_t* from) {
    i16x16 v;
    memcpy(&v, from, sizeof v);
    return __builtin_convertvector(v, i32x16) * -128;
}

// Few scalars live through the inner loop, on purpose: GCC spills them to vector registers, and then spills weights.
template <int R, int B>
void block(const Linear& a, int64_t row, int64_t first_block, Ahead ahead) {
    const int64_t block_bytes = a.k4 * 64;
    const int8_t* w = a.weight + first_block * block_bytes;
    const int8_t* const w_end = w + block_bytes;
    const int64_t block_groups = a.groups * LANES;
    const int16_t* group_sums = a.group_sums + first_block * block_groups;
    const float* scale = a.weight_scale + first_block * block_groups;
    const uint8_t* x_group = a.x + row * GROUP;
    const float* x_scale = a.x_scale + row;
    f32x16 totals[R][B] = {};
    for (; w < w_end; group_sums += LANES, scale += LANES, x_group += a.m * GROUP, x_scale += a.m) {
        i32x16 sums[R][B];
        for (int b = 0; b < B; b++) {
            const i32x16 start = minus_128_times(group_sums + b * block_groups);
            for (int r = 0; r < R; r++) sums[r][b] = start;
        }
        const uint8_t* x = x_group;
        const int8_t* const end = w_end - w < GROUP * LANES ? w_end : w + GROUP * LANES;
        for (; w < end; w += 64, x += 4) {
            __builtin_prefetch(w + ahead.first, 0, 2);
            __builtin_prefetch(w + ahead.second, 0, 2);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                int32_t word;
                memcpy(&word, x + r * GROUP, sizeof word);
                const i32x16 quad = splat(word);
#pragma GCC unroll 8
                for (int b = 0; b < B; b++) sums[r][b] = dot4(sums[r][b], quad, w + b * block_bytes);
            }
        }
        for (int r = 0; r < R; r++)
            for (int b = 0; b < B; b++)
                totals[r][b] += to_float(sums[r][b]) * (splat(x_scale[r]) * load(scale + b * block_groups));
    }
    for (int b = 0; b < B; b++) {
        const int64_t column = (first_block + b) * LANES;
        const int64_t count = a.n - column < LANES ? a.n - column : LANES;
        for (int r = 0; r < R; r++) {
            float* to = a.y + (row + r) * a.n + column;
            if (count == LANES) store(to, totals[r][b]);
            else store_part(to, totals[r][b], count);
        }
    }
}

template <int R>
void row_block(const Linear& a, int64_t row, int64_t from, int64_t to, Ahead ahead) {
    if (to - from == BLOCKS) return block<R, BLOCKS>(a, row, from, ahead);
    for (; from < to; from++) block<R, 1>(a, row, from, Ahead{});
}

using RowBlock = void (*)(const Linear&, int64_t, int64_t, int64_t, Ahead);
constexpr RowBlock ROW_BLOCK[ROWS + 1] = {nullptr,      row_block<1>, row_block<2>, row_block<3>,
                                          row_block<4>, row_block<5>, row_block<6>};

// Rows [row, end) by BLOCKS blocks of columns. Meanwhile the next blocks' weights are prefetched into L2, one in each
// of the first passes or both in the only one: from DRAM, 6 rows of 49152 x 576 took 1.6 ms with it and 3.1 ms without.
void column_task(const Linear& a, int64_t row, int64_t end, int64_t from) {
    const int64_t blocks = (a.n + LANES - 1) / LANES, to = from + BLOCKS < blocks ? from + BLOCKS : blocks;
    const int64_t passes = (end - row + ROWS - 1) / ROWS, block_bytes = a.k4 * 64;
    for (int64_t pass = 0; pass < passes; pass++) {
        // 7 rows are 4 + 3, not 6 + 1: a lone row has too few accumulators to hide vpdpbusd's latency.
        const int64_t left = passes - pass, rows = (end - row + left - 1) / left;
        Ahead ahead{};
        if (pass < BLOCKS) ahead.first = (BLOCKS + pass) * block_bytes;
        if (passes == 1) ahead.second = (BLOCKS + 1) * block_bytes;
        ROW_BLOCK[rows](a, row, from, to, ahead);
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

void quantise_row(const float* x, uint8_t* q, float* scale, int64_t m, int64_t k) {
    for (; k >= GROUP; k -= GROUP, x += GROUP, q += m * GROUP, scale += m) *scale = quantise(x, q, GROUP);
    if (k > 0) *scale = quantise(x, q, k);
}

// `data`, `scale` and `group_sums` are those of the row's lane in its block of 16.
void pack_row(const float* weight, int8_t* data, float* scale, int16_t* group_sums, int64_t k) {
    for (; k > 0; k -= GROUP, weight += GROUP, scale += LANES, group_sums += LANES) {
        const int64_t count = k < GROUP ? k : GROUP;
        uint8_t q[GROUP];
        memset(q, 128, sizeof q);
        *scale = quantise(weight, q, count);
        int32_t sum = 0;
        for (uint8_t& value : q) {
            sum += value;
            value ^= 128;  // q + 128 to q
        }
        *group_sums = int16_t(sum - 128 * GROUP);
        for (int64_t i = 0; i < count; i += 4, data += 4 * LANES) memcpy(data, q + i, 4);
    }
}

}  // namespace

// Into zeroed data, scale and group_sums, whose padding is left as it is.
extern "C" void pack_int8(const float* weight, int8_t* data, float* scale, int16_t* group_sums, int64_t n, int64_t k,
                          int threads) {
    const int64_t k4 = (k + 3) / 4, groups = (k + GROUP - 1) / GROUP;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < n; row++) {
        const int64_t block = row / LANES, lane = row % LANES;
        const int64_t first = block * groups * LANES + lane;
        pack_row(weight + row * k, data + (block * k4 * LANES + lane) * 4, scale + first, group_sums + first, k);
    }
}

extern "C" void linear_int8(const float* x, const int8_t* weight, const float* weight_scale, const int16_t* group_sums,
                            float* y, int64_t m, int64_t n, int64_t k, int threads) {
    const int64_t k4 = (k + 3) / 4, groups = (k + GROUP - 1) / GROUP, blocks = (n + LANES - 1) / LANES;
    std::unique_ptr<uint8_t[]> q(new uint8_t[size_t(groups * m * GROUP)]);
    std::unique_ptr<float[]> x_scale(new float[size_t(groups * m)]);
    const Linear a{q.get(), x_scale.get(), weight, weight_scale, group_sums, y, m, n, k4, groups};
    const int64_t column_tasks = (blocks + BLOCKS - 1) / BLOCKS, panels = (m + PANEL - 1) / PANEL;

#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for
        for (int64_t row = 0; row < m; row++)
            quantise_row(x + row * k, q.get() + row * GROUP, x_scale.get() + row, m, k);
#pragma omp for collapse(2)
        for (int64_t panel = 0; panel < panels; panel++) {
            for (int64_t task = 0; task < column_tasks; task++) {
                const int64_t end = (panel + 1) * PANEL < m ? (panel + 1) * PANEL : m;
                column_task(a, panel * PANEL, end, task * BLOCKS);
            }
        }
    }
}
