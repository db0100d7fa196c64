// Loops and tables whose index is a constant, for register tiles of a size that a template says.
#pragma once

#include <array>
#include <utility>

#include "two.h"

#define INLINE_LAMBDA __attribute__((always_inline))

template <class F, int... I>
INLINE void repeat(F f, std::integer_sequence<int, I...>) {
    (f(std::integral_constant<int, I>{}), ...);
}

// Calls f(0), f(1), ... f(N - 1) with constants: `#pragma GCC unroll` comes too late to keep a large tile in registers.
template <int N, class F>
INLINE void repeat(F f) {
    repeat(f, std::make_integer_sequence<int, N>{});
}

template <class F, int... I>
constexpr auto table(F f, std::integer_sequence<int, I...>) {
    return std::array{decltype(f(std::integral_constant<int, 1>{}))(nullptr), f(std::integral_constant<int, I + 1>{})...};
}

// The pointers nullptr, f(1), f(2), ... f(N).
template <int N, class F>
constexpr auto table(F f) {
    return table(f, std::make_integer_sequence<int, N>{});
}
