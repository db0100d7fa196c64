// The few numbers that a decision is judged by: as survey.py.
#pragma once

#include "wait.h"

struct Quickest {
    long place = -1;
    double wait_s = INFINITY;

    void see(long i, double wait) {
        if (place < 0 || wait < wait_s) place = i, wait_s = wait;
    }

    void write(double* found, SurveyFigure place_at, SurveyFigure wait_at) const {
        put(found + place_at, place);
        found[wait_at] = wait_s;
    }
};

inline void survey_candidates(const Candidates& c, double tokens, long mine, double* found) {
    double most_cached = -1.0, most_held = -1.0;
    Quickest with_most_cached, with_most_held, other;
    for (long i = 0; i < c.count; ++i) {
        double cached = c.cached_tokens(tokens, i), held = c.held_tokens(tokens, i);
        double credited = c.credited_tokens(tokens, i), wait = wait_s(c, i, tokens, credited);
        if (cached > most_cached) most_cached = cached, with_most_cached = Quickest();
        if (cached == most_cached) with_most_cached.see(i, wait);
        if (held > most_held) most_held = held, with_most_held = Quickest();
        if (held == most_held) with_most_held.see(i, wait);
        if (i != mine) {
            other.see(i, wait);
        } else {
            found[SURVEY_mine_s] = wait;
            found[SURVEY_my_credited] = credited;
            put(found + SURVEY_my_cached, long(cached));
        }
    }
    put(found + SURVEY_most_cached, long(most_cached));
    put(found + SURVEY_most_held, long(most_held));
    with_most_cached.write(found, SURVEY_with_most_cached, SURVEY_with_most_cached_s);
    with_most_held.write(found, SURVEY_with_most_held, SURVEY_with_most_held_s);
    other.write(found, SURVEY_other, SURVEY_other_s);
}
