// Gradient of chosen rows of a CSR block for a linear model with one output, and Adagrad steps at
// the columns that they touch. A warp takes a row. Additions are atomic, in no fixed order: the
// last bits differ from run to run.
//
// Defined at compile time:
//   STORED      T, the type of the stored entries
//   ARITHMETIC  A, the type of y, weight and w
//   RESULT      O, the type of the gradient
//   INDEX       I, the type of `indices` and `indptr`
//   ROW_NUMBER  R, the type of the chosen rows' numbers
//   LOSS        a function of losses.cuh
#include "numbers.cuh"
#include "losses.cuh"

#define THREADS 256
// Four blocks a multiprocessor leave 64 registers to a thread; left to itself, the compiler takes
// fewer and spills.

// data, indices, indptr, y, weight (or null)   the block's
// rows (n,) or null                            the rows chosen of it; null: the first n
// w (d,), or (d + 1,)                          with the intercept last
// gradient (d,), or (d + 1,)                   added to
// loss (1,)                                    added to
// n, d, intercept, parameter                   parameter of the loss, or 0
extern "C" __global__ void __launch_bounds__(THREADS, 4) csr_gradient(
    const T *__restrict__ data, const I *__restrict__ indices, const I *__restrict__ indptr,
    const A *__restrict__ y, const A *__restrict__ weight, const R *__restrict__ rows,
    const A *__restrict__ w, O *__restrict__ gradient, double *__restrict__ loss, long long n,
    long long d, long long intercept, double parameter) {
    const int lane = threadIdx.x % 32;
    const long long stride = static_cast<long long>(gridDim.x) * (THREADS / 32);
    const A bias = intercept ? w[d] : A(0);
    double loss_sum = 0, slope_sum = 0;
    for (long long i = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) / 32; i < n;
         i += stride) {
        const long long row = rows ? static_cast<long long>(rows[i]) : i;
        const long long stop = indptr[row + 1];
        A raw = 0;
        for (long long k = indptr[row] + lane; k < stop; k += 32)
            raw += static_cast<A>(number(data[k])) * w[indices[k]];
        raw = team_sum<32>(raw);
        A value;
        A slope = loss::LOSS(y[row], raw + bias, static_cast<A>(parameter), value);
        if (weight) {
            slope *= weight[row];
            value *= weight[row];
        }
        loss_sum += value;
        slope_sum += slope;
        if (slope != 0)  // rows of a hinge beyond the margin cost no writes; NaN != 0
            for (long long k = indptr[row] + lane; k < stop; k += 32)
                atomicAdd(gradient + indices[k],
                          static_cast<O>(slope * static_cast<A>(number(data[k]))));
    }
    if (lane == 0) {
        atomicAdd(loss, loss_sum);
        if (intercept) atomicAdd(gradient + d, static_cast<O>(slope_sum));
    }
}

__device__ inline float take(float *at) { return atomicExch(at, 0.0f); }

__device__ inline double take(double *at) {
    return __longlong_as_double(static_cast<long long>(
        atomicExch(reinterpret_cast<unsigned long long *>(at), 0ull)));
}

// Whoever takes the gradient of a column leaves zero there and makes its step, so that each column
// moves once, and the gradient is ready for the next batch.
//
// indices, indptr, rows, n, d, intercept   as above
// w, accumulator, gradient                 (d,), or (d + 1,) with an intercept
// scale                                    the gradient is taken times this
// lr, epsilon                              as of `optimizers.Adagrad`
extern "C" __global__ void __launch_bounds__(THREADS) csr_adagrad(
    const I *__restrict__ indices, const I *__restrict__ indptr, const R *__restrict__ rows,
    A *__restrict__ w, A *__restrict__ accumulator, O *__restrict__ gradient, long long n,
    long long d, long long intercept, double scale, double lr, double epsilon) {
    const auto step = [&](long long j) {
        const A g = static_cast<A>(take(gradient + j)) * static_cast<A>(scale);
        if (g == 0) return;
        const A sum = accumulator[j] + g * g;
        accumulator[j] = sum;
        w[j] -= g * (static_cast<A>(lr) / (sqrt(sum) + static_cast<A>(epsilon)));
    };
    const long long stride = static_cast<long long>(gridDim.x) * (THREADS / 32);
    for (long long i = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) / 32; i < n;
         i += stride) {
        const long long row = rows ? static_cast<long long>(rows[i]) : i;
        const long long stop = indptr[row + 1];
#pragma unroll 1  // several roots and quotients at a time would spill
        for (long long k = indptr[row] + threadIdx.x % 32; k < stop; k += 32)
            step(indices[k]);
    }
    if (intercept && blockIdx.x == 0 && threadIdx.x == 0) step(d);
}
