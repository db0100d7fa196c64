// Attention of query rows over a paged KV cache: prefill chunks, decodes and mixtures in one call.
//
// Work is cut into tiles: up to 16 consecutive query tokens x the G query heads of one KV head. For each page index,
// consecutive tokens of a tile that have the same page there form a run, and a run's rows go through one
// register-blocked micro-kernel while the page is in L1. A prefill chunk is one run (flash attention); decodes that
// share a prefix are one run until their pages part (cascade attention, with nothing to merge).
//
// A row's own arithmetic is the same however rows are grouped: scores by page, softmax by SPAN pages counted from the
// sequence's start, values by page in ascending order. So its bits depend on neither batch, tiling nor chunking.
#include "paged_attention.h"
#include "unroll.h"

#include <vector>

namespace {

constexpr int SPAN = 4;         // pages a softmax step: rows x SPAN x 16 scores stay in L1
constexpr int MAX_TOKENS = 16;  // of a tile
constexpr int MAX_ROWS = 48;    // of a tile, unless a single token has more heads

struct Attention {
    const float* q;
    const float* k_cache;
    const float* v_cache;
    Rows rows;
    float* out;
    int64_t kv_heads, group, d;
    float scale_log2e;
};

// Both micro-kernels prefetch the page that will be read SPAN pages on, `ahead`, into L2, a line a step: pages lie
// anywhere, so the hardware's prefetcher stops at each one's end. 12 decodes of 1,100 tokens from DRAM: 1.7 ms with it,
// 2.7 ms with L1 as its target, 3.1 ms without.

// scores[r][16] = q[r] . K, for R rows; `q` is [d][stride], K is [d][16].
template <int R>
void score_page(const float* q, int64_t stride, const float* k, int64_t d, float* scores, const float* ahead) {
    f32x16 sums[R] = {};
    for (int64_t i = 0; i < d; i++, q += stride) {
        __builtin_prefetch(ahead + i * PAGE, 0, 2);
        const f32x16 keys = load(k + i * PAGE);
        repeat<R>([&](auto r) INLINE_LAMBDA { sums[r] = fma(splat(q[r]), keys, sums[r]); });
    }
    repeat<R>([&](auto r) INLINE_LAMBDA { store(scores + r * SPAN * PAGE, sums[r]); });
}

// out[r][16 V] += p[r][from:to] V, for R rows.
template <int R, int V>
void weigh_columns(const float* p, const float* v, int64_t d, int from, int to, float* out, const float* ahead) {
    f32x16 sums[R][V];
    repeat<R>([&](auto r) INLINE_LAMBDA {
        repeat<V>([&](auto c) INLINE_LAMBDA { sums[r][c] = load(out + r * d + c * LANES); });
    });
    v += from * d, ahead += from * d;
    for (int j = from; j < to; j++, v += d, ahead += d) {
        f32x16 values[V];
        repeat<V>([&](auto c) INLINE_LAMBDA {
            values[c] = load(v + c * LANES);
            __builtin_prefetch(ahead + c * LANES, 0, 2);
        });
        repeat<R>([&](auto r) INLINE_LAMBDA {
            const f32x16 weight = splat(p[r * SPAN * PAGE + j]);
            repeat<V>([&](auto c) INLINE_LAMBDA { sums[r][c] = fma(weight, values[c], sums[r][c]); });
        });
    }
    repeat<R>([&](auto r) INLINE_LAMBDA {
        repeat<V>([&](auto c) INLINE_LAMBDA { store(out + r * d + c * LANES, sums[r][c]); });
    });
}

#if defined(__AVX512F__)
constexpr int SCORE_ROWS = 8, WEIGH_ROWS = 6;  // accumulators: 8 and 6 x 4, of 32 registers

constexpr int weigh_vectors(int) { return 4; }
#else
constexpr int SCORE_ROWS = 6, WEIGH_ROWS = 6;  // accumulators: 12 of 16 registers, since a vector is two

constexpr int weigh_vectors(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
#endif

template <int R>
void weigh_page(const float* p, const float* v, int64_t d, int from, int to, float* out, const float* ahead) {
    constexpr int V = weigh_vectors(R);
    int64_t column = 0;
    for (; column + V * LANES <= d; column += V * LANES)
        weigh_columns<R, V>(p, v + column, d, from, to, out + column, ahead + column);
    for (; column < d; column += LANES)
        weigh_columns<R, 1>(p, v + column, d, from, to, out + column, ahead + column);
}

using ScorePage = void (*)(const float*, int64_t, const float*, int64_t, float*, const float*);
using WeighPage = void (*)(const float*, const float*, int64_t, int, int, float*, const float*);
constexpr auto SCORE_PAGE = table<SCORE_ROWS>([](auto r) -> ScorePage { return score_page<r>; });
constexpr auto WEIGH_PAGE = table<WEIGH_ROWS>([](auto r) -> WeighPage { return weigh_page<r>; });

// One tile at a time, in buffers that last: `run` computes `count` tokens from `first_token` on for one KV head.
class Tile {
public:
    Tile(const Attention& attention, int64_t max_rows)
        : a(attention), q(size_t(max_rows * a.d)), out(size_t(max_rows * a.d)),
          scores(size_t(max_rows * SPAN * PAGE)), sums(size_t(max_rows * LANES)), maxima(size_t(max_rows)) {}

    void run(int64_t kv_head, int64_t first_token, int count) {
        head = kv_head, first = first_token, tokens = count, rows = count * a.group;
        load_queries();
        std::fill(out.begin(), out.end(), 0.0f);
        std::fill(sums.begin(), sums.end(), 0.0f);
        std::fill(maxima.begin(), maxima.end(), -std::numeric_limits<float>::infinity());
        int shortest = std::numeric_limits<int>::max(), longest = 0;
        for (int t = 0; t < tokens; t++)
            shortest = std::min(shortest, begin(t)), longest = std::max(longest, length(t));
        const int pages = (longest + PAGE - 1) / PAGE;
        for (int start = shortest / (SPAN * PAGE) * SPAN; start < pages; start += SPAN) {
            const int end = std::min(start + SPAN, pages);
            for (int page = start; page < end; page++) score(page, page - start);
            for (int64_t row = 0; row < rows; row++) softmax_step(row, start * PAGE);
            for (int page = start; page < end; page++) weigh(page, page - start);
        }
        store_outputs();
    }

private:
    const Attention& a;
    std::vector<float> q, out, scores, sums, maxima;  // [d][rows], [rows][d], [rows][SPAN * 16], [rows][16], [rows]
    int64_t head = 0, first = 0, rows = 0;
    int tokens = 0;

    int length(int64_t t) const { return a.rows.length(first + t); }

    int begin(int64_t t) const { return a.rows.begin(first + t); }

    int64_t page_id(int t, int page) const { return a.rows.page_id(first + t, page); }

    int64_t page_offset(int64_t id) const { return (id * a.kv_heads + head) * a.d * PAGE; }

    int64_t query_offset(int64_t row) const {
        const int64_t token = first + row / a.group, q_head = head * a.group + row % a.group;
        return (token * a.kv_heads * a.group + q_head) * a.d;
    }

    float* row_scores(int64_t row, int column) { return &scores[size_t((row * SPAN + column) * PAGE)]; }

    void load_queries() {
        for (int64_t row = 0; row < rows; row++) {
            const float* from = a.q + query_offset(row);
            for (int64_t i = 0; i < a.d; i++) q[size_t(i * rows + row)] = from[i] * a.scale_log2e;
        }
    }

    // Calls f(page id, first row's token, end, first token of the page in use, end) for each run with the same page.
    template <class F>
    void for_each_run(int page, F f) {
        for (int t = 0; t < tokens;) {
            const int64_t id = page_id(t, page);
            int shortest = begin(t), longest = length(t), end = t + 1;
            for (; end < tokens && page_id(end, page) == id; end++)
                shortest = std::min(shortest, begin(end)), longest = std::max(longest, length(end));
            if (id >= 0) f(id, t, end, std::max(shortest - page * PAGE, 0), std::min(longest - page * PAGE, PAGE));
            t = end;
        }
    }

    void score(int page, int column) {
        for_each_run(page, [&](int64_t id, int t, int end, int, int) {
            const float *k = a.k_cache + page_offset(id), *ahead = a.v_cache + page_offset(id);
            for (int64_t row = t * a.group, step; row < end * a.group; row += step) {
                step = std::min<int64_t>(end * a.group - row, SCORE_ROWS);
                SCORE_PAGE[size_t(step)](&q[size_t(row)], rows, k, a.d, row_scores(row, column), ahead);
            }
        });
    }

    void weigh(int page, int column) {
        for_each_run(page, [&](int64_t id, int t, int end, int from, int to) {
            const int64_t next = page_id(t, page + SPAN);
            const float *v = a.v_cache + page_offset(id), *ahead = a.k_cache + page_offset(next < 0 ? id : next);
            for (int64_t row = t * a.group, step; row < end * a.group; row += step) {
                step = std::min<int64_t>(end * a.group - row, WEIGH_ROWS);
                WEIGH_PAGE[size_t(step)](row_scores(row, column), v, a.d, from, to, &out[size_t(row * a.d)], ahead);
            }
        });
    }

    // Online softmax: a span's scores of a row become weights, and what came before is rescaled to the new maximum.
    // `start` is the span's first token.
    void softmax_step(int64_t row, int start) {
        const int from = std::max(begin(row / a.group) - start, 0);
        const int to = std::min(length(row / a.group) - start, SPAN * PAGE);
        if (from >= to) return;
        const int first_page = from / PAGE, last = (to - 1) / PAGE;
        float* s = row_scores(row, 0);
        f32x16 top = splat(-std::numeric_limits<float>::infinity());
        for (int page = first_page; page <= last; page++) {
            top = max(select(lanes_between(page, from, to), load(s + page * PAGE), top), top);
        }
        const float before = maxima[size_t(row)], now = std::max(before, reduce_max(top));
        f32x16 sum = load(&sums[size_t(row * LANES)]);
        if (now != before) {
            const f32x16 shrink = exp2(splat(before - now));
            sum = sum * shrink;
            float* o = &out[size_t(row * a.d)];
            for (int64_t i = 0; i < a.d; i += LANES) store(o + i, load(o + i) * shrink);
            maxima[size_t(row)] = now;
        }
        for (int page = first_page; page <= last; page++) {
            f32x16 p = exp2(load(s + page * PAGE) - splat(now));
            // Exactly 0 for a token that isn't seen: other rows of the run multiply by its V, and so does this one.
            p = select(lanes_between(page, from, to), p, f32x16{});
            sum = sum + p;
            store(s + page * PAGE, p);
        }
        store(&sums[size_t(row * LANES)], sum);
    }

    void store_outputs() {
        for (int64_t row = 0; row < rows; row++) {
            const float sum = reduce_add(load(&sums[size_t(row * LANES)]));
            const f32x16 inverse = splat(length(int(row / a.group)) > 0 ? 1.0f / sum : 0.0f);
            float* to = a.out + query_offset(row);
            for (int64_t i = 0; i < a.d; i += LANES) store(to + i, load(&out[size_t(row * a.d + i)]) * inverse);
        }
    }
};

}  // namespace

// 0, or 1 if a sequence, length or page id is out of range; nothing is written then.
extern "C" int paged_attention(const float* q, const float* k_cache, const float* v_cache, const int32_t* page_table,
                               const int32_t* row_seq, const int32_t* row_len, float* out, int64_t tokens,
                               int64_t sequences, int64_t max_pages, int64_t pages, int64_t kv_heads, int64_t group,
                               int64_t d, int64_t window, float scale, int threads) {
    const Rows rows{page_table, row_seq, row_len, tokens, sequences, max_pages, pages, window};
    const Attention a{q, k_cache, v_cache, rows, out, kv_heads, group, d, scale * 1.44269504088896341f};
    if (!rows.in_range()) return 1;
    const int64_t step = std::clamp<int64_t>(MAX_ROWS / group, 1, MAX_TOKENS), tiles = (tokens + step - 1) / step;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Tile tile(a, step * group);
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < kv_heads * tiles; task++) {
            const int64_t first = task % tiles * step;
            tile.run(task / tiles, first, int(std::min(step, tokens - first)));
        }
    }
    return 0;
}
