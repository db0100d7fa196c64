// The three steps of int8 attention over one span of pages: scores, softmax, weighted values. See
// paged_attention_int8.cpp for what they add up to.
#pragma once

#include "int8.h"
#include "paged_attention.h"
#include "unroll.h"

namespace {

constexpr int SPAN = 8;  // pages; SPAN of base.py. With 4 a prefill takes a tenth longer
constexpr int TOKENS = SPAN * PAGE;
constexpr int P_WORDS = TOKENS / 4 * PLANES;  // of a row's weights

// The pages of a span that some row of a run sees; others are null.
struct Pages {
    const uint8_t* keys[SPAN];
    const int8_t* values[SPAN];
    const float* scales[SPAN];
};

// scores[r][16] = q[r] . K, for R rows; `q` is [d / 4][PLANES][stride / PLANES] quads, `start` takes the 128 out again.
template <int R>
void score_page(const int32_t* q, int64_t stride, const int32_t* start, const uint8_t* keys, int64_t steps,
                int32_t* scores, const uint8_t* ahead) {
    i32x16 sums[R];
    repeat<R>([&](auto r) INLINE_LAMBDA { sums[r] = splat(start[r]); });
    for (int64_t i = 0; i < steps; i++, q += stride) {
        __builtin_prefetch(ahead + i * 64, 0, 2);
        const Bytes word = load_u8(keys + i * 64);
        repeat<R>([&](auto r) INLINE_LAMBDA { sums[r] = dot_u8s8(sums[r], word, splat_quad(q + r, stride / PLANES)); });
    }
    repeat<R>([&](auto r) INLINE_LAMBDA { store(scores + r * TOKENS, sums[r]); });
}

// out[r][16 V] += unit[r] * (p[r][4 from : 4 to] . values), for R rows and the 16 V columns from `column` on.
template <int R, int V>
void weigh_columns(const int32_t* p, const float* unit, const Pages& pages, int64_t column, int64_t d, int from, int to,
                   float* out, const Pages& ahead) {
    i32x16 sums[R][V] = {};
    for (int quad = from; quad < to; quad++) {
        const int64_t offset = (quad % 4 * d + column) * 4;
        const int8_t *v = pages.values[quad / 4] + offset, *next = ahead.values[quad / 4] + offset;
        Bytes words[V];
        repeat<V>([&](auto c) INLINE_LAMBDA {
            __builtin_prefetch(next + c * 64, 0, 2);
            words[c] = load_s8(v + c * 64);
        });
        repeat<R>([&](auto r) INLINE_LAMBDA {
            const Bytes weights = splat_quad(p + r * P_WORDS + quad, TOKENS / 4);
            repeat<V>([&](auto c) INLINE_LAMBDA { sums[r][c] = dot_u8s8(sums[r][c], weights, words[c]); });
        });
    }
    repeat<R>([&](auto r) INLINE_LAMBDA {
        repeat<V>([&](auto c) INLINE_LAMBDA {
            float* to_out = out + r * d + column + c * LANES;
            store(to_out, load(to_out) + to_float(sums[r][c]) * splat(unit[r]));
        });
    });
}

#if defined(__AVX512F__)
constexpr int SCORE_ROWS = 12, WEIGH_ROWS = 6;  // accumulators: 12 and 6 x 4, of 32 registers

constexpr int weigh_vectors(int) { return 4; }
#else
constexpr int SCORE_ROWS = 6, WEIGH_ROWS = 6;  // accumulators: 12 of 16 registers, since a vector is two

constexpr int weigh_vectors(int rows) { return rows <= 3 ? 2 : 1; }
#endif

template <int R>
void weigh_span(const int32_t* p, const float* unit, const Pages& pages, int64_t d, int from, int to, float* out,
                const Pages& ahead) {
    constexpr int V = weigh_vectors(R);
    int64_t column = 0;
    for (; column + V * LANES <= d; column += V * LANES)
        weigh_columns<R, V>(p, unit, pages, column, d, from, to, out, ahead);
    for (; column < d; column += LANES) weigh_columns<R, 1>(p, unit, pages, column, d, from, to, out, ahead);
}

using ScorePage = void (*)(const int32_t*, int64_t, const int32_t*, const uint8_t*, int64_t, int32_t*, const uint8_t*);
using WeighSpan = void (*)(const int32_t*, const float*, const Pages&, int64_t, int, int, float*, const Pages&);
constexpr auto SCORE_PAGE = table<SCORE_ROWS>([](auto r) -> ScorePage { return score_page<r>; });
constexpr auto WEIGH_SPAN = table<WEIGH_ROWS>([](auto r) -> WeighSpan { return weigh_span<r>; });

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

// Scores of N rows become weights, `p` in quads; unit[r] is what a byte is worth. All see the same P pages of the span,
// their tokens from `seen` on in the first and up to it in the last. N rows, since one is a chain of dependent steps.
template <int P, int N>
void softmax_span(Softmax* row, const int32_t* scores, const Pages& pages, const Seen* seen, float* out, int64_t d,
                  int32_t* p, float* unit) {
    const int first = seen[0].first_page();
    const float* const* scales = pages.scales + first;
    scores += first * PAGE;
    const f32x16 lowest = splat(-std::numeric_limits<float>::infinity());
    f32x16 s[N][P], top[N], largest[N];
    i32x16 begins[N], ends[N];
    repeat<N>([&](auto r) INLINE_LAMBDA {
        top[r] = lowest;
        largest[r] = f32x16{};
        begins[r] = lanes_between(first, seen[r].from, seen[r].to);
        ends[r] = lanes_between(first + P - 1, seen[r].from, seen[r].to);
    });
    repeat<P>([&](auto i) INLINE_LAMBDA {
        repeat<N>([&](auto r) INLINE_LAMBDA {
            f32x16 score = to_float(load(scores + r * TOKENS + i * PAGE)) * load(scales[i]);
            if (i == 0) score = select(begins[r], score, lowest);
            if (i == P - 1) score = select(ends[r], score, lowest);
            top[r] = max(score, top[r]);
            s[r][i] = score;
        });
    });
    repeat<N>([&](auto r) INLINE_LAMBDA {  // rare after the first spans, and a guess is quicker than a maximum
        if (any_greater(top[r], splat(row[r].top))) raise(row[r], top[r], out + r * d, d);
    });
    repeat<P>([&](auto i) INLINE_LAMBDA {
        repeat<N>([&](auto r) INLINE_LAMBDA {
            f32x16 weight = exp2_unfused((s[r][i] - splat(row[r].top)) * splat(row[r].factor));
            f32x16 scaled = weight * load(scales[i] + LANES);
            // Not by a product with 0: a token that isn't seen may have any bits as its scale.
            if (i == 0) weight = select(begins[r], weight, f32x16{}), scaled = select(begins[r], scaled, f32x16{});
            if (i == P - 1) weight = select(ends[r], weight, f32x16{}), scaled = select(ends[r], scaled, f32x16{});
            row[r].sum = row[r].sum + weight;
            largest[r] = max(scaled, largest[r]);
            s[r][i] = scaled;
        });
    });
    repeat<N>([&](auto r) INLINE_LAMBDA {
        const float most = reduce_max(largest[r]);
        const f32x16 inverse = splat(most > TINY ? 255.0f / most : 0.0f);
        unit[r] = most / 255.0f;
        // Bytes, where the last plane will be.
        uint8_t* bytes = reinterpret_cast<uint8_t*>(p + (r + 1) * P_WORDS) - TOKENS;
        uint8_t* to = bytes + first * PAGE;
        if (P < SPAN) memset(bytes, 0, TOKENS);
        repeat<P>([&](auto i) INLINE_LAMBDA { s[r][i] = f32x16(round_to_int(s[r][i] * inverse)); });
        repeat<P>([&](auto i) INLINE_LAMBDA {
            if (i % 4 == 0 && i + 4 <= P) store_bytes(to + i * PAGE, s[r] + i);
            if (i >= P / 4 * 4) store_bytes(to + i * PAGE, i32x16(s[r][i]));
        });
        if constexpr (PLANES > 1)
            for (int i = 0; i < TOKENS / 4; i += LANES)
                store_quads(p + r * P_WORDS + i, load_u8(bytes + 4 * i), TOKENS / 4);
    });
}

using SoftmaxSpan = void (*)(Softmax*, const int32_t*, const Pages&, const Seen*, float*, int64_t, int32_t*, float*);
constexpr SoftmaxSpan SOFTMAX_SPAN[SPAN + 1][2] = {
    {nullptr, nullptr},
    {softmax_span<1, 1>, softmax_span<1, 2>}, {softmax_span<2, 1>, softmax_span<2, 2>},
    {softmax_span<3, 1>, softmax_span<3, 2>}, {softmax_span<4, 1>, softmax_span<4, 2>},
    {softmax_span<5, 1>, softmax_span<5, 2>}, {softmax_span<6, 1>, softmax_span<6, 2>},
    {softmax_span<7, 1>, softmax_span<7, 2>}, {softmax_span<8, 1>, softmax_span<8, 2>},
};

}  // namespace
