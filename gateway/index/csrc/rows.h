// A pool of bit rows: the slots of blocks that many replicas hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

// Running out of memory ends the process, as it would in Python's own allocator a moment later.
template <class T>
T* reallocate(T* old, std::size_t count) {
    T* made = static_cast<T*>(std::realloc(old, count * sizeof(T)));
    if (!made) std::abort();
    return made;
}

// All rows have as many words as the highest slot in any needs. Free rows form a list through their first word (0: its end).
class Rows {
  public:
    ~Rows() { std::free(data_); }

    const u64* at(u32 row) const { return data_ + std::size_t(row) * words_; }
    u64* at(u32 row) { return data_ + std::size_t(row) * words_; }
    u32 words() const { return words_; }
    std::size_t bytes() const { return std::size_t(capacity_) * words_ * sizeof(u64); }
    bool sparse() const { return capacity_ > 16 && used_ < capacity_ / 4; }

    u32 make(u32 words) {
        if (words > words_) widen(words);
        ++used_;
        u32 row;
        if (free_) {
            row = free_ - 1;
            free_ = static_cast<u32>(*at(row));
        } else {
            if (made_ == capacity_) {
                capacity_ += capacity_ / 2 + 8;
                data_ = reallocate(data_, std::size_t(capacity_) * words_);
            }
            row = made_++;
        }
        std::memset(at(row), 0, words_ * sizeof(u64));
        return row;
    }

    void drop(u32 row) {
        *at(row) = free_;
        free_ = row + 1;
        --used_;
    }

    void widen(u32 words) {
        u64* wider = reallocate<u64>(nullptr, std::size_t(capacity_ ? capacity_ : 1) * words);
        for (u32 row = 0; row < made_; ++row) {
            u64* to = wider + std::size_t(row) * words;
            std::memcpy(to, at(row), words_ * sizeof(u64));
            std::memset(to + words_, 0, (words - words_) * sizeof(u64));
        }
        std::free(data_);
        data_ = wider;
        words_ = words;
    }

    void swap(Rows& other) {
        std::swap(data_, other.data_);
        std::swap(words_, other.words_);
        std::swap(made_, other.made_);
        std::swap(used_, other.used_);
        std::swap(capacity_, other.capacity_);
        std::swap(free_, other.free_);
    }

  private:
    u64* data_ = nullptr;
    u32 words_ = 0, made_ = 0, used_ = 0, capacity_ = 0, free_ = 0;
};
