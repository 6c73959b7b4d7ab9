// Values put into bins, and the smallest and largest value in each bin: those of the CPU's loops.
//
// Defined at compile time:
//   STORED      T, the type of X (float or double)
//
// A thread takes 8 features of a row: 32 bytes that follow each other (64 in float64), of which it
// makes one word, so that X is read once and in whole sectors. The edges of 32 features (16) are in
// shared memory, each feature's in the order of a binary tree, level by level (Eytzinger's layout).
// A search goes down 8 levels without a branch, and 8 of them run side by side. Threads at one level
// read neighbouring numbers, where those of a sorted array would share a few banks of the memory.
#include "tree_tasks.cuh"

using T = STORED;

// Features of a word; edges of a feature, padded with infinity; bins.
#define FEATURES 8
#define LEVELS 8
#define EDGES ((1 << LEVELS) - 1)
#define BINS 256

// Values that one load of 16 bytes brings.
struct alignas(16) Several {
    T at[16 / sizeof(T)];
};

// 1 if an edge is below a value, else 0. Edges for float32 rows are rounded down to float32, which
// changes no comparison with a float32 number.
__device__ inline unsigned is_below(float edge, float value) {
#ifdef __CUDA_ARCH__
    // Numbers below 1e-38 count, whatever the compiler is told of these.
    unsigned found;
    asm("{.reg .pred p; setp.lt.f32 p, %1, %2; selp.u32 %0, 1, 0, p;}"
        : "=r"(found)
        : "f"(edge), "f"(value));
    return found;
#else
    return edge < value;
#endif
}

__device__ inline unsigned is_below(double edge, double value) { return edge < value; }

// Values of the features of a word, of which there are `count`; 0 behind the last.
__device__ inline void load_values(const T *__restrict__ x, int count, bool aligned, T *values) {
    constexpr int SEVERAL = 16 / sizeof(T);
    if (aligned) {
#pragma unroll
        for (int k = 0; k < FEATURES; k += SEVERAL) {
            Several loaded = {};
            if (k < count) loaded = *reinterpret_cast<const Several *>(x + k);
#pragma unroll
            for (int i = 0; i < SEVERAL; ++i) values[k + i] = loaded.at[i];
        }
    } else {
#pragma unroll
        for (int k = 0; k < FEATURES; ++k) values[k] = k < count ? x[k] : T(0);
    }
}

// X (n, d)
// edges (d, 255)            of each feature in the order of the tree, in the type of X
// categories (d, 256)       sorted; null where no feature is categorical
// n_categories (d,)         -1: not categorical; as above
// rows (n, words)           set: 8 bins a word, zeros behind the last
// seen (d,)                 becomes 1 where a value is missing
// n, d, words, missing
// own_words, chunk, n_units a unit: `own_words` words at most, and `chunk` rows
// aligned                   whether 16 bytes of X can be loaded at once
extern "C" __global__ void __launch_bounds__(THREADS) tree_bins(
    const T *__restrict__ X, const T *__restrict__ edges, const double *__restrict__ categories,
    const int *__restrict__ n_categories, unsigned long long *__restrict__ rows,
    unsigned char *__restrict__ seen, long long n, long long d, long long words, long long missing,
    long long own_words, long long chunk, long long n_units, long long aligned) {
    extern __shared__ __align__(16) unsigned char shared[];
    T *own_edges = reinterpret_cast<T *>(shared);
    const long long n_groups = (words + own_words - 1) / own_words;
    // Words of a row lie on neighbouring threads, and so do rows.
    const int n_own = static_cast<int>(own_words), n_rows = THREADS / n_own;
    const int own_row = threadIdx.x / n_own, own_word = threadIdx.x % n_own;
    const T *of_word = own_edges + own_word * FEATURES * EDGES;
    for (long long unit = blockIdx.x; unit < n_units; unit += gridDim.x) {
        const long long first = unit % n_groups * own_words * FEATURES;
        const long long last = d < first + own_words * FEATURES ? d : first + own_words * FEATURES;
        __syncthreads();  // the last unit's edges are read
        for (int e = threadIdx.x; e < (last - first) * EDGES; e += THREADS)
            own_edges[e] = edges[first * EDGES + e];
        __syncthreads();
        const long long j = first + own_word * FEATURES;
        if (j >= d || own_row >= n_rows) continue;  // waits at the next unit's barrier
        const int count = d - j < FEATURES ? static_cast<int>(d - j) : FEATURES;
        const long long start = unit / n_groups * chunk;
        const long long stop = n < start + chunk ? n : start + chunk;
        unsigned are_missing = 0;
        for (long long row = start + own_row; row < stop; row += n_rows) {
            T values[FEATURES];
            load_values(X + row * d + j, count, aligned, values);
            unsigned places[FEATURES];
#pragma unroll
            for (int k = 0; k < FEATURES; ++k) places[k] = 1;
#pragma unroll
            for (int level = 0; level < LEVELS; ++level)
#pragma unroll
                for (int k = 0; k < FEATURES; ++k)
                    places[k] = 2 * places[k] +
                                is_below(of_word[k * EDGES + places[k] - 1], values[k]);
            unsigned long long word = 0;
#pragma unroll
            for (int k = 0; k < FEATURES; ++k) {
                if (k >= count) break;
                // Leaves are counted from the left: as many edges are below.
                unsigned bin = places[k] - BINS;
                if (values[k] != values[k])
                    bin = static_cast<unsigned>(missing);
                else if (n_categories && n_categories[j + k] >= 0 &&
                         (bin >= static_cast<unsigned>(n_categories[j + k]) ||
                          categories[(j + k) * BINS + bin] != to_double(values[k])))
                    bin = static_cast<unsigned>(missing);  // an unknown category
                are_missing |= static_cast<unsigned>(bin == missing) << k;
                word |= static_cast<unsigned long long>(bin) << 8 * k;
            }
            rows[row * words + j / FEATURES] = word;
        }
        for (int k = 0; k < count; ++k)
            if (are_missing >> k & 1) seen[j + k] = 1;
    }
}

// Integers of the same order as numbers, for atomic maxima.
__device__ inline long long ordered(double x) {
    const long long bits = __double_as_longlong(x);
    return bits < 0 ? bits ^ 0x7fffffffffffffffll : bits;
}

__device__ inline void raise(long long *at, long long value) {
    // A look before the atomic operation: most values are within what was found early.
    if (value > *static_cast<volatile long long *>(at)) atomicMax(at, value);
}

// X (n, d)
// rows (n, words)           bins of X
// counts (n,)               whether a row counts; null: all do
// reach (2, d, 256)         raised: of each bin minus the smallest, and the largest value, `ordered`
// n, d, words, chunk, n_units, aligned
//                           as above; a unit has one word
extern "C" __global__ void __launch_bounds__(THREADS) tree_reach(
    const T *__restrict__ X, const unsigned long long *__restrict__ rows,
    const unsigned char *__restrict__ counts, long long *__restrict__ reach, long long n,
    long long d, long long words, long long chunk, long long n_units, long long aligned) {
    extern __shared__ __align__(16) unsigned char shared[];
    long long *own = reinterpret_cast<long long *>(shared);
    const long long none = ordered(-__longlong_as_double(0x7ff0000000000000ll));
    for (long long unit = blockIdx.x; unit < n_units; unit += gridDim.x) {
        const long long j = unit % words * FEATURES;
        const int count = d - j < FEATURES ? static_cast<int>(d - j) : FEATURES;
        __syncthreads();  // the last unit's bins are read
        for (int e = threadIdx.x; e < 2 * FEATURES * BINS; e += THREADS) own[e] = none;
        __syncthreads();
        const long long start = unit / words * chunk;
        const long long stop = n < start + chunk ? n : start + chunk;
        for (long long row = start + threadIdx.x; row < stop; row += THREADS) {
            if (counts && !counts[row]) continue;
            T values[FEATURES];
            load_values(X + row * d + j, count, aligned, values);
            const unsigned long long word = rows[row * words + j / FEATURES];
#pragma unroll
            for (int k = 0; k < FEATURES; ++k) {
                if (k >= count || values[k] != values[k]) continue;
                const int at = k * BINS + static_cast<int>(word >> 8 * k & 255);
                const double value = to_double(values[k]);
                raise(own + at, ordered(-value));
                raise(own + FEATURES * BINS + at, ordered(value));
            }
        }
        __syncthreads();
        for (int e = threadIdx.x; e < count * BINS; e += THREADS)
            for (int side = 0; side < 2; ++side)
                raise(reach + (side * d + j) * BINS + e, own[side * FEATURES * BINS + e]);
    }
}
