// Which replicas may take a request, and their columns at this moment: as FleetTable's `open` and `candidates`.
#pragma once

#include "columns.h"

// As in fleet_table.py.
constexpr double SLOW_START_SHARE = 1.5;

struct Table {
    const double* rows;  // one a replica
    long count;

    const double* row(long place) const { return rows + place * TABLE_END; }
};

inline bool is_there(const double* row, bool frozen) {
    return row[TABLE_ready] > 0 && (frozen || row[TABLE_beat_at] > row[TABLE_tripped_at]);
}

// Open breakers are passed over where they would leave less than half of those that are there; but for a frozen fleet.
inline bool heeds_breakers(const Table& table, double now, bool frozen) {
    long there = 0, closed = 0;
    for (long place = 0; place < table.count; ++place) {
        const double* row = table.row(place);
        if (!is_there(row, frozen)) continue;
        ++there;
        closed += row[TABLE_closed_until] <= now;
    }
    return frozen || 2 * closed >= there;
}

// Takes away the cold ones that have their share in flight already, unless all are cold.
inline void start_slowly(const Table& table, double now, std::vector<bool>& open) {
    double in_flight = 0.0, settled = 0.0;
    bool any_cold = false;
    for (long place = 0; place < table.count; ++place) {
        const double* row = table.row(place);
        bool is_cold = row[TABLE_warm_at] > now;
        any_cold |= is_cold;
        if (open[place] && !is_cold) in_flight += row[TABLE_leases], settled += 1.0;
    }
    if (!any_cold || settled == 0.0) return;
    double share = std::max(1.0, SLOW_START_SHARE * (in_flight / settled));
    for (long place = 0; place < table.count; ++place) {
        const double* row = table.row(place);
        if (row[TABLE_warm_at] > now && row[TABLE_leases] + 1 > share) open[place] = false;
    }
}

inline std::vector<bool> open_places(const Table& table, double now, bool frozen, double tokens) {
    bool heeds = heeds_breakers(table, now, frozen);
    std::vector<bool> open(table.count);
    for (long place = 0; place < table.count; ++place) {
        const double* row = table.row(place);
        open[place] = is_there(row, frozen) && (!heeds || row[TABLE_closed_until] <= now) &&
                      row[TABLE_max_context] >= tokens;
    }
    return open;
}

inline double queue_tokens(const double* row, double now) {
    double sunk = row[TABLE_level] - row[TABLE_tokens_per_s] * (now - row[TABLE_as_of]);
    return std::min(std::max(row[TABLE_floor], sunk), row[TABLE_bound]);
}

// Of an index's slots: groups of (held, matched, end in `slots`), and the table's place of each slot's replica, or -1.
struct Matches {
    const u32* groups;
    long num_groups;
    const u16* slots;
    const std::int32_t* places;
};

inline void write_columns(const Table& table, const u32* chosen, long count, double now, double* numbers) {
    constexpr int first = ROW_waiting;
    for (long i = 0; i < count; ++i) {
        const double* row = table.row(chosen[i]);
        numbers[ROW_queue_tokens * count + i] = queue_tokens(row, now);
        numbers[ROW_held_blocks * count + i] = numbers[ROW_matched_blocks * count + i] = 0.0;
        for (int column = 0; column < ROW_END - first; ++column) numbers[(first + column) * count + i] = row[column];
    }
}

inline void write_matches(const Matches& m, const u32* number_of, long count, double* numbers) {
    u32 begin = 0;
    for (long g = 0; g < m.num_groups; ++g) {
        const u32* group = m.groups + 3 * g;
        for (u32 s = begin; s < group[2]; ++s) {
            std::int32_t place = m.places[m.slots[s]];
            if (place < 0 || number_of[place] == ~u32(0)) continue;
            numbers[ROW_held_blocks * count + number_of[place]] = group[0];
            numbers[ROW_matched_blocks * count + number_of[place]] = group[1];
        }
        begin = group[2];
    }
}

inline void write_figures(const Candidates& c, double* figures) {
    double deepest = 0.0, most_held = 0.0, queued = 0.0, tokens_per_s = 0.0;
    long owners = 0, idle = 0;
    for (long i = 0; i < c.count; ++i) {
        queued += c.queue_tokens(i);
        idle += c.queue_tokens(i) == 0;
        double step_s = c.c0(i) + c.c_dec(i) * c.decoding(i);
        tokens_per_s += 1 / std::max(1e-12, c.c_lin(i) + step_s / std::max(1.0, c.step_tokens(i)));
        double matched = c.matched_blocks(i);
        if (matched > deepest) deepest = matched, owners = 0;
        owners += matched == deepest;
        most_held = std::max(most_held, c.held_blocks(i));
    }
    put(figures + PICK_deepest, long(deepest));
    put(figures + PICK_owners, owners);
    put(figures + PICK_most_held, long(most_held));
    figures[PICK_queued] = queued;
    put(figures + PICK_idle, idle);
    figures[PICK_tokens_per_s] = tokens_per_s;
}
