// Sixteen lanes of float or int32, on GCC's vector extensions, with intrinsics only where the compiler needs the hint.
//
// Build with -ffp-contract=off: a multiply-add is fused where `fma` says so and nowhere else, so that the bits of a
// result don't depend on how the compiler happened to schedule one instantiation of a template.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));

constexpr int LANES = 16;

// A parallel region; for one thread without OpenMP's 1.5 us.
template <class F>
INLINE void on_threads(int threads, F body) {
    if (threads == 1) return body();
#pragma omp parallel num_threads(threads)
    body();
}

INLINE f32x16 load(const float* from) {
    f32x16 v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE void store(float* to, f32x16 v) { memcpy(to, &v, sizeof v); }

INLINE f32x16 load_part(const float* from, int64_t count) {
    f32x16 v = {};
    memcpy(&v, from, size_t(count) * sizeof(float));
    return v;
}

INLINE void store_part(float* to, f32x16 v, int64_t count) { memcpy(to, &v, size_t(count) * sizeof(float)); }

INLINE f32x16 splat(float x) { return f32x16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

INLINE i32x16 splat(int32_t x) { return i32x16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__AVX512F__)
    return f32x16(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
#elif defined(__FP_FAST_FMAF)
    f32x16 out;
    for (int i = 0; i < LANES; i++) out[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return out;
#else
    return a * b + c;  // without the instruction fmaf is a library call, 50 times as slow
#endif
}

INLINE f32x16 max(f32x16 a, f32x16 b) { return a > b ? a : b; }

INLINE float reduce_max(f32x16 v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps(__m512(v));
#else
    float out = v[0];
    for (int i = 1; i < LANES; i++) out = out > v[i] ? out : v[i];
    return out;
#endif
}

INLINE int32_t reduce_max(i32x16 v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_epi32(__m512i(v));
#else
    int32_t out = v[0];
    for (int i = 1; i < LANES; i++) out = out > v[i] ? out : v[i];
    return out;
#endif
}

INLINE int32_t reduce_add(i32x16 v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_epi32(__m512i(v));
#else
    int32_t out = 0;
    for (int i = 0; i < LANES; i++) out += v[i];
    return out;
#endif
}

INLINE float reduce_add(f32x16 v) {
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) v[i] += v[i + width];
    return v[0];
}

// 2^x for x <= 127; 0 below -126.5; NaN stays NaN. Relative error 2.4e-7 (degree 5, fitted to |f| <= 1/2 for the least
// largest relative error).
INLINE f32x16 exp2(f32x16 x) {
    const f32x16 low = splat(-127.0f);
    x = x < low ? low : x;  // this way round, since a comparison with NaN is false
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
