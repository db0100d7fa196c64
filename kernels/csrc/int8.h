// What the int8 KV cache's writer and reader share: products of bytes, rounding, quantisation.
#pragma once

#include "vec.h"

constexpr int64_t MAX_D = 512;  // of a head; MAX_HEAD_DIM of base.py
constexpr float TINY = 1e-30f;  // where the largest magnitude is no larger, all is quantised to zeros

INLINE void store(int32_t* to, i32x16 v) { memcpy(to, &v, sizeof v); }

INLINE i32x16 load(const int32_t* from) {
    i32x16 v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE i32x16 load_bytes(const void* from) { return load(static_cast<const int32_t*>(from)); }

INLINE f32x16 to_float(i32x16 v) { return __builtin_convertvector(v, f32x16); }

// sum + the four products of each lane's bytes, unsigned times signed.
INLINE i32x16 dot_u8s8(i32x16 sum, i32x16 u, i32x16 s) {
#if defined(__AVX512VNNI__)
    return i32x16(_mm512_dpbusd_epi32(__m512i(sum), __m512i(u), __m512i(s)));
#else
    for (int i = 0; i < 4; i++) sum += ((u >> (8 * i)) & 0xff) * ((s << (24 - 8 * i)) >> 24);
    return sum;
#endif
}

// To nearest, ties to even.
INLINE i32x16 round_to_int(f32x16 x) {
#if defined(__AVX512F__)
    return i32x16(_mm512_cvtps_epi32(__m512(x)));
#else
    return i32x16(x + splat(12582912.0f)) - splat(int32_t(0x4b400000));  // see exp2 of vec.h
#endif
}

// The low byte of each lane.
INLINE void store_bytes(void* to, i32x16 v) {
#if defined(__AVX512F__)
    _mm_storeu_si128(static_cast<__m128i*>(to), _mm512_cvtepi32_epi8(__m512i(v)));
#else
    uint8_t bytes[LANES];
    for (int i = 0; i < LANES; i++) bytes[i] = uint8_t(v[i]);
    memcpy(to, bytes, sizeof bytes);
#endif
}

// Those of four vectors, each 0..255.
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

INLINE bool any_greater(f32x16 a, f32x16 b) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask(__m512(a), __m512(b), _CMP_GT_OQ) != 0;
#else
    bool any = false;
    for (int i = 0; i < LANES; i++) any |= a[i] > b[i];
    return any;
#endif
}

// 2^x for x <= 0, but at least 2^-125. Coarser than exp2 of vec.h, since bytes are all that becomes of it, and without
// fma, whose bits a machine that lacks it can't give.
INLINE f32x16 exp2_unfused(f32x16 x) {
    const f32x16 low = splat(-125.0f);
    x = x < low ? low : x;
#if defined(__AVX512F__)
    const f32x16 f = x - f32x16(_mm512_roundscale_ps(__m512(x), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
    return f32x16(_mm512_scalef_ps(__m512(cubic(f)), __m512(x)));
#else
    const f32x16 magic = splat(12582912.0f);
    const f32x16 nearest = (x + magic) - magic, whole = nearest > x ? nearest - splat(1.0f) : nearest;
    return f32x16(i32x16(cubic(x - whole)) + (i32x16(whole + magic) << 23));
#endif
}

// x[d] to bytes of -127..127 and their sum; returns the scale, absmax / 127. A NaN anywhere makes the scale NaN.
INLINE float quantise(const float* x, int64_t d, int8_t* bytes, int32_t* sum) {
    i32x16 top = {};
    for (int64_t i = 0; i < d; i += LANES) {
        const i32x16 bits = absolute_bits(load(x + i));  // those of non-negative floats order as integers do, NaN last
        top = bits > top ? bits : top;
    }
    int32_t best = 0;
    for (int i = 0; i < LANES; i++) best = top[i] > best ? top[i] : best;
    float most;
    memcpy(&most, &best, sizeof most);
    const f32x16 inverse = splat(most > TINY ? 127.0f / most : 0.0f);
    i32x16 total = {};
    for (int64_t i = 0; i < d; i += LANES) {
        const i32x16 rounded = round_to_int(load(x + i) * inverse);
        total += rounded;
        store_bytes(bytes + i, rounded);
    }
    *sum = 0;
    for (int i = 0; i < LANES; i++) *sum += total[i];
    return most / 127.0f;
}
