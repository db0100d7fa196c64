// Draws a token of each row of logits: temperature, top_k, min_p, top_p, then the inverse of the cumulative sum.
//
// All three cut a tail off the same order (logit down, then id up), so what is left is known by its mass alone, and each
// step asks where in the order a mass or a count is reached. Nothing is sorted for that: tokens fall into buckets by
// their logit, and only the bucket in question is looked into.
#include "vec.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace {

typedef Vector<double, 8> f64x8;
typedef Vector<int64_t, 8> i64x8;
typedef uint8_t u8x16 __attribute__((vector_size(16)));

constexpr int BUCKETS = 256;
constexpr size_t BLOCK = 512;       // tokens whose sum is taken at once where ids are the order
constexpr int64_t FEW = 32;         // candidates that are quicker sorted than halved
constexpr double NATS = 32;         // what is less likely than the likeliest by e^-32 shares the last bucket
constexpr double LOG2E = 1.4426950408889634;

INLINE f64x8 splat8(double x) { return filled<f64x8>(x); }

INLINE f64x8 load8(const double* from) { return loaded<f64x8>(from); }

template <class V>
INLINE void read_floats(V& v, const float* from) {
    convert(v, loaded<typename Native<float, sizeof(V) / sizeof(double)>::type>(from));
}

template <class V>
INLINE void read_floats(Two<V>& v, const float* from) {
    read_floats(v.low, from);
    read_floats(v.high, from + sizeof(V) / sizeof(double));
}

INLINE f64x8 load8(const float* from) {
    f64x8 v;
    read_floats(v, from);
    return v;
}

INLINE void store8(double* to, f64x8 v) { write(to, v); }

INLINE double sum8(f64x8 v) { return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7])); }

INLINE f64x8 fma8(f64x8 a, f64x8 b, f64x8 c) {
#if defined(__AVX512F__)
    return f64x8(_mm512_fmadd_pd(__m512d(a), __m512d(b), __m512d(c)));
#else
    return a * b + c;
#endif
}

// 2^x for x <= 0, to 3e-16; 0 below -1021. Taylor's series of degree 12 on |f| <= 1/2.
INLINE f64x8 power_of_2(f64x8 x) {
    constexpr double SERIES[] = {2.5678435993488196e-11, 4.44553827187081e-10, 7.054911620801121e-09, 1.0178086009239696e-07,
                                 1.3215486790144305e-06, 1.5252733804059838e-05, 0.00015403530393381606, 0.0013333558146428441,
                                 0.009618129107628477, 0.055504108664821576, 0.2402265069591007, 0.6931471805599453,
                                 1.0};
    const f64x8 magic = splat8(6755399441055744.0);  // 1.5 * 2^52, see exp2 of vec.h
    const i64x8 seen = x >= splat8(-1021.0);
    x = select(seen, x, f64x8{});
    const f64x8 shifted = x + magic, f = x - (shifted - magic);
    f64x8 p = splat8(SERIES[0]);
#pragma GCC unroll 12
    for (int i = 1; i <= 12; i++) p = fma8(p, f, splat8(SERIES[i]));
    return select(seen, f64x8(i64x8(p) + (i64x8(shifted) << 52)), f64x8{});
}

struct Params {
    float temperature;
    int64_t top_k;
    double top_p, min_p, point;
};

// One row after the other, in buffers that last. Each is padded to whole vectors with tokens that are never drawn.
class Sampler {
public:
    explicit Sampler(int64_t vocabulary)
        : n(size_t(vocabulary)), padded((n + BLOCK - 1) / BLOCK * BLOCK), logits(padded), weights(padded),
          buckets(padded) {}

    // -1 where a logit is NaN or +inf, or all are -inf.
    int64_t draw(const float* row, const Params& params) {
        if (!survey(row)) return -1;
        if (params.temperature == 0) return best;
        const bool cuts_k = params.top_k > 0, cuts_p = params.top_p < 1, cuts_min = params.min_p > 0;
        weigh(params.temperature);
        if (!cuts_k && !cuts_p && !cuts_min) return invert_by_id(params.point);
        fill_buckets(params.temperature);
        if (cuts_k) count_buckets();
        double mass = cuts_min ? mass_from(top + double(params.temperature) * std::log(params.min_p)) : total;
        if (cuts_k) mass = std::min(mass, reach([&](int64_t count, double) { return count >= params.top_k; }).mass);
        if (cuts_p) mass = reach([target = params.top_p * mass](int64_t, double sum) { return sum >= target; }).mass;
        return reach([target = params.point * mass](int64_t, double sum) { return sum > target; }).token;
    }

private:
    // A place in the order: the last token, and the mass up to it and with it.
    struct Place {
        int64_t token;
        double mass;
    };

    const size_t n, padded;
    int64_t best = 0;
    float top = 0, bottom = 0;  // the largest and the smallest finite logit
    double total = 0;
    std::vector<float> logits;
    std::vector<double> weights;  // exp((logit - top) / temperature)
    std::vector<uint8_t> buckets;  // 0 for the likeliest; never falls along the order
    double bucket_mass[BUCKETS];
    int64_t bucket_count[BUCKETS];
    std::vector<int32_t> candidates;

    bool survey(const float* row) {
        const float infinity = std::numeric_limits<float>::infinity();
        std::copy(row, row + n, logits.begin());
        std::fill(logits.begin() + int64_t(n), logits.end(), -infinity);
        f32x16 tops = splat(-infinity), bottoms = splat(infinity);
        i32x16 fine = splat(int32_t(-1)), bests = {}, ids = lane_numbers();
        for (size_t i = 0; i < padded; i += LANES, ids += splat(LANES)) {
            const f32x16 v = load(&logits[i]);
            const f32x16 finite = select(v > splat(-infinity), v, splat(infinity));
            fine &= v < splat(infinity);
            bests = select(v > tops, ids, bests);
            tops = select(v > tops, v, tops);
            bottoms = select(finite < bottoms, finite, bottoms);
        }
        bool all_fine = true;
        best = bests[0], top = tops[0], bottom = bottoms[0];
        for (int lane = 0; lane < LANES; lane++) {
            if (tops[lane] > top || (tops[lane] == top && bests[lane] < best)) best = bests[lane], top = tops[lane];
            bottom = std::min(bottom, bottoms[lane]);
            all_fine = all_fine && fine[lane];
        }
        return all_fine && top > -infinity;
    }

    void weigh(float temperature) {
        const f64x8 scale = splat8(LOG2E / double(temperature)), origin = splat8(double(top));
        f64x8 sums = {};
        for (size_t i = 0; i < padded; i += 8) {
            const f64x8 weight = power_of_2((load8(&logits[i]) - origin) * scale);
            sums += weight;
            store8(&weights[i], weight);
        }
        total = sum8(sums);
    }

    int64_t invert_by_id(double point) const {
        const double target = point * total;
        double before = 0;
        int64_t last = best;
        for (size_t block = 0; block < padded; block += BLOCK) {
            f64x8 sums = {};
            for (size_t i = block; i < block + BLOCK; i += 8) sums += load8(&weights[i]);
            const double mass = sum8(sums);
            if (before + mass > target) {
                double sum = before;
                for (size_t i = block; i < block + BLOCK; i++) {
                    if (weights[i] > 0) last = int64_t(i);
                    if ((sum += weights[i]) > target) return int64_t(i);
                }
            }
            before += mass;
        }
        return last;  // only rounding comes here
    }

    void fill_buckets(double temperature) {
        const double range = std::min(double(top) - double(bottom), NATS * temperature);
        const f32x16 scale = splat(range > 0 ? float((BUCKETS - 1) / range) : 0.0f), last = splat(float(BUCKETS - 1));
        for (size_t i = 0; i < padded; i += LANES) {
            const f32x16 x = (splat(top) - load(&logits[i])) * scale;
            i32x16 bucket;
            convert(bucket, select(x < last, x, last));  // NaN, of inf * 0, is last
            store_bytes(&buckets[i], bucket);
        }
        // Four of each, since one would wait for itself where neighbours share a bucket.
        double masses[4][BUCKETS] = {};
        for (size_t i = 0; i < padded; i += 4)
            for (size_t j = 0; j < 4; j++) masses[j][buckets[i + j]] += weights[i + j];
        for (int b = 0; b < BUCKETS; b++)
            bucket_mass[b] = (masses[0][b] + masses[1][b]) + (masses[2][b] + masses[3][b]);
        std::fill(bucket_count, bucket_count + BUCKETS, 0);
    }

    void count_buckets() {
        int64_t counts[4][BUCKETS] = {};
        for (size_t i = 0; i < padded; i += 4)
            for (size_t j = 0; j < 4; j++) counts[j][buckets[i + j]]++;
        for (int b = 0; b < BUCKETS; b++) bucket_count[b] = counts[0][b] + counts[1][b] + counts[2][b] + counts[3][b];
    }

    double mass_from(double least) const {
        f64x8 sums = {};
        for (size_t i = 0; i < padded; i += 8) {
            const i64x8 kept = load8(&logits[i]) >= splat8(least);
            sums += select(kept, load8(&weights[i]), f64x8{});
        }
        return sum8(sums);
    }

    // The first place in the order where `reached(count, mass)` holds, or else the last token that has a mass.
    template <class F>
    Place reach(F reached) {
        int last = BUCKETS - 1, bucket = 0;
        while (bucket_mass[last] == 0) last--;
        double mass = 0;
        int64_t count = 0;
        for (; bucket < last && !reached(count + bucket_count[bucket], mass + bucket_mass[bucket]); bucket++) {
            mass += bucket_mass[bucket];
            count += bucket_count[bucket];
        }
        gather(uint8_t(bucket));
        auto from = candidates.begin(), to = candidates.end();
        const float logit = logits[size_t(*from)];
        const bool ties = std::all_of(from, to, [&](int32_t id) { return logits[size_t(id)] == logit; });
        while (!ties && to - from > FEW) {
            const auto middle = from + (to - from) / 2;
            std::nth_element(from, middle, to, [this](int32_t a, int32_t b) { return precedes(a, b); });
            double half = 0;
            for (auto id = from; id != middle; id++) half += weights[size_t(*id)];
            if (reached(count + (middle - from), mass + half)) {
                to = middle;
            } else {
                mass += half;
                count += middle - from;
                from = middle;
            }
        }
        if (!ties) std::sort(from, to, [this](int32_t a, int32_t b) { return precedes(a, b); });
        Place place{*from, mass + weights[size_t(*from)]};
        for (count++; !reached(count, place.mass) && ++from != to && weights[size_t(*from)] > 0; count++)
            place = {*from, place.mass + weights[size_t(*from)]};
        return place;
    }

    bool precedes(int32_t a, int32_t b) const {
        const float first = logits[size_t(a)], second = logits[size_t(b)];
        return first != second ? first > second : a < b;
    }

    // The tokens of a bucket, in the order of their ids.
    void gather(uint8_t bucket) {
        candidates.resize(padded);
        size_t count = 0;
        for (size_t i = 0; i < padded; i += LANES) {
            u8x16 bytes;
            memcpy(&bytes, &buckets[i], sizeof bytes);
            const u8x16 same = u8x16(bytes == bucket);
            uint64_t halves[2];
            memcpy(halves, &same, sizeof halves);
            if (!(halves[0] | halves[1])) continue;
            for (size_t j = 0; j < LANES; j++) {
                candidates[count] = int32_t(i + j);
                count += buckets[i + j] == bucket;
            }
        }
        candidates.resize(count);
    }
};

}  // namespace

// -1 for a row without a finite logit, or with one that is NaN or +inf.
extern "C" void draw(const float* logits, const float* temperature, const int32_t* top_k, const float* top_p,
                     const float* min_p, const double* points, int64_t* tokens, int64_t rows, int64_t n, int threads) {
    on_threads(int(std::min<int64_t>(threads, std::max<int64_t>(rows, 1))), [&] {
        Sampler sampler(n);
#pragma omp for schedule(dynamic)
        for (int64_t row = 0; row < rows; row++)
            tokens[row] =
                sampler.draw(logits + row * n, {temperature[row], top_k[row], top_p[row], min_p[row], points[row]});
    });
}
