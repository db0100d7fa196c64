// A table of marks, a place a block: as seen.py.
#pragma once

#include <cstdint>
#include <cstring>

using u32 = std::uint32_t;
using u64 = std::uint64_t;

struct Seen {
    u32* marks;
    u64 mask;

    static u32 mark(u64 hash) { return u32(hash >> 32) | 1; }

    void prefetch(const u64* hashes, long count) const {
        for (long i = 0; i < count; ++i) __builtin_prefetch(marks + (hashes[i] & mask));
    }

    void add(const u64* hashes, long count) const {
        prefetch(hashes, count);
        for (long i = 0; i < count; ++i) marks[hashes[i] & mask] = mark(hashes[i]);
    }

    // From the end: the last known block vouches for all before it.
    long depth(const u64* hashes, long count) const {
        constexpr long kAhead = 64;
        for (long end = count; end > 0; end -= kAhead) {
            long begin = end > kAhead ? end - kAhead : 0;
            prefetch(hashes + begin, end - begin);
            for (long i = end; i > begin; --i)
                if (marks[hashes[i - 1] & mask] == mark(hashes[i - 1])) return i;
        }
        return 0;
    }
};
