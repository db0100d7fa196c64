// Rotary embedding of q and k, and the write of k and v to their slots of the paged cache, in fp32 or int8.
//
// Threads share out heads, not tokens: neighbouring tokens of a page have bytes in the same word.
#include "int8.h"

namespace {

constexpr int64_t PAGE = 16;                // tokens
constexpr int64_t PARALLEL_FROM = 1 << 15;  // elements

struct Rope {
    const float* qkv;
    const float* cos;
    const float* sin;
    const int32_t* positions;
    const int32_t* slots;
    float* q_out;
    int64_t t, hq, hkv, d, num_positions, pages;

    // 0, or 1 if a position, or 2 if a slot, is out of range.
    int check() const {
        for (int64_t i = 0; i < t; i++) {
            if (positions[i] < 0 || positions[i] >= num_positions) return 1;
            if (slots[i] < -1 || slots[i] >= pages * PAGE) return 2;
        }
        return 0;
    }

    // Rotates pairs (i, i + d/2), the "rotate half" convention.
    void rotate(int64_t token, int64_t head, float* __restrict out) const {
        const int64_t half = d / 2;
        const float* __restrict x = qkv + (token * (hq + 2 * hkv) + head) * d;
        const float* __restrict c = cos + positions[token] * half;
        const float* __restrict s = sin + positions[token] * half;
        for (int64_t i = 0; i < half; i++) {
            out[i] = x[i] * c[i] - x[i + half] * s[i];
            out[i + half] = x[i + half] * c[i] + x[i] * s[i];
        }
    }
};

// `write(k, v, tile, offset)` takes a token's rotated k and its v to `offset` of tile page * hkv + head of the cache.
template <class Write>
int rope(const Rope& a, int threads, Write write) {
    if (const int wrong = a.check()) return wrong;
    const int64_t heads = a.hq + a.hkv, width = (heads + a.hkv) * a.d;
#pragma omp parallel for num_threads(threads) if (threads > 1 && a.t * width >= PARALLEL_FROM)
    for (int64_t head = 0; head < heads; head++) {
        for (int64_t i = 0; i < a.t; i++) {
            if (head < a.hq) {
                a.rotate(i, head, a.q_out + (i * a.hq + head) * a.d);
            } else if (a.slots[i] >= 0) {
                alignas(64) float k[MAX_D];
                a.rotate(i, head, k);
                const float* v = a.qkv + i * width + (head + a.hkv) * a.d;
                write(k, v, a.slots[i] / PAGE * a.hkv + head - a.hq, a.slots[i] % PAGE);
            }
        }
    }
    return 0;
}

template <class V>
INLINE void read_bytes(V& v, const int8_t* from) {
    convert(v, loaded<typename Native<int8_t, sizeof(V) / 4>::type>(from));
}

template <class V>
INLINE void read_bytes(Two<V>& v, const int8_t* from) {
    read_bytes(v.low, from);
    read_bytes(v.high, from + sizeof(V) / 4);
}

// The token's bytes among those of its 4: [d][4] at `quad`.
INLINE void store_values(const int8_t* bytes, int8_t* quad, int64_t place, int64_t d) {
    const i32x16 mask = splat(int32_t(0xffu << (8 * place)));
    for (int64_t i = 0; i < d; i += LANES) {
        i32x16 v;
#if defined(__AVX512F__)
        v = i32x16(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + i))));
#else
        read_bytes(v, bytes + i);
#endif
        const i32x16 before = loaded<i32x16>(quad + 4 * i);
        write(quad + 4 * i, (before & ~mask) | ((v << (8 * place)) & mask));
    }
}

}  // namespace

// keys [pages][hkv][d][16], values [pages][hkv][16][d]. 0, or as Rope::check; nothing is written then.
extern "C" int rope_write_kv(const float* qkv, const float* cos, const float* sin, const int32_t* positions,
                             const int32_t* slots, float* keys, float* values, float* q_out, int64_t t, int64_t hq,
                             int64_t hkv, int64_t d, int64_t num_positions, int64_t pages, int threads) {
    const Rope a{qkv, cos, sin, positions, slots, q_out, t, hq, hkv, d, num_positions, pages};
    return rope(a, threads, [&](const float* k, const float* v, int64_t tile, int64_t offset) {
        for (int64_t i = 0; i < d; i++) keys[(tile * d + i) * PAGE + offset] = k[i];
        memcpy(values + (tile * PAGE + offset) * d, v, size_t(d) * sizeof(float));
    });
}

// keys [pages][hkv][d / 4][16][4] as k + 128, values [pages][hkv][4][d][4], scales [pages][hkv][2][16]. Likewise.
extern "C" int rope_write_kv_int8(const float* qkv, const float* cos, const float* sin, const int32_t* positions,
                                  const int32_t* slots, uint8_t* keys, int8_t* values, float* scales, float* q_out,
                                  int64_t t, int64_t hq, int64_t hkv, int64_t d, int64_t num_positions, int64_t pages,
                                  int threads) {
    const Rope a{qkv, cos, sin, positions, slots, q_out, t, hq, hkv, d, num_positions, pages};
    return rope(a, threads, [&](const float* k, const float* v, int64_t tile, int64_t offset) {
        alignas(64) int8_t bytes[MAX_D];
        int32_t sum;
        scales[tile * 2 * PAGE + offset] = quantise(k, d, bytes, &sum);
        for (int64_t i = 0; i < d; i += 4) {
            uint32_t word;
            memcpy(&word, bytes + i, sizeof word);
            word ^= 0x80808080u;
            memcpy(keys + (tile * d + i) * PAGE + offset * 4, &word, sizeof word);
        }
        scales[(tile * 2 + 1) * PAGE + offset] = quantise(v, d, bytes, &sum);
        store_values(bytes, values + (tile * PAGE + offset / 4 * 4) * d, offset % 4, d);
    });
}
