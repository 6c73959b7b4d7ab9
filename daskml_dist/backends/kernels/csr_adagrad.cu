// A step of Adagrad at the columns that chosen rows of CSR blocks touch. A warp takes a row.
//
// Defined at compile time:
//   STORED      T, the type of the stored entries
//   ARITHMETIC  A, the type of w and the accumulator
//   RESULT      O, the type of the gradient
//   INDEX       I, the type of columns
#include "numbers.cuh"
#include "csr_row.cuh"

#define THREADS 256
// Four blocks a multiprocessor leave 64 registers to a thread; left to itself, the compiler takes
// fewer and spills.

__device__ inline float take(float *at) { return atomicExch(at, 0.0f); }

__device__ inline double take(double *at) {
    return __longlong_as_double(static_cast<long long>(
        atomicExch(reinterpret_cast<unsigned long long *>(at), 0ull)));
}

// Whoever takes the gradient of a column leaves zero there and makes its step, so that each column
// moves once, and the gradient is ready for the next batch.
//
// chosen                        the rows; their number is numbers[0]
// w, accumulator (d,)           or (d + 1,) with an intercept
// gradient, as w                of the summed loss
// d, intercept
// numbers (10,)                 `optimizer_numbers`
extern "C" __global__ void __launch_bounds__(THREADS, 4) csr_adagrad(
    const CsrRow *__restrict__ chosen, A *__restrict__ w, A *__restrict__ accumulator,
    O *__restrict__ gradient, long long d, long long intercept,
    const double *__restrict__ numbers) {
    const O rows = static_cast<O>(numbers[0]);
    const A lr = static_cast<A>(numbers[1]), epsilon = static_cast<A>(numbers[3]);
    if (rows == 0) return;
    const auto step = [&](long long j) {
        // A column that several rows touch: the first lane to come takes the whole sum, later ones
        // find 0.
        const A g = static_cast<A>(take(gradient + j) / rows);
        if (g == 0) return;
        const A sum = accumulator[j] + g * g;
        accumulator[j] = sum;
        w[j] -= g * (lr / (sqrt(sum) + epsilon));
    };
    const long long n = static_cast<long long>(numbers[0]);
    const long long stride = static_cast<long long>(gridDim.x) * (THREADS / 32);
    for (long long i = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) / 32; i < n;
         i += stride) {
        const CsrRow row = chosen[i];
#pragma unroll 1  // several roots and quotients at a time would spill
        for (long long k = threadIdx.x % 32; k < row.count; k += 32) step(row.indices[k]);
    }
    if (intercept && blockIdx.x == 0 && threadIdx.x == 0) step(d);
}
