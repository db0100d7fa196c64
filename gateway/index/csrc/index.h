// What is held, and two generations of what is expected.
#pragma once

#include <vector>

#include "table.h"

constexpr long kAhead = 12;  // Blocks between asking for a cache line and using it: misses then overlap.

struct Table {
    Shard shards[kShards];
    u64 size = 0;

    Shard& shard(u64 mixed) { return shards[mixed % kShards]; }

    int add(u64 key, u64 mixed, u32 slot, u64 max_size, const Mixer& mix) {
        Shard& into = shard(mixed);
        u32 before = into.size();
        int added = into.add(key, mixed, slot, size < max_size, mixed % kShards, mix);
        size += into.size() - before;
        return added;
    }

    bool remove(u64 key, u64 mixed, u32 slot, const Mixer& mix) {
        if (!size) return false;
        Shard& from = shard(mixed);
        u32 before = from.size();
        bool removed = from.remove(key, mixed, slot, mix);
        size -= before - from.size();
        return removed;
    }

    void sweep(u32 number, const u64* dead, u32 words, const Mixer& mix) {
        u32 before = shards[number].size();
        shards[number].sweep(dead, words, mix);
        size -= before - shards[number].size();
    }
};

struct Index {
    explicit Index(u64 seed) : mix{seed} {}

    const Mixer mix;
    Table held;
    Table* expected = new Table;
    Table* expected_before = new Table;
    std::vector<u64> live;

    // Of a match under way: kept so that memory is taken once.
    std::vector<u64> match_sets;
    std::vector<u32> match_depths;

    ~Index() {
        delete expected;
        delete expected_before;
    }
};

inline u64 hash_at(const void* hashes, long i) {
    u64 value;
    std::memcpy(&value, static_cast<const char*>(hashes) + i * 8, 8);
    return value;
}

inline void prefetch(Index& index, u64 mixed) {
    for (Table* table : {&index.held, index.expected, index.expected_before})
        if (table->size) table->shard(mixed).prefetch(mixed);
}

// Calls use(hash, mixed) for each hash, with the cache lines of those to come already asked for.
template <class Use>
void for_each(Index& index, const void* hashes, long start, long stop, Use use) {
    constexpr long kRing = 16;
    static_assert(kAhead < kRing, "");
    u64 ring[kRing];
    for (long i = start; i < stop + kAhead; ++i) {
        if (i < stop) {
            u64 mixed = index.mix(hash_at(hashes, i));
            ring[i % kRing] = mixed;
            prefetch(index, mixed);
        }
        long now = i - kAhead;
        if (now >= start && !use(hash_at(hashes, now), ring[now % kRing])) return;
    }
}
