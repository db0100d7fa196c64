// Block hash -> the slots that hold it: open addressing with linear probing, in shards that grow, shrink and are swept
// one by one, so that no call ever moves the whole table.
//
// An entry is 16 bytes. Most blocks are held by few replicas: up to four slots stand in the entry itself, 16 bits each,
// as slot + 1, from the lowest bits up. More than that go to a row of bits, of which each shard keeps a pool; the entry then has
// kWide in its low 16 bits and the row's number in its high 32.
#pragma once

#include <algorithm>

#include "rows.h"

constexpr u32 kShards = SHARDS;
constexpr u32 kMinCapacity = 8;
constexpr u64 kWide = 0xFFFF;
constexpr int kLanes = 4;

struct Entry {
    u64 key;
    u64 holders;  // 0: no entry
};

// Hashes are public, and whoever chooses prompts can make many that agree in any bits: the seed must be a secret.
struct Mixer {
    u64 seed;

    u64 operator()(u64 key) const {
        u64 h = (key ^ seed) * (seed << 1 | 1);
        h = (h ^ h >> 32) * 0x9E3779B97F4A7C15;
        h = (h ^ h >> 29) * 0xBF58476D1CE4E5B9;
        return h ^ h >> 32;
    }
};

inline bool is_wide(u64 holders) { return (holders & 0xFFFF) == kWide; }
inline u32 row_of(u64 holders) { return static_cast<u32>(holders >> 32); }
inline u32 lane(u64 holders, int i) { return (holders >> (16 * i)) & 0xFFFF; }

class Shard {
  public:
    ~Shard() { std::free(entries_); }

    u32 size() const { return size_; }
    std::size_t bytes() const { return capacity_ * sizeof(Entry) + rows_.bytes(); }
    u32 capacity() const { return capacity_; }
    const Entry& entry(u32 i) const { return entries_[i]; }
    const u64* row(u64 holders) const { return rows_.at(row_of(holders)); }
    u32 row_words() const { return rows_.words(); }

    void prefetch(u64 mixed) const {
        if (capacity_) __builtin_prefetch(entries_ + home(mixed));
    }

    void prefetch_row(u64 holders) const { __builtin_prefetch(row(holders)); }

    u64 find(u64 key, u64 mixed) const {
        if (!size_) return 0;
        for (u32 i = home(mixed);; i = (i + 1) & (capacity_ - 1)) {
            const Entry& entry = entries_[i];
            if (!entry.holders || entry.key == key) return entry.holders;
        }
    }

    bool has(u64 holders, u32 slot) const {
        if (is_wide(holders)) {
            return slot / 64 < rows_.words() && (row(holders)[slot / 64] >> (slot % 64) & 1);
        }
        for (int i = 0; i < kLanes; ++i)
            if (lane(holders, i) == slot + 1) return true;
        return false;
    }

    // Whether the slot is new there; -1 where that takes an entry more and there may be none. `number`: the shard's.
    int add(u64 key, u64 mixed, u32 slot, bool may_grow, u32 number, const Mixer& mix) {
        if (!capacity_) {
            if (!may_grow) return -1;
            resize(kMinCapacity, mix);
        }
        u32 i = home(mixed);
        for (; entries_[i].holders; i = (i + 1) & (capacity_ - 1)) {
            if (entries_[i].key != key) continue;
            if (has(entries_[i].holders, slot)) return 0;
            entries_[i].holders = with(entries_[i].holders, slot);
            return 1;
        }
        if (!may_grow) return -1;
        entries_[i] = {key, slot + 1};
        // Shards fill alike: a limit of its own for each, 5/8 to 6/8, keeps them from growing all at once.
        if (++size_ > capacity_ / 8 * 5 + u64(capacity_ / 8) * number / kShards) resize(capacity_ * 2, mix);
        return 1;
    }

    bool remove(u64 key, u64 mixed, u32 slot, const Mixer& mix) {
        if (!size_) return false;
        u32 i = home(mixed);
        for (; entries_[i].key != key; i = (i + 1) & (capacity_ - 1))
            if (!entries_[i].holders) return false;
        if (!entries_[i].holders || !has(entries_[i].holders, slot)) return false;
        entries_[i].holders = without(entries_[i].holders, slot);
        if (!entries_[i].holders) {
            erase(i, mix);
            --size_;
            if (capacity_ > kMinCapacity && size_ < capacity_ / 8) resize(std::max(kMinCapacity, capacity_ / 4), mix);
        }
        return true;
    }

    // Takes the dead slots out of all entries, and gives back what memory that frees.
    void sweep(const u64* dead, u32 words, const Mixer& mix) {
        u32 left = 0;
        for (u32 i = 0; i < capacity_; ++i) {
            u64& holders = entries_[i].holders;
            if (holders) holders = is_wide(holders) ? wide_without(holders, dead, words) : lanes_without(holders, dead, words);
            left += holders != 0;
        }
        if (left == size_ && !rows_.sparse()) return;
        u32 capacity = capacity_;
        while (capacity > kMinCapacity && left < capacity / 4) capacity /= 2;
        size_ = left;
        resize(left ? capacity : 0, mix);
    }

  private:
    // The lowest bits of `mixed` choose the shard.
    u32 home(u64 mixed) const { return static_cast<u32>(mixed >> 32) & (capacity_ - 1); }

    u64 with(u64 holders, u32 slot) {
        u32 words = slot / 64 + 1;
        if (is_wide(holders)) {
            if (words > rows_.words()) rows_.widen(words);
            rows_.at(row_of(holders))[slot / 64] |= u64(1) << (slot % 64);
            return holders;
        }
        for (int i = 0; i < kLanes; ++i)
            if (!lane(holders, i)) return holders | u64(slot + 1) << (16 * i);
        for (int i = 0; i < kLanes; ++i) {
            u32 needed = (lane(holders, i) - 1) / 64 + 1;
            if (needed > words) words = needed;
        }
        u32 row = rows_.make(words);
        u64* bits = rows_.at(row);
        bits[slot / 64] |= u64(1) << (slot % 64);
        for (int i = 0; i < kLanes; ++i) {
            u32 other = lane(holders, i) - 1;
            bits[other / 64] |= u64(1) << (other % 64);
        }
        return u64(row) << 32 | kWide;
    }

    u64 without(u64 holders, u32 slot) {
        if (is_wide(holders)) {
            rows_.at(row_of(holders))[slot / 64] &= ~(u64(1) << (slot % 64));
            return narrowed(holders, kLanes / 2);
        }
        u64 left = 0;
        int count = 0;
        for (int i = 0; i < kLanes; ++i)
            if (lane(holders, i) && lane(holders, i) != slot + 1) left |= u64(lane(holders, i)) << (16 * count++);
        return left;
    }

    static u64 lanes_without(u64 holders, const u64* dead, u32 words) {
        u64 left = 0;
        int count = 0;
        for (int i = 0; i < kLanes && lane(holders, i); ++i) {
            u32 slot = lane(holders, i) - 1;
            bool gone = slot / 64 < words && (dead[slot / 64] >> (slot % 64) & 1);
            if (!gone) left |= u64(slot + 1) << (16 * count++);
        }
        return left;
    }

    u64 wide_without(u64 holders, const u64* dead, u32 words) {
        u64* bits = rows_.at(row_of(holders));
        for (u32 w = 0; w < words && w < rows_.words(); ++w) bits[w] &= ~dead[w];
        return narrowed(holders, kLanes);
    }

    // Back into the entry, where its row holds at most so many; a row on the edge shouldn't go to and fro.
    u64 narrowed(u64 holders, int at_most) {
        u32 row = row_of(holders);
        const u64* bits = rows_.at(row);
        u64 lanes = 0;
        int count = 0;
        for (u32 w = 0; w < rows_.words(); ++w) {
            for (u64 word = bits[w]; word; word &= word - 1) {
                if (count == at_most) return holders;
                lanes |= u64(w * 64 + __builtin_ctzll(word) + 1) << (16 * count++);
            }
        }
        rows_.drop(row);
        return lanes;
    }

    // Closes the gap, so that no entry lies behind an empty place on its way from home.
    void erase(u32 gap, const Mixer& mix) {
        u32 mask = capacity_ - 1;
        for (u32 i = (gap + 1) & mask; entries_[i].holders; i = (i + 1) & mask) {
            u32 from_home = (i - home(mix(entries_[i].key))) & mask;
            if (from_home >= ((i - gap) & mask)) {
                entries_[gap] = entries_[i];
                gap = i;
            }
        }
        entries_[gap].holders = 0;
    }

    void resize(u32 capacity, const Mixer& mix) {
        Entry* old = entries_;
        u32 old_capacity = capacity_;
        capacity_ = capacity;
        entries_ = nullptr;
        if (capacity) {
            entries_ = static_cast<Entry*>(std::calloc(capacity, sizeof(Entry)));
            if (!entries_) std::abort();
        }
        bool pack = rows_.sparse();
        Rows packed;
        for (u32 j = 0; j < old_capacity; ++j) {
            if (!old[j].holders) continue;
            u32 i = home(mix(old[j].key));
            while (entries_[i].holders) i = (i + 1) & (capacity - 1);
            entries_[i] = old[j];
            if (pack && is_wide(old[j].holders)) {
                u32 row = packed.make(rows_.words());
                std::memcpy(packed.at(row), row_at(old[j].holders), rows_.words() * sizeof(u64));
                entries_[i].holders = u64(row) << 32 | kWide;
            }
        }
        if (pack) rows_.swap(packed);
        std::free(old);
    }

    const u64* row_at(u64 holders) const { return rows_.at(row_of(holders)); }

    Entry* entries_ = nullptr;
    u32 capacity_ = 0;
    u32 size_ = 0;
    Rows rows_;
};
