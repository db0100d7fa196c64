// Rows in int8 and their product with a packed weight, for the kernels that multiply: each GROUP columns of a row of x,
// and of W, have a scale of their own, since one outlier would blow up the scale of a whole row.
//
// A group's sums are exact integers, and a row's groups are added in ascending order, unfused. So a row's result never
// depends on the rest of the batch, and has the same bits with any instruction set. Weights are stored as q + 128,
// because vpdpbusd multiplies unsigned by signed; a group's sums start at -128 times the sum of x to take that out again.
// Weights are packed [N/16][K/4][16][4] (one vector = 16 outputs x 4 steps of K), their scales [N/16][K/GROUP][16]; K is
// padded to whole groups with zeros.
#pragma once

#include "dot.h"
#include "unroll.h"

#include <algorithm>
#include <memory>

constexpr int64_t GROUP = 64;  // GROUP_SIZE of base.py
constexpr int64_t QUADS = GROUP / 4;
static_assert(QUADS == LANES);
#if defined(__AVX512F__)
constexpr int TILE_ROWS = 8;    // 8 rows x 2 vectors = 16 sums + 2 weights + 1 broadcast of 32 registers
constexpr int TILE_BLOCKS = 2;  // of 16 outputs
#else
constexpr int TILE_ROWS = 6;  // 6 rows x 2 registers = 12 sums, of 16 registers
constexpr int TILE_BLOCKS = 1;
#endif
constexpr int64_t PANEL_BYTES = 512 << 10;  // of x, that stay in L2 while the weights pass by

struct Quantised {
    float scale;
    int32_t sum;
};

// Symmetric, to nearest even: q of GROUP columns. The bits of a non-negative float order as integers do, and NaN comes
// last: a NaN anywhere makes the scale NaN.
INLINE Quantised quantise(const float* x, int8_t* q) {
    constexpr int VECTORS = GROUP / LANES;
    i32x16 largest = {}, sum = {};
    for (int i = 0; i < VECTORS; i++) {
        const i32x16 bits = i32x16(load(x + i * LANES)) & splat(int32_t(0x7fffffff));
        largest = max(bits, largest);
    }
    const int32_t bits = reduce_max(largest);
    float top;
    memcpy(&top, &bits, sizeof top);
    const f32x16 inverse = splat(top > 1e-30f ? 127.0f / top : 0.0f), magic = splat(12582912.0f);  // see exp2
    for (int i = 0; i < VECTORS; i++) {
        const i32x16 rounded = i32x16(load(x + i * LANES) * inverse + magic) - i32x16(magic);
        store_bytes(q + i * LANES, rounded);
        sum += rounded;
    }
    return {top / 127.0f, reduce_add(sum)};
}

// The same for the last columns of a row; q of those that are missing is 0.
INLINE Quantised quantise(const float* x, int8_t* q, int64_t count) {
    float padded[GROUP] = {};
    if (count >= GROUP) return quantise(x, q);
    memcpy(padded, x, size_t(count) * sizeof(float));
    return quantise(padded, q);
}

// m rows of k columns in int8.
class Rows {
public:
    const int64_t m, groups;

    Rows(int64_t rows, int64_t k)
        : m(rows), groups((k + GROUP - 1) / GROUP), columns(k), q(new int32_t[size_t(groups * m * QUADS * PLANES)]),
          scales(new float[size_t(groups * m)]), starts(new int32_t[size_t(groups * m)]) {}

    void set(int64_t row, const float* x) {
        for (int64_t group = 0; group < groups; group++, x += GROUP) {
            const int64_t at = group * m + row;
            int32_t* quads = &q[size_t(at * QUADS * PLANES)];
            const Quantised done = quantise(x, reinterpret_cast<int8_t*>(quads), columns - group * GROUP);
            if constexpr (PLANES > 1) store_quads(quads, load_s8(quads), QUADS);
            scales[size_t(at)] = done.scale;
            starts[size_t(at)] = -128 * done.sum;
        }
    }

    // [groups][m][PLANES][QUADS]: the rows of a tile lie at distances that the compiler knows. Scales and starts:
    // [groups][m].
    const int32_t* data(int64_t row) const { return &q[size_t(row * QUADS * PLANES)]; }
    const float* scale(int64_t row) const { return &scales[size_t(row)]; }
    const int32_t* start(int64_t row) const { return &starts[size_t(row)]; }

private:
    const int64_t columns;
    std::unique_ptr<int32_t[]> q;
    std::unique_ptr<float[]> scales;
    std::unique_ptr<int32_t[]> starts;
};

struct Weight {
    const uint8_t* data;
    const float* scale;
    int64_t n, k;

    int64_t blocks() const { return (n + LANES - 1) / LANES; }
    int64_t block_bytes() const { return (k + GROUP - 1) / GROUP * GROUP * LANES; }
    int64_t tasks() const { return (blocks() + TILE_BLOCKS - 1) / TILE_BLOCKS; }
};

// Distances from a weight to the two that are fetched into L2 meanwhile; 0 for none.
struct Ahead {
    int64_t first, second;
};

// Few scalars live through the inner loop, on purpose: GCC spills them to vector registers, and then spills weights.
template <int R, int B>
void tile(const Rows& x, const Weight& weight, float* y, int64_t row, int64_t block, Ahead ahead) {
    const int64_t block_bytes = weight.block_bytes(), block_scales = x.groups * LANES, n = weight.n, m = x.m;
    const uint8_t* w = weight.data + block * block_bytes;
    const uint8_t* const w_end = w + block_bytes;
    const float *scale = weight.scale + block * block_scales, *x_scale = x.scale(row);
    const int32_t* x_group = x.data(row);
    const int32_t* start = x.start(row);
    y += row * n + block * LANES;
    // Results are written a line here and a line there: without this, each write waits for its line.
    repeat<R>([&](auto r) INLINE_LAMBDA {
        repeat<B>([&](auto b) INLINE_LAMBDA { __builtin_prefetch(y + r * n + b * LANES, 1, 3); });
    });
    f32x16 totals[R][B] = {};
    for (; w < w_end; scale += LANES, x_group += m * QUADS * PLANES, x_scale += m, start += m) {
        i32x16 sums[R][B];
        repeat<R>([&](auto r) INLINE_LAMBDA {
            repeat<B>([&](auto b) INLINE_LAMBDA { sums[r][b] = splat(start[r]); });
        });
        const int32_t* q = x_group;
        for (int64_t quad = 0; quad < QUADS; quad++, q++, w += 4 * LANES) {
            __builtin_prefetch(w + ahead.first, 0, 2);
            if constexpr (TILE_BLOCKS > 1) __builtin_prefetch(w + ahead.second, 0, 2);
            Bytes weights[B];
            repeat<B>([&](auto b) INLINE_LAMBDA { weights[b] = load_u8(w + b * block_bytes); });
            repeat<R>([&](auto r) INLINE_LAMBDA {
                const Bytes columns = splat_quad(q + r * QUADS * PLANES, QUADS);
                repeat<B>([&](auto b) INLINE_LAMBDA { sums[r][b] = dot_u8s8(sums[r][b], weights[b], columns); });
            });
        }
        repeat<R>([&](auto r) INLINE_LAMBDA {
            const f32x16 by = splat(x_scale[r]);
            repeat<B>([&](auto b) INLINE_LAMBDA {
                totals[r][b] += to_float(sums[r][b]) * (by * load(scale + b * block_scales));
            });
        });
    }
    repeat<R>([&](auto r) INLINE_LAMBDA {
        repeat<B>([&](auto b) INLINE_LAMBDA {
            const int64_t left = n - (block + b) * LANES;
            float* to = y + r * n + b * LANES;
            if (left >= LANES) store(to, totals[r][b]);
            else store_part(to, totals[r][b], left);
        });
    });
}

template <int R>
void tiles(const Rows& x, const Weight& weight, float* y, int64_t row, int64_t from, int64_t to, Ahead ahead) {
    if (to - from == TILE_BLOCKS) return tile<R, TILE_BLOCKS>(x, weight, y, row, from, ahead);
    for (; from < to; from++) tile<R, 1>(x, weight, y, row, from, ahead);
}

using Tiles = void (*)(const Rows&, const Weight&, float*, int64_t, int64_t, int64_t, Ahead);
constexpr auto TILES = table<TILE_ROWS>([](auto r) -> Tiles { return tiles<r>; });

// Rows [row, end) by TILE_BLOCKS blocks of columns. Meanwhile the next blocks' weights are prefetched into L2, one in each
// of the first passes or both in the only one: from DRAM, 6 rows of 49152 x 576 took 1.6 ms with it and 3.1 ms without.
static inline void column_task(const Rows& x, const Weight& weight, float* y, int64_t row, int64_t end, int64_t task) {
    const int64_t from = task * TILE_BLOCKS, to = std::min(from + TILE_BLOCKS, weight.blocks());
    const int64_t passes = (end - row + TILE_ROWS - 1) / TILE_ROWS, block_bytes = weight.block_bytes();
    for (int64_t pass = 0; pass < passes; pass++) {
        // 9 rows are 5 + 4, not 8 + 1: a lone row has too few accumulators to hide vpdpbusd's latency.
        const int64_t left = passes - pass, rows = (end - row + left - 1) / left;
        Ahead ahead{};
        if (pass < TILE_BLOCKS) ahead.first = (TILE_BLOCKS + pass) * block_bytes;
        if (passes == 1) ahead.second = (TILE_BLOCKS + 1) * block_bytes;
        TILES[size_t(rows)](x, weight, y, row, from, to, ahead);
        row += rows;
    }
}

// y [m, n]. Within `on_threads`: they share the work, and all is done when they return.
static inline void multiply(const Rows& x, const Weight& weight, float* y) {
    const int64_t panel = std::max<int64_t>(PANEL_BYTES / (x.groups * GROUP * PLANES), 1);
    const int64_t panels = (x.m + panel - 1) / panel;
    const int64_t tasks = weight.tasks();
#pragma omp for collapse(2)
    for (int64_t p = 0; p < panels; p++)
        for (int64_t task = 0; task < tasks; task++)
            column_task(x, weight, y, p * panel, std::min((p + 1) * panel, x.m), task);
}
