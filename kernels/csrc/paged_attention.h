// What attention over a paged cache is called with, whatever the cache's type: rows, pages and windows.
#pragma once

#include "vec.h"

#include <algorithm>
#include <limits>

constexpr int PAGE = LANES;  // tokens a page: one vector of scores

struct Rows {
    const int32_t* page_table;
    const int32_t* row_seq;
    const int32_t* row_len;
    int64_t tokens, sequences, max_pages, pages, window;

    int length(int64_t t) const { return row_len[t]; }

    // The first token that row t sees.
    int begin(int64_t t) const { return window > 0 ? int(std::max<int64_t>(row_len[t] - window, 0)) : 0; }

    // -1 where row t sees nothing of the page.
    int64_t page_id(int64_t t, int page) const {
        return begin(t) < (page + 1) * PAGE && page * PAGE < length(t) ? page_table[row_seq[t] * max_pages + page] : -1;
    }

    bool in_range() const {
        int from = std::numeric_limits<int>::max();
        for (int64_t t = 0; t < tokens; t++) {
            if (row_seq[t] < 0 || row_seq[t] >= sequences) return false;
            if (row_len[t] < 0 || row_len[t] > max_pages * PAGE) return false;
            from = std::min(from, begin(t));
            // A chunk's rows share their pages: checking them with the longest row alone keeps this linear.
            if (t + 1 < tokens && row_seq[t + 1] == row_seq[t] && row_len[t + 1] >= row_len[t]) continue;
            const int32_t* ids = page_table + row_seq[t] * max_pages;
            bool good = true;
            for (int page = from / PAGE; page * PAGE < row_len[t]; page++)
                good &= uint32_t(ids[page]) < uint64_t(pages);
            if (!good) return false;
            from = std::numeric_limits<int>::max();
        }
        return true;
    }
};

// Lanes of a span's page that lie in [from, to) of the span.
INLINE i32x16 lanes_between(int page, int from, int to) {
    const i32x16 lane = lane_numbers();
    return (lane >= splat(int32_t(from - page * PAGE))) & (lane < splat(int32_t(to - page * PAGE)));
}
