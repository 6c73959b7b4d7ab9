// Types of two bytes without CUDA's headers, which NVRTC does not always find; vectors; shuffles.
//
// T is the type of the rows in memory, A that of the arithmetic (float or double), O that of the
// results, I that of a CSR block's indices.
#pragma once

#define ALL_LANES 0xffffffffu

struct Half {
    unsigned short bits;
};

struct Bfloat16 {
    unsigned short bits;
};

using A = ARITHMETIC;
#ifdef STORED
using T = STORED;
#endif
#ifdef RESULT
using O = RESULT;
#endif
#ifdef INDEX
using I = INDEX;
#endif

__device__ inline float number(float x) { return x; }
__device__ inline double number(double x) { return x; }

__device__ inline float number(Half x) {
#ifdef __CUDA_ARCH__
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
    return value;
#else
    return half_to_float(x.bits);
#endif
}

__device__ inline float number(Bfloat16 x) {
    return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}

// N values that one instruction loads, or several of 16 bytes.
template <typename S, int N>
struct alignas(sizeof(S) * N < 16 ? sizeof(S) * N : 16) Vector {
    S at[N];
};

// N entries of two bytes, two in a word: loaded as short numbers, each would be packed again.
template <typename S, int N>
struct alignas(2 * N < 16 ? 2 * N : 16) Pairs {
    unsigned words[N / 2];
};

__device__ inline float half_of_word(const Half *, unsigned word, bool upper) {
#ifdef __CUDA_ARCH__
    float value;
    if (upper)
        asm("{.reg .b16 l, u; mov.b32 {l, u}, %1; cvt.f32.f16 %0, u;}" : "=f"(value) : "r"(word));
    else
        asm("{.reg .b16 l, u; mov.b32 {l, u}, %1; cvt.f32.f16 %0, l;}" : "=f"(value) : "r"(word));
    return value;
#else
    return half_to_float(static_cast<unsigned short>(upper ? word >> 16 : word & 0xffff));
#endif
}

__device__ inline float half_of_word(const Bfloat16 *, unsigned word, bool upper) {
    // A bfloat16 is the upper half of a float32.
    return __uint_as_float(upper ? word & 0xffff0000u : word << 16);
}

// Entry v of loaded ones, as a number.
template <typename S, int N>
__device__ inline auto entry(const Vector<S, N> &x, int v) {
    return number(x.at[v]);
}

template <typename S, int N>
__device__ inline float entry(const Pairs<S, N> &x, int v) {
    return half_of_word(static_cast<const S *>(nullptr), x.words[v / 2], v % 2);
}

template <bool PAIRS, typename S, int N>
struct LoadedAs {
    using Type = Vector<S, N>;
};

template <typename S, int N>
struct LoadedAs<true, S, N> {
    using Type = Pairs<S, N>;
};

// What one load of N entries of X gives.
template <typename S, int N>
using Loaded = typename LoadedAs<sizeof(S) == 2 && N % 2 == 0, S, N>::Type;

// Sum over teams of TEAM lanes. Every lane gets the same bits, since a + b is b + a.
template <int TEAM, typename S>
__device__ inline S team_sum(S value) {
    // A butterfly: after log2(TEAM) exchanges every lane has the whole sum.
#pragma unroll
    for (int offset = TEAM / 2; offset > 0; offset /= 2)
        value += __shfl_xor_sync(ALL_LANES, value, offset);
    return value;
}
