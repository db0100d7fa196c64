// Rotary embedding of q and k, and the write of k and v to their slots of the paged cache.
#include "vec.h"

namespace {

constexpr int64_t PAGE = 16;             // tokens
constexpr int64_t PARALLEL_FROM = 1 << 15;  // elements

// Rotates pairs (i, i + d/2), the "rotate half" convention; `stride` is the distance of the outputs.
INLINE void rotate(const float* x, const float* cos, const float* sin, float* out, int64_t stride, int64_t d) {
    const int64_t half = d / 2;
    for (int64_t i = 0; i < half; i++) {
        out[i * stride] = x[i] * cos[i] - x[i + half] * sin[i];
        out[(i + half) * stride] = x[i + half] * cos[i] + x[i] * sin[i];
    }
}

}  // namespace

// 0, or 1 if a position, or 2 if a slot, is out of range; nothing is written then.
extern "C" int rope_write_kv(const float* qkv, const float* cos, const float* sin, const int32_t* positions,
                             const int32_t* slots, float* k_cache, float* v_cache, float* q_out, int64_t t, int64_t hq,
                             int64_t hkv, int64_t d, int64_t num_positions, int64_t pages, int threads) {
    for (int64_t i = 0; i < t; i++) {
        if (positions[i] < 0 || positions[i] >= num_positions) return 1;
        if (slots[i] < -1 || slots[i] >= pages * PAGE) return 2;
    }
    const int64_t width = (hq + 2 * hkv) * d, half = d / 2;
#pragma omp parallel for num_threads(threads) if (threads > 1 && t * width >= PARALLEL_FROM)
    for (int64_t i = 0; i < t; i++) {
        const float *q = qkv + i * width, *k = q + hq * d, *v = k + hkv * d;
        const float *c = cos + positions[i] * half, *s = sin + positions[i] * half;
        for (int64_t h = 0; h < hq; h++) rotate(q + h * d, c, s, q_out + (i * hq + h) * d, 1, d);
        if (slots[i] < 0) continue;
        const int64_t page = slots[i] / PAGE, offset = slots[i] % PAGE;
        for (int64_t h = 0; h < hkv; h++) {
            const int64_t tile = (page * hkv + h) * d * PAGE;
            rotate(k + h * d, c, s, k_cache + tile + offset, PAGE, d);
            memcpy(v_cache + tile + offset * d, v + h * d, size_t(d) * sizeof(float));
        }
    }
    return 0;
}
