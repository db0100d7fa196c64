// A vector that may be wider than the machine's registers: then it is two halves, each a vector of half as many lanes.
//
// GCC has vectors of any width, but one wider than a register lives on the stack, and every operation on it goes through
// memory: with 64-byte vectors on AVX2, int8 products took 5 times as long. Structs of what fits are taken apart into
// registers. `a ? b : c` can't be overloaded, so it is `select(a, b, c)`.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
constexpr int REGISTER = 64;
#elif defined(__AVX2__)
constexpr int REGISTER = 32;
#else
constexpr int REGISTER = 16;
#endif

template <class V>
struct Two {
    V low, high;

    // The same bits as other lanes, like the cast of one vector to another.
    template <class W>
    explicit operator Two<W>() const {
        return {W(low), W(high)};
    }

    auto operator[](int lane) const {
        constexpr int HALF = sizeof(V) / sizeof(low[0]);
        return lane < HALF ? low[lane] : high[lane - HALF];
    }
};

template <class T, int COUNT>
struct Native {
    typedef T type __attribute__((vector_size(COUNT * sizeof(T))));
};

template <class T, int COUNT>
struct Halved;

template <class T, int COUNT>
using Vector =
    typename std::conditional_t<(COUNT * sizeof(T) <= REGISTER), Native<T, COUNT>, Halved<T, COUNT>>::type;

template <class T, int COUNT>
struct Halved {
    typedef Two<Vector<T, COUNT / 2>> type;
};

template <class V>
INLINE Two<V> two(V low, V high) {
    return {low, high};
}

#define LANEWISE(op)                                           \
    template <class V>                                         \
    INLINE auto operator op(const Two<V>& a, const Two<V>& b) { \
        return two(a.low op b.low, a.high op b.high);          \
    }
LANEWISE(+)
LANEWISE(-)
LANEWISE(*)
LANEWISE(/)
LANEWISE(&)
LANEWISE(|)
LANEWISE(<)
LANEWISE(>)
LANEWISE(>=)
#undef LANEWISE

template <class V>
INLINE Two<V> operator~(const Two<V>& a) {
    return {~a.low, ~a.high};
}

template <class V>
INLINE Two<V> operator<<(const Two<V>& a, int by) {
    return {a.low << by, a.high << by};
}

template <class V>
INLINE Two<V> operator>>(const Two<V>& a, int by) {
    return {a.low >> by, a.high >> by};
}

template <class V>
INLINE Two<V>& operator+=(Two<V>& a, const Two<V>& b) {
    return a = a + b;
}

template <class V>
INLINE Two<V>& operator&=(Two<V>& a, const Two<V>& b) {
    return a = a & b;
}

// What is no operator: first on a register, then on two halves.

template <class M, class V>
INLINE V select(M mask, V yes, V no) {
    return mask ? yes : no;
}

template <class M, class V>
INLINE Two<V> select(const Two<M>& mask, const Two<V>& yes, const Two<V>& no) {
    return {select(mask.low, yes.low, no.low), select(mask.high, yes.high, no.high)};
}

template <class V>
INLINE void read(V& v, const void* from) {
    memcpy(&v, from, sizeof v);
}

template <class V>
INLINE void read(Two<V>& v, const void* from) {
    read(v.low, from);
    read(v.high, static_cast<const char*>(from) + sizeof(V));
}

template <class V>
INLINE void write(void* to, const V& v) {
    memcpy(to, &v, sizeof v);
}

template <class V>
INLINE void write(void* to, const Two<V>& v) {
    write(to, v.low);
    write(static_cast<char*>(to) + sizeof(V), v.high);
}

template <class V, class T>
INLINE void fill(V& v, T x) {
    v = x - V{};  // which unlike x + 0 is x even for -0, and costs nothing
}

template <class V, class T>
INLINE void fill(Two<V>& v, T x) {
    fill(v.low, x);
    v.high = v.low;
}

template <class V>
INLINE V loaded(const void* from) {
    V v;
    read(v, from);
    return v;
}

template <class V, class T>
INLINE V filled(T x) {
    V v;
    fill(v, x);
    return v;
}

// Each lane converted.
template <class To, class V>
INLINE void convert(To& to, const V& v) {
    to = __builtin_convertvector(v, To);
}

template <class To, class V>
INLINE void convert(Two<To>& to, const Two<V>& v) {
    convert(to.low, v.low);
    convert(to.high, v.high);
}

// v[0] + v[n / 2], v[1] + v[n / 2 + 1], ... and so on with what that gives.
template <class V>
INLINE auto reduce_add(V v) {
    for (int width = sizeof(V) / sizeof(v[0]) / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) v[i] += v[i + width];
    return v[0];
}

template <class V>
INLINE auto reduce_add(const Two<V>& v) {
    return reduce_add(v.low + v.high);
}

template <class V>
INLINE V max(V a, V b) {
    return select(a > b, a, b);
}

template <class V>
INLINE auto reduce_max(V v) {
    auto out = v[0];
    for (size_t i = 1; i < sizeof(V) / sizeof(v[0]); i++) out = out > v[i] ? out : v[i];
    return out;
}

template <class V>
INLINE auto reduce_max(const Two<V>& v) {
    return reduce_max(max(v.low, v.high));
}
