// How many leading blocks of a prompt each slot holds, and how many it holds or expects; of all slots at once.
//
// The first kWalked blocks are looked up one by one. What follows is searched: whoever has a block has those before it,
// since replicas evict from the end, so a slot's depth is found by galloping and bisection. A block costs a cache miss or
// two, 100 to 200 ns in a big index: that is a millisecond for 100,000 tokens, where the search takes microseconds.
#pragma once

#include "index.h"

constexpr long kWalked = 32;

class Match {
  public:
    Match(Index& index, const void* hashes, long count, u32* groups, u16* slots)
        : index_(index), hashes_(hashes), count_(count), groups_(groups), slots_(slots) {
        words_ = static_cast<u32>(index.live.size());
        index.match_depths.resize(std::size_t(words_) * 64);
        // Two for the walk, two for each interval of the gallop, two for each halving in it, one for holders.
        index.match_sets.resize(std::size_t(words_) * kSets);
    }

    // Writes groups of (held, either, end in `slots`), and returns their number.
    long run() {
        Sets sets = make_sets();
        std::copy(index_.live.begin(), index_.live.end(), sets.held);
        std::copy(index_.live.begin(), index_.live.end(), sets.either);
        long walked = std::min(count_, kWalked);
        if (walk(walked, sets)) {
            if (walked < count_) gallop(walked - 1, sets);
            if (count_) end_difference(sets, none(), count_);
        }
        return num_groups_;
    }

  private:
    // Slots that hold, and that hold or expect, all blocks up to one.
    struct Sets {
        u64* held;
        u64* either;
    };

    // What the tables say about one block.
    struct Found {
        u64 entries[3];
        const Shard* shards[3];
    };

    static constexpr int kSets = 2 * (2 + 32 + 32) + 1;

    Sets make_sets() {
        u64* made = index_.match_sets.data() + std::size_t(words_) * (1 + 2 * num_sets_++);
        return {made, made + words_};
    }

    Sets none() {
        Sets sets = make_sets();
        std::fill_n(sets.held, 2 * words_, 0);
        return sets;
    }

    // False where nobody is left.
    bool walk(long count, Sets sets) {
        constexpr long kRing = 32;
        static_assert(2 * kAhead < kRing, "");
        u64 mixed[kRing];
        Found found[kRing], last = {};
        Sets narrowed = make_sets();
        for (long i = 0, depth = 0; depth < count; ++i) {
            if (i < count) {
                mixed[i % kRing] = index_.mix(hash_at(hashes_, i));
                prefetch(index_, mixed[i % kRing]);
            }
            long look = i - kAhead;
            if (look >= 0 && look < count) found[look % kRing] = find(hash_at(hashes_, look), mixed[look % kRing]);
            if (i < 2 * kAhead) continue;
            const Found& now = found[depth % kRing];
            // Along one path the holders seldom change.
            if (depth == 0 || !same(now, last)) {
                narrow(sets, now, narrowed);
                end_difference(sets, narrowed, depth);
                std::copy_n(narrowed.held, 2 * words_, sets.held);
                if (empty(sets)) return false;
                last = now;
            }
            ++depth;
        }
        return words_ > 0;
    }

    // `sets` are those up to block `at`, and then those up to the last block.
    void gallop(long at, Sets sets) {
        for (long ahead = at, step = 1; ahead < count_ - 1; step *= 2) {
            ahead = std::min(ahead + step, count_ - 1);
            prefetch(index_, index_.mix(hash_at(hashes_, ahead)));
        }
        Sets beyond = make_sets();
        for (long step = 1; at < count_ - 1 && !empty(sets); step *= 2) {
            long next = std::min(at + step, count_ - 1);
            narrow(sets, find_at(next), beyond);
            bisect(at, next, sets, beyond);
            std::copy_n(beyond.held, 2 * words_, sets.held);
            at = next;
        }
    }

    // Ends the slots that have block `low` and lack block `high`.
    void bisect(long low, long high, Sets at_low, Sets at_high) {
        if (std::equal(at_low.held, at_low.held + 2 * words_, at_high.held)) return;
        if (high - low == 1) return end_difference(at_low, at_high, high);
        long middle = low + (high - low) / 2;
        Sets between = make_sets();
        narrow(at_low, find_at(middle), between);
        for (u32 w = 0; w < 2 * words_; ++w) between.held[w] |= at_high.held[w];
        bisect(low, middle, at_low, between);
        bisect(middle, high, between, at_high);
        --num_sets_;
    }

    Found find_at(long i) {
        u64 hash = hash_at(hashes_, i);
        return find(hash, index_.mix(hash));
    }

    Found find(u64 hash, u64 mixed) {
        Found found;
        Table* tables[] = {&index_.held, index_.expected, index_.expected_before};
        for (int t = 0; t < 3; ++t) {
            Shard& shard = tables[t]->shard(mixed);
            found.shards[t] = &shard;
            found.entries[t] = tables[t]->size ? shard.find(hash, mixed) : 0;
            if (is_wide(found.entries[t])) shard.prefetch_row(found.entries[t]);
        }
        return found;
    }

    static bool same(const Found& found, const Found& last) {
        for (int t = 0; t < 3; ++t)
            if (found.entries[t] != last.entries[t] || is_wide(last.entries[t])) return false;
        return true;
    }

    // Those of `sets` that have the block, too.
    void narrow(Sets sets, const Found& found, Sets narrowed) {
        u64* holders = index_.match_sets.data();
        std::fill_n(holders, words_, 0);
        unite(holders, found, 0);
        for (u32 w = 0; w < words_; ++w) narrowed.held[w] = sets.held[w] & holders[w];
        unite(holders, found, 1);
        unite(holders, found, 2);
        for (u32 w = 0; w < words_; ++w) narrowed.either[w] = sets.either[w] & holders[w];
    }

    void unite(u64* holders, const Found& found, int t) {
        u64 entry = found.entries[t];
        if (is_wide(entry)) {
            const u64* row = found.shards[t]->row(entry);
            for (u32 w = 0; w < found.shards[t]->row_words(); ++w) holders[w] |= row[w];
        } else {
            for (; entry; entry >>= 16) {
                u32 slot = static_cast<u32>(entry & 0xFFFF) - 1;
                holders[slot / 64] |= u64(1) << (slot % 64);
            }
        }
    }

    bool empty(Sets sets) const {
        return std::all_of(sets.either, sets.either + words_, [](u64 word) { return !word; });
    }

    // Slots that are only in `before` have `depth` blocks. Those alike in both depths stand in one group; those without
    // any in none.
    void end_difference(Sets before, Sets after, long depth) {
        for (u32 w = 0; w < words_; ++w) {
            for (u64 lost = before.held[w] & ~after.held[w]; lost; lost &= lost - 1)
                index_.match_depths[w * 64 + __builtin_ctzll(lost)] = static_cast<u32>(depth);
            if (!depth) continue;
            for (u64 lost = before.either[w] & ~after.either[w]; lost; lost &= lost - 1)
                end(w * 64 + __builtin_ctzll(lost), static_cast<u32>(depth));
        }
    }

    void end(u32 slot, u32 depth) {
        u32 held = index_.match_depths[slot];
        u32* group = groups_ + 3 * num_groups_;
        if (!num_groups_ || group[-3] != held || group[-2] != depth) {
            group[0] = held;
            group[1] = depth;
            ++num_groups_;
            group += 3;
        }
        slots_[num_slots_++] = static_cast<u16>(slot);
        group[-1] = num_slots_;
    }

    Index& index_;
    const void* hashes_;
    const long count_;
    u32* groups_;
    u16* slots_;
    u32 words_;
    u32 num_groups_ = 0, num_slots_ = 0;
    int num_sets_ = 0;
};
