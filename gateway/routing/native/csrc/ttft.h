// Policy `ttft`: as ttft.py, term by term; what each means is said there.
#pragma once

#include "wait.h"

constexpr double NEAR = 0.05;
constexpr double LOAD_MAX = 0.97;
constexpr double REUSE_MAX = 0.97;
constexpr double ALIKE = 2.0;
constexpr double SPREAD = 2.0;
constexpr double EVICTED_REUSE = 0.3;

inline double price(double load) { return load / (1 - load); }

// `row` with values that are alike made equal.
inline std::vector<double> levelled(const Candidates& c, Row row) {
    const double* values = c.column(row);
    std::vector<double> made(values, values + c.count);
    std::nth_element(made.begin(), made.begin() + c.count / 2, made.end());
    double median = made[c.count / 2];
    for (long i = 0; i < c.count; ++i) {
        bool alike = values[i] < median * ALIKE && values[i] * ALIKE > median;
        made[i] = alike ? median : values[i];
    }
    return made;
}

inline std::vector<Speed> levelled_speeds(const Candidates& c) {
    std::vector<double> c0 = levelled(c, ROW_c0), c_lin = levelled(c, ROW_c_lin);
    std::vector<double> c_att = levelled(c, ROW_c_att), c_dec = levelled(c, ROW_c_dec);
    std::vector<Speed> speeds(c.count);
    std::vector<double> steps;
    for (long i = 0; i < c.count; ++i) {
        double step_s = c0[i] + c_dec[i] * c.decoding(i);
        if (c.stay_s(i) > 0) steps.push_back(c.stay_s(i) / std::max(step_s, 1e-9));
        speeds[i] = {c0[i], c_lin[i], c_att[i], c_dec[i], step_s};
    }
    double stay_steps = steps.empty() ? 0.0 : mean(steps);
    for (Speed& speed : speeds) speed.stay_s *= stay_steps;
    return speeds;
}

// Of each replica's compute, half by its own load and half by the fleet's; `shares`: how busy each is.
inline std::vector<double> busy_prices(const double* shares, long count) {
    std::vector<double> sorted(shares, shares + count);
    double average = mean(sorted);
    double fleet = price(std::min(average, LOAD_MAX));
    std::vector<double> prices(count);
    for (long i = 0; i < count; ++i) prices[i] = fleet * (1 + shares[i] / std::max(average, 1e-9)) / 2;
    return prices;
}

// Of each replica's KV likewise, times how often what is held comes back.
inline std::vector<double> kv_prices(const Candidates& c) {
    std::vector<double> reuses(c.column(ROW_reuse), c.column(ROW_reuse) + c.count);
    double reuse = std::min(mean(reuses), REUSE_MAX);
    std::vector<double> loads(c.count);
    for (long i = 0; i < c.count; ++i) loads[i] = std::min(c.active_blocks(i) / std::max(1.0, c.total_blocks(i)), LOAD_MAX);
    std::vector<double> sorted = loads;
    double fleet = price(mean(sorted));
    for (double& load : loads) load = reuse / (1 - reuse) * (price(load) + fleet) / 2;
    return loads;
}

inline double kv_s(const Candidates& c, long i, const Speed& s, double uncached, double price) {
    if (c.total_blocks(i) <= 0) return 0.0;
    return s.stay_s * uncached / BLOCK / c.total_blocks(i) * price;
}

inline double evicted_blocks(const Candidates& c, long i, double uncached) {
    if (c.total_blocks(i) <= 0) return 0.0;
    double free = std::max(0.0, c.free_blocks(i) - c.queue_tokens(i) / BLOCK);
    return std::max(0.0, uncached / BLOCK - free);
}

class Ttft {
  public:
    Ttft(const Candidates& candidates, double tokens, double future_uses, long blocks, double* terms)
        : c(candidates), tokens_(tokens), future_uses_(future_uses), blocks_(blocks), terms_(terms) {}

    // Writes all terms.
    void compute(const double* shares) {
        std::vector<Speed> speeds = levelled_speeds(c);
        std::vector<double> prices = busy_prices(shares, c.count), kv = kv_prices(c);
        double most_cached = 0.0;
        for (long i = 0; i < c.count; ++i) {
            at(TERM_cached_tokens, i) = c.credited_tokens(tokens_, i);
            most_cached = std::max(most_cached, at(TERM_cached_tokens, i));
        }
        new_s_.resize(c.count);
        computing_s_.resize(c.count);
        for (long i = 0; i < c.count; ++i) one(i, speeds[i], SPREAD * prices[i], kv[i], most_cached);
    }

    // Of those that are about the cheapest the roomiest; of several the same one at all gateways.
    long place(u64 key) const {
        const double* total = terms_ + TERM_cost * c.count;
        long cheapest = std::min_element(total, total + c.count) - total;
        double slack = NEAR * new_s_[cheapest];
        std::vector<double> room(c.count);
        double most = -1.0;
        for (long i = 0; i < c.count; ++i) {
            double waste = std::max(0.0, computing_s_[i] - computing_s_[cheapest]);
            bool waits_no_longer = total[i] - waste <= total[cheapest] + slack;
            double free = free_blocks(i);
            bool near = total[i] <= total[cheapest] + slack ||
                        (free >= double(blocks_) && waits_no_longer && waste <= new_s_[cheapest] / 2);
            room[i] = near ? free : -1.0;
            most = std::max(most, room[i]);
        }
        return c.rendezvous(key, [&](long i) { return room[i] == most; });
    }

    // As CHOICE of library.py has it.
    void say(long place, double* found) const {
        put(found + CHOICE_cached, long(c.cached_tokens(tokens_, place)));
        put(found + CHOICE_held, long(c.held_tokens(tokens_, place)));
        double waits = 0.0;
        for (Term term : {TERM_queue_s, TERM_place_s, TERM_prefill_s}) waits += terms_[term * c.count + place];
        found[CHOICE_predicted_s] = waits;
    }

  private:
    double& at(Term term, long i) { return terms_[term * c.count + i]; }

    void one(long i, const Speed& s, double price, double kv_price, double most_cached) {
        double cached = at(TERM_cached_tokens, i);
        double uncached = tokens_ - cached;
        double prefill_s = prefill_wait_s(c, i, s, tokens_, cached);
        Ahead ahead = ahead_of(c, i, tokens_ - c.held_tokens(tokens_, i) * c.trust(i));
        double new_s = prefill_wait_s(c, i, s, tokens_, most_cached);
        double shared_s = (prefill_s - new_s) * (1 - 1 / future_uses_);
        double work_s = prefill_s - shared_s;
        at(TERM_queue_s, i) = queue_wait_s(c, i, s, ahead);
        at(TERM_place_s, i) = place_wait_s(c, i, s, uncached, ahead);
        at(TERM_prefill_s, i) = prefill_s;
        at(TERM_shared_s, i) = -shared_s;
        at(TERM_delay_s, i) = ahead.passed * prefill_s;
        at(TERM_compute_s, i) = work_s * price;
        at(TERM_kv_s, i) = kv_s(c, i, s, uncached, kv_price);
        at(TERM_eviction_s, i) = s.c_lin * BLOCK * evicted_blocks(c, i, uncached) * EVICTED_REUSE * c.reuse(i) * (1 + price);
        double total = 0.0;
        for (int term = 0; term < TERM_cost; ++term) total += at(Term(term), i);
        at(TERM_cost, i) = total;
        new_s_[i] = new_s;
        computing_s_[i] = work_s * (1 + price);
    }

    double free_blocks(long i) const {
        double waiting = 0.0;
        for (int k = 0; k < SIZES; ++k) waiting += c.size_tokens(k, i);
        return std::max(0.0, c.free_blocks(i) - waiting / BLOCK);
    }

    const Candidates& c;
    double tokens_, future_uses_;
    long blocks_;
    double* terms_;
    std::vector<double> new_s_, computing_s_;
};
