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

// Sum over teams of TEAM lanes. Every lane gets the same bits, since a + b is b + a.
template <int TEAM, typename S>
__device__ inline S team_sum(S value) {
#pragma unroll
    for (int offset = TEAM / 2; offset > 0; offset /= 2)
        value += __shfl_xor_sync(ALL_LANES, value, offset);
    return value;
}
