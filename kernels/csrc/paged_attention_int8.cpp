// Attention of query rows over a paged KV cache in int8: rows, tiles and runs as in paged_attention.cpp.
//
// Each token's K and V have one scale a head, and a row of q gets one here. Sums of products of bytes are exact. A
// row's weights p over a span, each times its token's V scale, are rounded to 0..255 of the largest of that span alone:
// a token with nearly all the weight (an attention sink) can't round those of other spans to zero. Denominators use p
// as it is.
//
// Nothing is fused and the order of sums is fixed, so the bits are the same with any instruction set and in plain
// torch, and a row's depend on neither batch, tiling nor chunking: spans count from the sequence's start.
#include "attention_span_int8.h"

#include <vector>

namespace {

constexpr float LOWEST = -1e37f;  // not -inf, which times a q of zeros is NaN
constexpr int MAX_TOKENS = 16;    // of a tile
constexpr int MAX_ROWS = 48;      // of a tile, unless a single token has more heads

struct Attention {
    const float* q;
    const uint8_t* keys;   // [pages][kv_heads][d / 4][16][4], k + 128
    const int8_t* values;  // [pages][kv_heads][4][d][4]
    const float* scales;   // [pages][kv_heads][2][16], of K and of V
    Rows rows;
    float* out;
    int64_t kv_heads, group, d;
    float scale_log2e;
};

// Neighbouring tokens of a tile that see the same pages of a span; `from` and `to` bound what they see of it.
struct Run {
    int page, first, end, from, to;  // the span's first page
    int64_t ids[SPAN];
};

// One tile at a time, in buffers that last: `run` computes `count` tokens from `first_token` on for one KV head.
class Tile {
public:
    Tile(const Attention& attention, int64_t max_rows)
        : a(attention), q(size_t(max_rows * a.d / 4 * PLANES)), start(size_t(max_rows)), scores(size_t(max_rows * TOKENS)),
          p(size_t(max_rows * P_WORDS)), out(size_t(max_rows * a.d)), unit(size_t(max_rows)),
          softmax(size_t(max_rows)) {}

    void run(int64_t kv_head, int64_t first_token, int count) {
        head = kv_head, first = first_token, tokens = count, rows = count * a.group;
        load_queries();
        std::fill(out.begin(), out.end(), 0.0f);
        int shortest = std::numeric_limits<int>::max();
        longest = 0;
        for (int t = 0; t < tokens; t++)
            shortest = std::min(shortest, begin(t)), longest = std::max(longest, length(t));
        for (Run run = next_run(shortest / TOKENS * SPAN, 0), next; run.first < run.end; run = next) {
            next = next_run(run.page, run.end);
            attend(run, next);
        }
        store_outputs();
    }

private:
    const Attention& a;
    std::vector<int32_t> q, start, scores;  // [d / 4][PLANES][rows] quads, [rows], [rows][TOKENS]
    std::vector<int32_t> p;                 // [rows][PLANES][TOKENS / 4] quads
    std::vector<float> out, unit;           // [rows][d], [rows]
    std::vector<Softmax> softmax;           // [rows]
    int64_t head = 0, first = 0, rows = 0;
    int tokens = 0, longest = 0;

    int length(int64_t t) const { return a.rows.length(first + t); }

    int begin(int64_t t) const { return a.rows.begin(first + t); }

    int64_t query_offset(int64_t row) const {
        const int64_t token = first + row / a.group, q_head = head * a.group + row % a.group;
        return (token * a.kv_heads * a.group + q_head) * a.d;
    }

    void load_queries() {
        for (int64_t row = 0; row < rows; row++) {
            alignas(64) int8_t bytes[MAX_D];
            int32_t sum;
            const float scale = quantise(a.q + query_offset(row), a.d, bytes, &sum);
            int32_t quads[PLANES][MAX_D / 4];
            for (int64_t i = 0; i < a.d / 4; i += LANES) store_quads(quads[0] + i, load_s8(bytes + 4 * i), MAX_D / 4);
            for (int64_t i = 0; i < a.d / 4; i++)
                for (int plane = 0; plane < PLANES; plane++)
                    q[size_t((i * PLANES + plane) * rows + row)] = quads[plane][i];
            start[size_t(row)] = -128 * sum;
            softmax[size_t(row)] = {f32x16{}, LOWEST, scale * a.scale_log2e};
        }
    }

    // From token t of that span on; empty after the last.
    Run next_run(int page, int t) const {
        Run run = run_of_span(page, t);
        while (run.first == run.end && (page += SPAN) * PAGE < longest) run = run_of_span(page, 0);
        return run;
    }

    Run run_of_span(int page, int t) const {
        Run run{page, t, t, TOKENS, 0, {}};
        std::fill(run.ids, run.ids + SPAN, -1);
        for (; run.end < tokens; run.end++) {
            const auto [from, to] = seen(run.end, page);
            if (from >= to) {
                if (run.first < run.end) break;
                run.first++;
                continue;
            }
            // Where a window leaves a gap between two rows, the run would have pages that neither sees.
            if (run.first < run.end && (from > run.to || to < run.from)) break;
            if (!joins(run, run.end)) break;
            run.from = std::min(run.from, from), run.to = std::max(run.to, to);
        }
        return run;
    }

    // Whether token t sees no other pages than the run does; if so, what only it sees is added.
    bool joins(Run& run, int t) const {
        int64_t ids[SPAN];
        for (int i = 0; i < SPAN; i++) {
            const int64_t id = a.rows.page_id(first + t, run.page + i);
            if (id >= 0 && run.ids[i] >= 0 && id != run.ids[i]) return false;
            ids[i] = id >= 0 ? id : run.ids[i];
        }
        std::copy(ids, ids + SPAN, run.ids);
        return true;
    }

    // Those of `ids`, and where there are none `pages`.
    Pages pages(const int64_t* ids, Pages pages) const {
        for (int i = 0; i < SPAN; i++) {
            if (ids[i] < 0) continue;
            const int64_t tile = ids[i] * a.kv_heads + head;
            pages.keys[i] = a.keys + tile * a.d * PAGE;
            pages.values[i] = a.values + tile * a.d * PAGE;
            pages.scales[i] = a.scales + tile * 2 * PAGE;
        }
        return pages;
    }

    // Meanwhile the next run's pages are prefetched into L2, a line a step: they lie anywhere.
    void attend(const Run& run, const Run& next) {
        const Pages pages = this->pages(run.ids, {}), ahead = this->pages(next.ids, pages);
        const int64_t from = run.first * a.group, to = run.end * a.group;
        for (int i = 0; i < SPAN; i++) {
            if (!pages.keys[i]) continue;
            for (int64_t row = from, step; row < to; row += step) {
                step = std::min<int64_t>(to - row, SCORE_ROWS);
                SCORE_PAGE[size_t(step)](&q[size_t(row)], rows * PLANES, &start[size_t(row)], pages.keys[i], a.d / 4,
                                 &scores[size_t(row * TOKENS + i * PAGE)], row == from ? ahead.keys[i] : pages.keys[i]);
            }
            __builtin_prefetch(ahead.scales[i], 0, 2);
            __builtin_prefetch(ahead.scales[i] + PAGE, 0, 2);
        }
        weights(from, to, pages, run.page);
        for (int64_t row = from, step; row < to; row += step) {
            step = std::min<int64_t>(to - row, WEIGH_ROWS);
            WEIGH_SPAN[size_t(step)](&p[size_t(row * P_WORDS)], &unit[size_t(row)], pages, a.d, run.from / 4,
                                     (run.to + 3) / 4, &out[size_t(row * a.d)], row == from ? ahead : pages);
        }
    }

    Seen seen(int64_t t, int page) const {
        return {std::max(begin(t) - page * PAGE, 0), std::min(length(t) - page * PAGE, TOKENS)};
    }

    // Two rows at a time where they see the same pages.
    void weights(int64_t row, int64_t end, const Pages& pages, int page) {
        for (int count; row < end; row += count) {
            const Seen both[2] = {seen(row / a.group, page), seen(std::min(row + 1, end - 1) / a.group, page)};
            const bool same = both[0].first_page() == both[1].first_page() && both[0].pages() == both[1].pages();
            count = same && row + 1 < end ? 2 : 1;
            SOFTMAX_SPAN[both[0].pages()][count - 1](&softmax[size_t(row)], &scores[size_t(row * TOKENS)], pages, both,
                                                     &out[size_t(row * a.d)], a.d, &p[size_t(row * P_WORDS)],
                                                     &unit[size_t(row)]);
        }
    }

    void store_outputs() {
        for (int64_t row = 0; row < rows; row++) {
            const float sum = reduce_add(softmax[size_t(row)].sum);
            const f32x16 inverse = splat(length(row / a.group) > 0 ? 1.0f / sum : 0.0f);
            float* to = a.out + query_offset(row);
            for (int64_t i = 0; i < a.d; i += LANES) store(to + i, load(&out[size_t(row * a.d + i)]) * inverse);
        }
    }
};

}  // namespace

// 0, or 1 if a sequence, length or page id is out of range; nothing is written then.
extern "C" int paged_attention_int8(const float* q, const uint8_t* keys, const int8_t* values, const float* scales,
                                    const int32_t* page_table, const int32_t* row_seq, const int32_t* row_len,
                                    float* out, int64_t tokens, int64_t sequences, int64_t max_pages, int64_t pages,
                                    int64_t kv_heads, int64_t group, int64_t d, int64_t window, float scale,
                                    int threads) {
    const Rows rows{page_table, row_seq, row_len, tokens, sequences, max_pages, pages, window};
    const Attention a{q, keys, values, scales, rows, out, kv_heads, group, d, scale * 1.44269504088896341f};
    if (!rows.in_range()) return 1;
    const int64_t step = std::clamp<int64_t>(MAX_ROWS / group, 1, MAX_TOKENS), tiles = (tokens + step - 1) / step;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Tile tile(a, step * group);
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < kv_heads * tiles; task++) {
            const int64_t first = task / kv_heads * step;
            tile.run(task % kv_heads, first, int(std::min(step, tokens - first)));
        }
    }
    return 0;
}
