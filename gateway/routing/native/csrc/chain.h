// Chained block hashes: as replica/protocol/hashing.py. XXH3_64 (https://github.com/Cyan4973/xxHash, without a seed) of
// 72 or 80 bytes, the only lengths that a block with its parent has.
#pragma once

#include <cstdint>
#include <cstring>

using u32 = std::uint32_t;
using u64 = std::uint64_t;

namespace xxh3 {

constexpr unsigned char kSecret[96] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
};

inline u64 read(const unsigned char* at) {
    u64 value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

inline u64 mix(const unsigned char* data, const unsigned char* secret) {
    unsigned __int128 product =
        (unsigned __int128)(read(data) ^ read(secret)) * (read(data + 8) ^ read(secret + 8));
    return u64(product) ^ u64(product >> 64);
}

// Of 65 to 96 bytes.
inline u64 hash(const unsigned char* data, long length) {
    u64 sum = u64(length) * 0x9E3779B185EBCA87;
    sum += mix(data + 32, kSecret + 64) + mix(data + length - 48, kSecret + 80);
    sum += mix(data + 16, kSecret + 32) + mix(data + length - 32, kSecret + 48);
    sum += mix(data, kSecret) + mix(data + length - 16, kSecret + 16);
    sum = (sum ^ sum >> 37) * 0x165667919E3779F9;
    return sum ^ sum >> 32;
}

}  // namespace xxh3

static_assert(8 + 4 * BLOCK > 64 && 8 + 4 * BLOCK + 8 <= 96, "the lengths that hash() is for");

// Of all whole blocks. `fork`: the block whose tokens have `tag` behind them; -1: none.
inline void chain(const unsigned char* tokens, long count, u64 parent, long fork, u64 tag, u64* hashes) {
    constexpr long kBytes = 4 * BLOCK;
    unsigned char block[8 + kBytes + 8];
    std::memcpy(block + 8 + kBytes, &tag, sizeof tag);
    for (long i = 0; i < count / BLOCK; ++i) {
        std::memcpy(block, &parent, sizeof parent);
        std::memcpy(block + 8, tokens + i * kBytes, kBytes);
        hashes[i] = parent = xxh3::hash(block, 8 + kBytes + (i == fork ? 8 : 0));
    }
}
