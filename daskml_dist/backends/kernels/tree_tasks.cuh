// What trees ask for: rows of some leaves, which are neighbours in an index.
#pragma once

#define THREADS 256
#define WARPS (THREADS / 32)
// Neighbours of an index that a block parts together.
#define TILE 1024
#define ALL_LANES 0xffffffffu

// How gradients and hessians are packed: hessians are 1; all digits; few digits.
#define CONSTANT 0
#define EXACT 1
#define ROUNDED 2

// Leaf that is parted: by which feature, its rows `start` to `stop` of the index, which side's
// histograms are asked for (0 left, 1 right, 2 all rows) and where they go; the first of its tiles,
// and of its units of `tree_histograms`.
struct Task {
    long long feature, start, stop, side, slot, first_tile, first_unit;
};

// Place of the last task that begins at or before a tile (or unit).
template <long long Task::*FIRST>
__device__ inline long long place_of(const Task *tasks, long long n_tasks, long long number) {
    // Tasks are few: a search from the last one on.
    long long at = n_tasks - 1;
    while (at > 0 && tasks[at].*FIRST > number) --at;
    return at;
}

__device__ inline unsigned lanes_below() { return (1u << threadIdx.x % 32) - 1; }

// Conversions that keep numbers below 1e-38, whatever the compiler is told of these.
__device__ inline float to_float(double x) {
#ifdef __CUDA_ARCH__
    float value;
    asm("cvt.rn.f32.f64 %0, %1;" : "=f"(value) : "d"(x));
    return value;
#else
    return static_cast<float>(x);
#endif
}

__device__ inline double to_double(float x) {
#ifdef __CUDA_ARCH__
    double value;
    asm("cvt.f64.f32 %0, %1;" : "=d"(value) : "f"(x));
    return value;
#else
    return x;
#endif
}

__device__ inline double to_double(double x) { return x; }
