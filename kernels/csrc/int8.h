// What the int8 KV cache's writer and reader share: rounding, quantisation, a coarse exponential.
#pragma once

#include "dot.h"

constexpr int64_t MAX_D = 512;  // of a head; MAX_HEAD_DIM of base.py
constexpr float TINY = 1e-30f;  // where the largest magnitude is no larger, all is quantised to zeros

// To nearest, ties to even.
INLINE i32x16 round_to_int(f32x16 x) {
#if defined(__AVX512F__)
    return i32x16(_mm512_cvtps_epi32(__m512(x)));
#else
    return i32x16(x + splat(12582912.0f)) - splat(int32_t(0x4b400000));  // see exp2 of vec.h
#endif
}

// The low bytes of four vectors, each 0..255.
INLINE void store_bytes(uint8_t* to, const f32x16* v) {
#if defined(__AVX512BW__)
    const __m512i low = _mm512_packs_epi32(__m512i(v[0]), __m512i(v[1]));
    const __m512i high = _mm512_packs_epi32(__m512i(v[2]), __m512i(v[3]));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high)));
#else
    for (int i = 0; i < 4; i++) store_bytes(to + i * LANES, i32x16(v[i]));
#endif
}

INLINE i32x16 absolute_bits(f32x16 x) { return i32x16(x) & splat(int32_t(0x7fffffff)); }

// 2^f for f in [0, 1], to a relative 7.5e-5.
INLINE f32x16 cubic(f32x16 f) {
    f32x16 p = splat(0.07802397757768631f);
    p = p * f + splat(0.22606702148914337f);
    p = p * f + splat(0.6958341002464294f);
    return p * f + splat(0.9999251365661621f);
}

template <class V>
INLINE bool any(V mask) {
    int64_t parts[sizeof mask / sizeof(int64_t)], all = 0;
    memcpy(parts, &mask, sizeof parts);
    for (int64_t part : parts) all |= part;
    return all != 0;
}

template <class V>
INLINE bool any(const Two<V>& mask) {
    return any(mask.low | mask.high);
}

INLINE bool any_greater(f32x16 a, f32x16 b) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask(__m512(a), __m512(b), _CMP_GT_OQ) != 0;
#else
    return any(a > b);
#endif
}

// Of |x| < 2^22.
template <class V>
INLINE V floor_small(V x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    return V(_mm256_floor_ps(__m256(x)));
#else
    const V magic = V{} + 12582912.0f, nearest = (x + magic) - magic;
    return nearest > x ? nearest - 1.0f : nearest;
#endif
}

template <class V>
INLINE Two<V> floor_small(const Two<V>& x) {
    return {floor_small(x.low), floor_small(x.high)};
}

// 2^x for x <= 0, but at least 2^-125. Coarser than exp2 of vec.h, since bytes are all that becomes of it, and without
// fma, whose bits a machine that lacks it can't give.
INLINE f32x16 exp2_unfused(f32x16 x) {
    const f32x16 low = splat(-125.0f);
    x = select(x < low, low, x);
#if defined(__AVX512F__)
    const f32x16 f = x - f32x16(_mm512_roundscale_ps(__m512(x), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
    return f32x16(_mm512_scalef_ps(__m512(cubic(f)), __m512(x)));
#else
    const f32x16 whole = floor_small(x);
    return f32x16(i32x16(cubic(x - whole)) + (i32x16(whole + splat(12582912.0f)) << 23));
#endif
}

// x[d] to bytes of -127..127 and their sum; returns the scale, absmax / 127. A NaN anywhere makes the scale NaN.
INLINE float quantise(const float* x, int64_t d, int8_t* bytes, int32_t* sum) {
    i32x16 top = {};
    for (int64_t i = 0; i < d; i += LANES) {
        const i32x16 bits = absolute_bits(load(x + i));  // those of non-negative floats order as integers do, NaN last
        top = max(bits, top);
    }
    const int32_t best = reduce_max(top);
    float most;
    memcpy(&most, &best, sizeof most);
    const f32x16 inverse = splat(most > TINY ? 127.0f / most : 0.0f);
    i32x16 total = {};
    for (int64_t i = 0; i < d; i += LANES) {
        const i32x16 rounded = round_to_int(load(x + i) * inverse);
        total += rounded;
        store_bytes(bytes + i, rounded);
    }
    *sum = reduce_add(total);
    return most / 127.0f;
}
