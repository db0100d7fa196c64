// Sixteen lanes of float or int32, on GCC's vector extensions (see two.h), with intrinsics only where the compiler needs
// the hint.
//
// Build with -ffp-contract=off: a multiply-add is fused where `fma` says so and nowhere else, so that the bits of a
// result don't depend on how the compiler happened to schedule one instantiation of a template.
#pragma once

#include "two.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

constexpr int LANES = 16;

typedef Vector<float, LANES> f32x16;
typedef Vector<int32_t, LANES> i32x16;

// A parallel region; for one thread without OpenMP's 1.5 us.
template <class F>
INLINE void on_threads(int threads, F body) {
    if (threads == 1) return body();
#pragma omp parallel num_threads(threads)
    body();
}

INLINE f32x16 load(const float* from) { return loaded<f32x16>(from); }

INLINE void store(float* to, f32x16 v) { write(to, v); }

INLINE f32x16 load_part(const float* from, int64_t count) {
    float padded[LANES] = {};
    memcpy(padded, from, size_t(count) * sizeof(float));
    return load(padded);
}

INLINE void store_part(float* to, f32x16 v, int64_t count) { memcpy(to, &v, size_t(count) * sizeof(float)); }

INLINE f32x16 splat(float x) { return filled<f32x16>(x); }

INLINE i32x16 splat(int32_t x) { return filled<i32x16>(x); }

INLINE i32x16 load(const int32_t* from) { return loaded<i32x16>(from); }

INLINE void store(int32_t* to, i32x16 v) { write(to, v); }

INLINE f32x16 to_float(i32x16 v) {
    f32x16 out;
    convert(out, v);
    return out;
}

template <class V>
INLINE void write_bytes(void* to, const V& v) {
    write(to, __builtin_convertvector(v, typename Native<uint8_t, sizeof(V) / 4>::type));
}

template <class V>
INLINE void write_bytes(void* to, const Two<V>& v) {
    write_bytes(to, v.low);
    write_bytes(static_cast<char*>(to) + sizeof(V) / 4, v.high);
}

// The low byte of each lane.
INLINE void store_bytes(void* to, i32x16 v) {
#if defined(__AVX512F__)
    _mm_storeu_si128(static_cast<__m128i*>(to), _mm512_cvtepi32_epi8(__m512i(v)));
#else
    write_bytes(to, v);
#endif
}

// 0, 1, ... 15.
INLINE i32x16 lane_numbers() {
    constexpr int32_t NUMBERS[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return load(NUMBERS);
}

template <class V>
INLINE V fma(V a, V b, V c) {
#if defined(__AVX512F__)
    return V(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
#elif defined(__AVX2__) && defined(__FMA__)
    return V(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
#elif defined(__FP_FAST_FMAF)
    V out;
    for (size_t i = 0; i < sizeof(V) / sizeof(float); i++) out[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return out;
#else
    return a * b + c;  // without the instruction fmaf is a library call, 50 times as slow
#endif
}

template <class V>
INLINE Two<V> fma(const Two<V>& a, const Two<V>& b, const Two<V>& c) {
    return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)};
}

#if defined(__AVX512F__)
INLINE float reduce_max(f32x16 v) { return _mm512_reduce_max_ps(__m512(v)); }

INLINE int32_t reduce_max(i32x16 v) { return _mm512_reduce_max_epi32(__m512i(v)); }

INLINE int32_t reduce_add(i32x16 v) { return _mm512_reduce_add_epi32(__m512i(v)); }
#endif

// 2^x for x <= 127; 0 below -126.5; NaN stays NaN. Relative error 2.4e-7 (degree 5, fitted to |f| <= 1/2 for the least
// largest relative error).
INLINE f32x16 exp2(f32x16 x) {
    const f32x16 low = splat(-127.0f);
    x = select(x < low, low, x);  // this way round, since a comparison with NaN is false
    // Adding 1.5 * 2^23 rounds to an integer and leaves that integer in the low bits of the sum.
    const f32x16 magic = splat(12582912.0f);
    const f32x16 shifted = x + magic;
    const f32x16 f = x - (shifted - magic);
    f32x16 p = splat(0.0013276472454890609f);
    p = fma(p, f, splat(0.009675541892647743f));
    p = fma(p, f, splat(0.05550713092088699f));
    p = fma(p, f, splat(0.24022120237350464f));
    p = fma(p, f, splat(0.6931469440460205f));
    p = fma(p, f, splat(1.0000001192092896f));
    const i32x16 power = (i32x16(shifted) << 23) + splat(int32_t(0x3f800000));
    return p * f32x16(power);
}
