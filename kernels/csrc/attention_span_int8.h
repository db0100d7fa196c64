// The three steps of int8 attention over one span of pages: scores, softmax, weighted values. See
// paged_attention_int8.cpp for what they add up to.
#pragma once

#include "int8.h"
#include "paged_attention.h"

namespace {

constexpr int SPAN = 8;  // pages; SPAN of base.py. With 4 a prefill takes a tenth longer
constexpr int TOKENS = SPAN * PAGE;

// The pages of a span that some row of a run sees; others are null.
struct Pages {
    const uint8_t* keys[SPAN];
    const int8_t* values[SPAN];
    const float* scales[SPAN];
};

// scores[r][16] = q[r] . K, for R rows; `q` is [d / 4][stride] words of 4 bytes, `start` takes the 128 out again.
template <int R>
void score_page(const int32_t* q, int64_t stride, const int32_t* start, const uint8_t* keys, int64_t steps,
                int32_t* scores, const uint8_t* ahead) {
    i32x16 sums[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) sums[r] = splat(start[r]);
    for (int64_t i = 0; i < steps; i++, q += stride) {
        __builtin_prefetch(ahead + i * 64, 0, 2);
        const i32x16 word = load_bytes(keys + i * 64);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) sums[r] = dot_u8s8(sums[r], word, splat(q[r]));
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) store(scores + r * TOKENS, sums[r]);
}

// out[r][16 V] += unit[r] * (p[r][4 from : 4 to] . values), for R rows and the 16 V columns from `column` on.
template <int R, int V>
void weigh_columns(const uint8_t* p, const float* unit, const Pages& pages, int64_t column, int64_t d, int from, int to,
                   float* out, const Pages& ahead) {
    i32x16 sums[R][V] = {};
    for (int quad = from; quad < to; quad++) {
        const int64_t offset = (quad % 4 * d + column) * 4;
        const int8_t *v = pages.values[quad / 4] + offset, *next = ahead.values[quad / 4] + offset;
        i32x16 words[V];
#pragma GCC unroll 4
        for (int c = 0; c < V; c++) {
            __builtin_prefetch(next + c * 64, 0, 2);
            words[c] = load_bytes(v + c * 64);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            int32_t word;
            memcpy(&word, p + r * TOKENS + quad * 4, sizeof word);
            const i32x16 weights = splat(word);
#pragma GCC unroll 4
            for (int c = 0; c < V; c++) sums[r][c] = dot_u8s8(sums[r][c], weights, words[c]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int c = 0; c < V; c++) {
            float* to_out = out + r * d + column + c * LANES;
            store(to_out, load(to_out) + to_float(sums[r][c]) * splat(unit[r]));
        }
}

template <int R>
void weigh_span(const uint8_t* p, const float* unit, const Pages& pages, int64_t d, int from, int to, float* out,
                const Pages& ahead) {
    int64_t column = 0;
    for (; column + 4 * LANES <= d; column += 4 * LANES)
        weigh_columns<R, 4>(p, unit, pages, column, d, from, to, out, ahead);
    for (; column < d; column += LANES) weigh_columns<R, 1>(p, unit, pages, column, d, from, to, out, ahead);
}

constexpr int SCORE_ROWS = 12, WEIGH_ROWS = 6;  // accumulators: 12 and 6 x 4, of 32 registers
using ScorePage = void (*)(const int32_t*, int64_t, const int32_t*, const uint8_t*, int64_t, int32_t*, const uint8_t*);
using WeighSpan = void (*)(const uint8_t*, const float*, const Pages&, int64_t, int, int, float*, const Pages&);
constexpr ScorePage SCORE_PAGE[SCORE_ROWS + 1] = {
    nullptr,       score_page<1>, score_page<2>, score_page<3>,  score_page<4>,  score_page<5>, score_page<6>,
    score_page<7>, score_page<8>, score_page<9>, score_page<10>, score_page<11>, score_page<12>};
constexpr WeighSpan WEIGH_SPAN[WEIGH_ROWS + 1] = {nullptr,       weigh_span<1>, weigh_span<2>, weigh_span<3>,
                                                  weigh_span<4>, weigh_span<5>, weigh_span<6>};

// Of one row, in the course of its spans.
struct Softmax {
    f32x16 sum;    // of the weights, by lane
    float top;     // the largest score so far; a weight is 2^((score - top) * factor)
    float factor;  // q's scale times the softmax's times log2 e
};

// A row's maximum has risen to that of `top`: what came before is rescaled.
INLINE void raise(Softmax& row, f32x16 top, float* out, int64_t d) {
    const float now = reduce_max(top);
    const f32x16 shrink = exp2_unfused(splat((row.top - now) * row.factor));
    row.sum = row.sum * shrink;
    for (int64_t i = 0; i < d; i += LANES) store(out + i, load(out + i) * shrink);
    row.top = now;
}

// What a row sees of a span.
struct Seen {
    int from, to;

    int first_page() const { return from / PAGE; }

    int pages() const { return (to - 1) / PAGE - from / PAGE + 1; }
};

// Scores of N rows become weights, `p` in bytes; unit[r] is what a byte is worth. All see the same P pages of the span,
// their tokens from `seen` on in the first and up to it in the last. N rows, since one is a chain of dependent steps.
template <int P, int N>
void softmax_span(Softmax* row, const int32_t* scores, const Pages& pages, const Seen* seen, float* out, int64_t d,
                  uint8_t* p, float* unit) {
    const int first = seen[0].first_page();
    const float* const* scales = pages.scales + first;
    scores += first * PAGE;
    if (P < SPAN) memset(p, 0, N * TOKENS);
    const f32x16 lowest = splat(-std::numeric_limits<float>::infinity());
    f32x16 s[N][P], top[N], largest[N] = {};
    i32x16 begins[N], ends[N];
    for (int r = 0; r < N; r++) {
        top[r] = lowest;
        begins[r] = lanes_between(first, seen[r].from, seen[r].to);
        ends[r] = lanes_between(first + P - 1, seen[r].from, seen[r].to);
    }
#pragma GCC unroll 8
    for (int i = 0; i < P; i++)
        for (int r = 0; r < N; r++) {
            s[r][i] = to_float(load(scores + r * TOKENS + i * PAGE)) * load(scales[i]);
            if (i == 0) s[r][i] = begins[r] ? s[r][i] : lowest;
            if (i == P - 1) s[r][i] = ends[r] ? s[r][i] : lowest;
            top[r] = max(s[r][i], top[r]);
        }
    for (int r = 0; r < N; r++)  // rare after the first spans, and a guess is quicker than a maximum
        if (any_greater(top[r], splat(row[r].top))) raise(row[r], top[r], out + r * d, d);
#pragma GCC unroll 8
    for (int i = 0; i < P; i++)
        for (int r = 0; r < N; r++) {
            f32x16 weight = exp2_unfused((s[r][i] - splat(row[r].top)) * splat(row[r].factor));
            s[r][i] = weight * load(scales[i] + LANES);
            // Not by a product with 0: a token that isn't seen may have any bits as its scale.
            if (i == 0) weight = begins[r] ? weight : f32x16{}, s[r][i] = begins[r] ? s[r][i] : f32x16{};
            if (i == P - 1) weight = ends[r] ? weight : f32x16{}, s[r][i] = ends[r] ? s[r][i] : f32x16{};
            row[r].sum = row[r].sum + weight;
            largest[r] = max(s[r][i], largest[r]);
        }
    for (int r = 0; r < N; r++) {
        const float most = reduce_max(largest[r]);
        const f32x16 inverse = splat(most > TINY ? 255.0f / most : 0.0f);
        unit[r] = most / 255.0f;
        uint8_t* to = p + r * TOKENS + first * PAGE;
#pragma GCC unroll 8
        for (int i = 0; i < P; i++) s[r][i] = f32x16(round_to_int(s[r][i] * inverse));
#pragma GCC unroll 8
        for (int i = 0; i < P; i++) {
            if (i % 4 == 0 && i + 4 <= P) store_bytes(to + i * PAGE, s[r] + i);
            if (i >= P / 4 * 4) store_bytes(to + i * PAGE, i32x16(s[r][i]));
        }
    }
}

using SoftmaxSpan = void (*)(Softmax*, const int32_t*, const Pages&, const Seen*, float*, int64_t, uint8_t*, float*);
constexpr SoftmaxSpan SOFTMAX_SPAN[SPAN + 1][2] = {
    {nullptr, nullptr},
    {softmax_span<1, 1>, softmax_span<1, 2>}, {softmax_span<2, 1>, softmax_span<2, 2>},
    {softmax_span<3, 1>, softmax_span<3, 2>}, {softmax_span<4, 1>, softmax_span<4, 2>},
    {softmax_span<5, 1>, softmax_span<5, 2>}, {softmax_span<6, 1>, softmax_span<6, 2>},
    {softmax_span<7, 1>, softmax_span<7, 2>}, {softmax_span<8, 1>, softmax_span<8, 2>},
};

}  // namespace
