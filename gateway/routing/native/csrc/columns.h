// The candidates' numbers: a row a column, each as long as there are candidates. Names and order come from library.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

enum Row : int { ROW_NAMES };
enum TableColumn : int { TABLE_NAMES };
enum Term : int { TERM_NAMES };
enum SurveyFigure : int { SURVEY_NAMES };
enum ChoiceFigure : int { CHOICE_NAMES };
enum PickFigure : int { PICK_NAMES };

// Where Python reads a whole number among the others.
inline void put(double* place, long value) { std::memcpy(place, &value, sizeof value); }

#define COLUMN(name) \
    double name(long i) const { return numbers[ROW_##name * count + i]; }

struct Candidates {
    const double* numbers;
    long count;

    COLUMN(queue_tokens)
    COLUMN(held_blocks)
    COLUMN(matched_blocks)
    COLUMN(waiting)
    COLUMN(decoding)
    COLUMN(active_blocks)
    COLUMN(free_blocks)
    COLUMN(total_blocks)
    COLUMN(max_running)
    COLUMN(stay_s)
    COLUMN(trust)
    COLUMN(unpromised)
    COLUMN(reuse)
    COLUMN(reuse_tokens)
    COLUMN(c0)
    COLUMN(c_lin)
    COLUMN(c_att)
    COLUMN(c_dec)
    COLUMN(step_tokens)
    COLUMN(shortest_first)

    const double* column(Row row) const { return numbers + row * count; }
    double size_tokens(int size, long i) const { return numbers[(ROW_size_tokens + size) * count + i]; }
    double size_counts(int size, long i) const { return numbers[(ROW_size_counts + size) * count + i]; }

    u64 id_hash(long i) const {
        u64 hash;
        std::memcpy(&hash, numbers + ROW_id_hash * count + i, sizeof hash);
        return hash;
    }

    // As candidates.py has them.

    double usable(double blocks, double tokens, long i) const {
        double usable = std::min(blocks, std::floor((tokens - 1) / BLOCK)) * BLOCK;
        return usable - std::fmod(usable, std::max(1.0, reuse_tokens(i)));
    }

    double cached_tokens(double tokens, long i) const { return usable(matched_blocks(i), tokens, i); }
    double held_tokens(double tokens, long i) const { return usable(held_blocks(i), tokens, i); }

    double credited_tokens(double tokens, long i) const {
        double cached = cached_tokens(tokens, i);
        return cached * trust(i) + (std::floor((tokens - 1) / BLOCK) * BLOCK - cached) * unpromised(i);
    }

    // Highest random weight among those for which `among` says so.
    template <typename Among>
    long rendezvous(u64 key, Among among) const {
        long best = -1;
        u64 most = 0;
        for (long i = 0; i < count; ++i) {
            if (!among(i)) continue;
            u64 weight = mixed(id_hash(i) ^ key);
            if (best < 0 || weight > most) best = i, most = weight;
        }
        return best;
    }

    static u64 mixed(u64 value) {
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9;
        value = (value ^ value >> 27) * 0x94D049BB133111EB;
        return value ^ value >> 31;
    }
};

// The same to the last bit in whatever order they come.
inline double mean(std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    double sum = 0.0;
    for (double value : values) sum += value;
    return sum / double(values.size());
}
