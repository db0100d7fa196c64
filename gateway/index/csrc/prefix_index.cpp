// The index on raw pointers, for ctypes: `native_index.py` keeps the rules, this keeps the sets. Hashes come packed,
// 8 bytes each, at any alignment.
#include "index.h"
#include "match.h"

extern "C" {

Index* index_new(u64 seed) { return new Index(seed); }

void index_free(Index* index) { delete index; }

// Whether the slot's blocks count.
void index_live(Index* index, u32 slot, int live) {
    if (slot / 64 >= index->live.size()) index->live.resize(slot / 64 + 1);
    u64 bit = u64(1) << (slot % 64);
    index->live[slot / 64] = live ? index->live[slot / 64] | bit : index->live[slot / 64] & ~bit;
}

// 0 where that would have made more than so many entries. What changed is counted in change[0], and XORed in change[1].
int index_add(Index* index, u32 slot, const void* hashes, long start, long stop, u64 max_blocks, u64* change) {
    int added = 0;
    for_each(*index, hashes, start, stop, [&](u64 hash, u64 mixed) {
        added = index->held.add(hash, mixed, slot, max_blocks, index->mix);
        if (added > 0) {
            ++change[0];
            change[1] ^= hash;
        }
        return added >= 0;
    });
    return added >= 0;
}

// Expectations of these blocks end as well. What changed is counted in change[0], and XORed in change[1].
void index_remove(Index* index, u32 slot, const void* hashes, long start, long stop, u64* change) {
    for_each(*index, hashes, start, stop, [&](u64 hash, u64 mixed) {
        if (index->held.remove(hash, mixed, slot, index->mix)) {
            ++change[0];
            change[1] ^= hash;
        }
        index->expected->remove(hash, mixed, slot, index->mix);
        index->expected_before->remove(hash, mixed, slot, index->mix);
        return true;
    });
}

// Arguments of what is called with one block of them: see native/call.py.

struct ExpectCall {
    Index* index;
    long slot;
    const void* hashes;
    long count;
};

long index_expect(const ExpectCall* call) {
    Index* index = call->index;
    for_each(*index, call->hashes, 0, call->count, [&](u64 hash, u64 mixed) {
        index->expected->add(hash, mixed, u32(call->slot), ~u64(0), index->mix);
        return true;
    });
    return 0;
}

u64 index_expected(const Index* index) { return index->expected->size; }

// The older generation of expectations is forgotten, or both.
void index_rotate(Index* index, int both) {
    delete index->expected_before;
    index->expected_before = index->expected;
    if (both) {
        delete index->expected;
        index->expected_before = new Table;
    }
    index->expected = new Table;
}

// Takes the dead slots, a bit each, out of one shard.
void index_sweep(Index* index, u32 shard, const u64* dead, u32 words) {
    for (Table* table : {&index->held, index->expected, index->expected_before})
        table->sweep(shard, dead, words, index->mix);
}

struct MatchCall {
    Index* index;
    const void* hashes;
    long count;
    u32* groups;
    u16* slots;
};

// For each live slot that has the first block: how many leading blocks it holds, and how many it holds or expects. Slots
// alike in both form groups of (held, either, end in `slots`); returns their number. Room is needed for all live slots.
long index_match(const MatchCall* call) {
    return Match(*call->index, call->hashes, call->count, call->groups, call->slots).run();
}

// Writes all that the slot holds; room is needed for all of it.
void index_hashes_of(const Index* index, u32 slot, u64* out) {
    for (const Shard& shard : index->held.shards)
        for (u32 i = 0; i < shard.capacity(); ++i)
            if (shard.entry(i).holders && shard.has(shard.entry(i).holders, slot)) *out++ = shard.entry(i).key;
}

u64 index_size(const Index* index) { return index->held.size; }

u64 index_bytes(const Index* index) {
    u64 sum = sizeof(Index) + 2 * sizeof(Table);
    const Table* tables[] = {&index->held, index->expected, index->expected_before};
    for (const Table* table : tables)
        for (const Shard& shard : table->shards) sum += shard.bytes();
    return sum;
}
}
