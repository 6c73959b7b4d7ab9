// Gradients and hessians of the losses of boosting, in the numbers of
// `daskml_dist.solvers.boosting_scores`, and packed as `daskml_dist.backends.tree_kernels` packs them:
// to the last bit. Compiled without fused multiply-adds.
#include "tree_tasks.cuh"

// Exponential by the operations of `daskml_dist.backends.elementary_functions`, in their order.
__device__ inline double exponential(double x) {
    if (x != x) return x;
    const double in_range = x < -746.0 ? -746.0 : (x > 710.0 ? 710.0 : x);
    // Adding 1.5 * 2**52 rounds to a whole number, which the lowest bits then hold.
    const double shifted = in_range * 1.4426950408889634 + 6755399441055744.0;
    const double whole = shifted - 6755399441055744.0;
    const double rest = in_range - whole * 0.693147180369123816490 -
                        whole * 1.90821492927058770002e-10;
    double sum = 1.0 / 6227020800.0;
    sum = sum * rest + 1.0 / 479001600.0;
    sum = sum * rest + 1.0 / 39916800.0;
    sum = sum * rest + 1.0 / 3628800.0;
    sum = sum * rest + 1.0 / 362880.0;
    sum = sum * rest + 1.0 / 40320.0;
    sum = sum * rest + 1.0 / 5040.0;
    sum = sum * rest + 1.0 / 720.0;
    sum = sum * rest + 1.0 / 120.0;
    sum = sum * rest + 1.0 / 24.0;
    sum = sum * rest + 1.0 / 6.0;
    sum = sum * rest + 0.5;
    sum = sum * rest + 1.0;
    sum = sum * rest + 1.0;
    // By two powers of two, neither of which overflows.
    const long long power = __double_as_longlong(shifted) - 4843621399236968448ll;
    const long long half = (power + 2048) / 2;
    return sum * __longlong_as_double((half - 1) << 52) *
           __longlong_as_double((power - half + 2047) << 52);
}

// Numbers of the losses, in the order of `kernels.TREE_LOSSES`.
enum { SQUARED_ERROR, ABSOLUTE_ERROR, QUANTILE, POISSON, GAMMA, BINOMIAL, MULTINOMIAL };

// Gradient and hessian of an output (from 0) of a row.
struct Slopes {
    double first, second;
};

__device__ inline Slopes multinomial(double y, const double *raw, long long c, long long k,
                                     long long n) {
    // Softmax about the largest raw prediction; `!(<=)` lets NaN win, as NumPy's maximum does.
    double most = raw[0];
    for (long long other = 1; other < k; ++other)
        if (!(raw[other * n] <= most)) most = raw[other * n];
    double total = exponential(raw[0] - most);
    for (long long other = 1; other < k; ++other) total += exponential(raw[other * n] - most);
    const double share = exponential(raw[c * n] - most) / total;
    return {share - (y == static_cast<double>(c) ? 1.0 : 0.0), share * (1 - share)};
}

__device__ inline Slopes binomial(double y, double raw) {
    // Of the smaller of both probabilities, so that nothing overflows; the operations of
    // `write_binomial_gradients`.
    double small = exponential(-fabs(raw));
    const double larger = 1 / (1 + small);
    small *= larger;
    return {(raw >= 0 ? larger : small) - y, larger * small};
}

// raw: of the first output; those of the others are `n` numbers apart.
__device__ inline Slopes slopes_of(long long loss, double parameter, double y, const double *raw,
                                   long long c, long long k, long long n) {
    if (loss == MULTINOMIAL) return multinomial(y, raw, c, k, n);
    if (loss == BINOMIAL) return binomial(y, *raw);
    if (loss == POISSON) {
        const double mean = exponential(*raw);
        return {mean - y, mean};
    }
    if (loss == GAMMA) {
        const double ratio = y * exponential(-*raw);
        return {1 - ratio, ratio};
    }
    if (loss == ABSOLUTE_ERROR) return {*raw > y ? 1.0 : -1.0, 1.0};
    if (loss == QUANTILE) return {y >= *raw ? -parameter : 1 - parameter, 1.0};
    return {*raw - y, 1.0};
}

__device__ inline void note(unsigned *most, float value) {
    // A look before the atomic operation: the largest value is found early, and most threads then
    // skip it.
    const unsigned bits = __float_as_uint(value) & 0x7fffffffu;
    if (bits > *most) atomicMax(most, bits);
}

// y (n,), raw (k, n), weight (n,) or null
// g (k, n), h (k, n) or null where all are 1
// largest (2, k)        bits of the largest |g|, and of the largest h, in float32; zeros before
// n, k, loss, parameter its number, and its own, or 0
extern "C" __global__ void __launch_bounds__(THREADS, 2) tree_gradients(
    const double *__restrict__ y, const double *__restrict__ raw,
    const double *__restrict__ weight, float *__restrict__ g, float *__restrict__ h,
    unsigned *__restrict__ largest, long long n, long long k, long long loss, double parameter) {
    extern __shared__ __align__(16) unsigned char shared[];
    unsigned *most = reinterpret_cast<unsigned *>(shared);
    // Largest values by block in shared memory first: one atomic operation a block goes to global
    // memory.
    for (long long e = threadIdx.x; e < 2 * k; e += THREADS) most[e] = 0;
    __syncthreads();
    const long long stride = static_cast<long long>(gridDim.x) * THREADS;
    for (long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; i < n;
         i += stride)
        for (long long c = 0; c < k; ++c) {
            Slopes slopes = slopes_of(loss, parameter, y[i], raw + i, c, k, n);
            if (weight) {
                slopes.first *= weight[i];
                slopes.second *= weight[i];
            }
            const float first = to_float(slopes.first), second = to_float(slopes.second);
            g[c * n + i] = first;
            // The bits of positive numbers have their order, NaN above all.
            note(most + c, first);
            if (!h) continue;
            h[c * n + i] = second;
            note(most + k + c, second);
        }
    __syncthreads();
    for (long long e = threadIdx.x; e < 2 * k; e += THREADS)
        if (most[e]) atomicMax(largest + e, most[e]);
}

// g (n,), h (n,) or null, salt (n,)
// packed (n,)
// sums (2,)             squares of the rounded gradients, and the rounded hessians, added to
// n, mode, key, g_scale, h_scale
extern "C" __global__ void __launch_bounds__(THREADS) tree_quantise(
    const float *__restrict__ g, const float *__restrict__ h, const unsigned *__restrict__ salt,
    long long *__restrict__ packed, long long *__restrict__ sums, long long n, long long mode,
    long long key, double g_scale, double h_scale) {
    unsigned long long squares = 0, hessians = 0;
    const long long stride = static_cast<long long>(gridDim.x) * THREADS;
    for (long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; i < n;
         i += stride) {
        // Rounding and fields as in `tree_kernels.pack_gradients`.
        const double of_g = to_double(g[i]) * g_scale;
        if (mode == CONSTANT) {
            packed[i] = (static_cast<long long>(rint(of_g)) << 16) + 1;
            continue;
        }
        const double of_h = to_double(h[i]) * h_scale;
        if (mode == EXACT) {
            packed[i] = (static_cast<long long>(rint(of_g)) << 32) +
                        static_cast<long long>(rint(of_h));
            continue;
        }
        // Stochastic rounding, by the same hash as on the CPU.
        unsigned x = (salt[i] ^ static_cast<unsigned>(key)) * 0x9E3779B1u;
        x = (x ^ x >> 15) * 0x85EBCA77u;
        x ^= x >> 13;
        const long long first = static_cast<long long>(
            floor(of_g + static_cast<double>(x & 0xffff) * (1.0 / 65536)));
        const long long second =
            static_cast<long long>(floor(of_h + static_cast<double>(x >> 16) * (1.0 / 65536)));
        squares += static_cast<unsigned long long>(first * first);
        hessians += static_cast<unsigned long long>(second);
        packed[i] = (first << 38) + (second << 13) + 1;
    }
    if (mode != ROUNDED) return;
    for (int offset = 16; offset > 0; offset /= 2) {
        squares += __shfl_xor_sync(ALL_LANES, squares, offset);
        hessians += __shfl_xor_sync(ALL_LANES, hessians, offset);
    }
    if (threadIdx.x % 32) return;
    atomicAdd(reinterpret_cast<unsigned long long *>(sums), squares);
    atomicAdd(reinterpret_cast<unsigned long long *>(sums + 1), hessians);
}
