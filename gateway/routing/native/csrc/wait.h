// What a prompt itself would wait for its first token: as wait.py, term by term.
#pragma once

#include "columns.h"

// Of one replica.
struct Speed {
    double c0, c_lin, c_att, c_dec, stay_s;

    static Speed of(const Candidates& c, long i) { return {c.c0(i), c.c_lin(i), c.c_att(i), c.c_dec(i), c.stay_s(i)}; }
};

inline double prefill_wait_s(const Candidates& c, long i, const Speed& s, double tokens, double cached) {
    double uncached = tokens - cached;
    double steps = std::max(1.0, uncached / c.step_tokens(i));
    return steps * s.c0 + s.c_lin * uncached + s.c_att * uncached * (tokens - uncached / 2) +
           s.c_dec * c.decoding(i) * steps;
}

struct Ahead {
    double tokens;    // computed before the request
    double requests;  // theirs, as far as they are known
    double passed;    // requests that the request makes wait
};

inline int size_class(double tokens) {
    int exponent;
    std::frexp(std::max(tokens, 1.0), &exponent);
    return std::min(std::max(exponent - 6, 0), SIZES - 1);
}

inline Ahead ahead_of(const Candidates& c, long i, double size) {
    int longest = c.shortest_first(i) == 0 ? SIZES - 1 : size_class(size);
    double known = 0.0, shorter = 0.0, requests = 0.0, passed = 0.0, counted = 0.0;
    for (int k = 0; k < SIZES; ++k) {
        known += c.size_tokens(k, i);
        counted += c.size_counts(k, i);
        if (k <= longest) {
            shorter += c.size_tokens(k, i);
            requests += c.size_counts(k, i);
        } else {
            passed += c.size_counts(k, i);
        }
    }
    double share = std::min(1.0, c.queue_tokens(i) / std::max(known, 1.0));
    double unknown = std::max(0.0, c.queue_tokens(i) - known);
    double others = std::max(0.0, c.waiting(i) - counted);
    return {unknown + share * shorter, others + requests, share * passed};
}

inline double queue_wait_s(const Candidates& c, long i, const Speed& s, const Ahead& ahead) {
    double step_s = s.c0 + s.c_dec * c.decoding(i);
    double queue = c.queue_tokens(i);
    double under_way = queue > 0 ? step_s + s.c_lin * std::min(queue, c.step_tokens(i)) : 0.0;
    return (s.c_lin + step_s / c.step_tokens(i)) * ahead.tokens + under_way / 2;
}

inline double place_wait_s(const Candidates& c, long i, const Speed& s, double uncached, const Ahead& ahead) {
    double active = c.active_blocks(i), total = c.total_blocks(i), most = c.max_running(i);
    double decoding = std::max(1.0, c.decoding(i));
    double places = c.decoding(i) + ahead.requests + 1 - most;
    double blocks = active / decoding * ahead.requests + uncached / BLOCK + active - total;
    double lacking = total > 0 ? blocks / std::max(1.0, active) : 0.0;
    return s.stay_s * std::max(0.0, std::max(lacking, most > 0 ? places / decoding : 0.0));
}

inline double wait_s(const Candidates& c, long i, double tokens, double cached) {
    Speed s = Speed::of(c, i);
    Ahead ahead = ahead_of(c, i, tokens - c.held_tokens(tokens, i) * c.trust(i));
    return queue_wait_s(c, i, s, ahead) + place_wait_s(c, i, s, tokens - cached, ahead) +
           prefill_wait_s(c, i, s, tokens, cached);
}
