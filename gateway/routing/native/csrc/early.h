// For how long a request had better wait before it is sent to a replica: as hold.py, which says what is computed.
#pragma once

#include "wait.h"

constexpr double FLIGHT_S = 0.005;
constexpr double ALL = double(1L << 60);

inline double early_s(const Candidates& c, long i, double size) {
    bool is_all = size >= ALL;
    double known = 0.0;
    for (int k = 0; k < SIZES; ++k) known += c.size_tokens(k, i);
    double queued = c.queue_tokens(i), step_tokens = c.step_tokens(i);
    double soon = std::min(known, 2 * step_tokens) + (is_all ? 0.0 : size);
    bool lacks_kv = c.total_blocks(i) > 0 && c.active_blocks(i) + soon / BLOCK > c.total_blocks(i);
    double queue = lacks_kv ? std::max(queued, known) : queued;
    if (queue <= 0 || size <= 0 || (lacks_kv && !is_all)) return -INFINITY;
    Speed s = Speed::of(c, i);
    double step_s = s.c0 + s.c_dec * c.decoding(i);
    if (is_all) return (s.c_lin + step_s / step_tokens) * queue - FLIGHT_S;
    double horizon_s = 2 * (step_s + s.c_lin * step_tokens) + FLIGHT_S;
    return queue_wait_s(c, i, s, ahead_of(c, i, size)) - horizon_s;
}
