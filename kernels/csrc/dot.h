// Sums of products of bytes, unsigned by signed, four to a lane: exact, so their bits are the same with any instructions.
//
// AVX-512 VNNI multiplies and adds all four at once. Elsewhere bytes are widened to pairs of 16 bits, those of even and
// those of odd places, since pmaddwd multiplies and adds two of these: 32 products in four instructions on AVX2. (Its
// cousin for bytes, pmaddubsw, saturates.) A vector of weights is widened by two cheap instructions for all rows of a
// tile; what is multiplied with it is broadcast, and lies widened in memory: quads of four bytes in PLANES words.
#pragma once

#include "vec.h"

#if defined(__AVX512VNNI__)

constexpr int PLANES = 1;
typedef i32x16 Bytes;

INLINE Bytes load_u8(const void* from) { return load(static_cast<const int32_t*>(from)); }

INLINE Bytes load_s8(const void* from) { return load_u8(from); }

INLINE i32x16 dot_u8s8(i32x16 sum, Bytes u, Bytes s) {
    return i32x16(_mm512_dpbusd_epi32(__m512i(sum), __m512i(u), __m512i(s)));
}

INLINE Bytes splat_quad(const int32_t* quad, int64_t) { return splat(*quad); }

INLINE void store_quads(int32_t* to, Bytes v, int64_t) { store(to, v); }

#else

constexpr int PLANES = 2;
struct Bytes {
    i32x16 even, odd;  // two of 16 bits in a lane
};

INLINE Bytes load_u8(const void* from) {
    const auto pairs = loaded<Vector<uint16_t, 2 * LANES>>(from);
    return {i32x16(pairs) & splat(int32_t(0x00ff00ff)), i32x16(pairs >> 8)};
}

INLINE Bytes load_s8(const void* from) {
    const auto pairs = loaded<Vector<int16_t, 2 * LANES>>(from);
    return {i32x16((pairs << 8) >> 8), i32x16(pairs >> 8)};
}

// The sum of the two products of each lane's 16 bits, signed.
template <class V>
INLINE V multiply_pairs(V a, V b) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    return V(_mm512_madd_epi16(__m512i(a), __m512i(b)));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return V(_mm256_madd_epi16(__m256i(a), __m256i(b)));
#elif defined(__SSE2__) && !defined(__AVX512F__)
    return V(_mm_madd_epi16(__m128i(a), __m128i(b)));
#else
    return ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

template <class V>
INLINE Two<V> multiply_pairs(const Two<V>& a, const Two<V>& b) {
    return {multiply_pairs(a.low, b.low), multiply_pairs(a.high, b.high)};
}

INLINE i32x16 dot_u8s8(i32x16 sum, Bytes u, Bytes s) {
    return sum + multiply_pairs(u.even, s.even) + multiply_pairs(u.odd, s.odd);
}

// The planes of a quad are `distance` words apart.
INLINE Bytes splat_quad(const int32_t* quad, int64_t distance) { return {splat(*quad), splat(quad[distance])}; }

INLINE void store_quads(int32_t* to, Bytes v, int64_t distance) {
    store(to, v.even);
    store(to + distance, v.odd);
}

#endif
