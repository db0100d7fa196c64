// Decisions on raw pointers, for ctypes: `library.py` says what is passed.
#include "chain.h"
#include "early.h"
#include "pick.h"
#include "seen.h"
#include "survey.h"
#include "ttft.h"

extern "C" {

// Arguments of what is called with one block of them: see native/call.py.

struct PickCall {
    const double* rows;
    long count;
    double now;
    long frozen;
    double tokens;
    const u32* without;  // places that may not be chosen
    long num_without;
    const u32* groups;
    long num_groups;
    const u16* slots;
    const std::int32_t* slot_places;
    double* numbers;  // room for all rows of all replicas
    u32* places;      // twice as much room as there are replicas; the first half gets the candidates' places
    double* figures;
};

// Returns the number of candidates.
long pick(const PickCall* call) {
    auto [rows, count, now, frozen, tokens, without, num_without, groups, num_groups, slots, slot_places, numbers,
          places, figures] = *call;
    Table table{rows, count};
    u32* number_of = places + count;
    long chosen = 0;
    std::vector<bool> open = open_places(table, now, frozen, tokens);
    for (long k = 0; k < num_without; ++k) open[without[k]] = false;
    start_slowly(table, now, open);
    for (long place = 0; place < count; ++place) {
        number_of[place] = open[place] ? u32(chosen) : ~u32(0);
        if (open[place]) places[chosen++] = u32(place);
    }
    write_columns(table, places, chosen, now, numbers);
    write_matches({groups, num_groups, slots, slot_places}, number_of, chosen, numbers);
    write_figures({numbers, chosen}, figures);
    return chosen;
}

struct TtftCall {
    const double* numbers;
    long count;
    double tokens, future_uses;
    long blocks;
    const double* shares;
    u64 key;        // tells equals apart
    double* terms;  // gets TERM rows, behind them the survey and then what is said of the choice
};

// Returns the place of the choice.
long ttft(const TtftCall* call) {
    auto [numbers, count, tokens, future_uses, blocks, shares, key, terms] = *call;
    Candidates candidates{numbers, count};
    Ttft policy(candidates, tokens, future_uses, blocks, terms);
    policy.compute(shares);
    long place = policy.place(key);
    survey_candidates(candidates, tokens, place, terms + TERM_END * count);
    policy.say(place, terms + TERM_END * count + SURVEY_END);
    return place;
}

struct PlacedCall {
    double* shares;
    const double* terms;
    long count;
    double weight;
};

// How busy each replica is, with one request more that saw it.
long ttft_placed(const PlacedCall* call) {
    auto [shares, terms, count, weight] = *call;
    const double* queue_s = terms + TERM_queue_s * count;
    for (long i = 0; i < count; ++i) shares[i] += (double(queue_s[i] > 0) - shares[i]) / weight;
    return 0;
}

void survey(const double* numbers, long count, double tokens, long place, double* found) {
    survey_candidates({numbers, count}, tokens, place, found);
}

double wait_of(const double* numbers, long count, double tokens, long place, double cached) {
    return wait_s({numbers, count}, place, tokens, cached);
}

double early(const double* numbers, long count, double size, long place) {
    return early_s({numbers, count}, place, size);
}

void block_hashes(const unsigned char* tokens, long count, u64 parent, long fork, u64 tag, u64* hashes) {
    chain(tokens, count, parent, fork, tag, hashes);
}

struct SeenCall {
    u32* marks;
    u64 mask;
    const u64* hashes;
    long count;
};

long seen_add(const SeenCall* call) {
    Seen{call->marks, call->mask}.add(call->hashes, call->count);
    return 0;
}

long seen_depth(const SeenCall* call) { return Seen{call->marks, call->mask}.depth(call->hashes, call->count); }
}
