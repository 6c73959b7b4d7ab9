// Gradient of rows of CSR blocks for a linear model with one output. A warp takes a row. Additions
// are atomic, in no fixed order: the last bits differ from run to run.
//
// Defined at compile time:
//   STORED      T, the type of the stored entries
//   ARITHMETIC  A, the type of y, weight and w
//   RESULT      O, the type of the gradient
//   INDEX       I, the type of `indices` and `indptr`
//   LOSS        a function of losses.cuh
#include "numbers.cuh"
#include "csr_row.cuh"
#include "losses.cuh"

#define THREADS 256
// Four blocks a multiprocessor leave 64 registers to a thread; left to itself, the compiler takes
// fewer and spills.

// data, indices, indptr           of a block; not read where rows are chosen
// chosen (n,) or null             of any blocks
// y, weight (or null) (n,)
// w (d,), or (d + 1,)             with the intercept last
// gradient (d,), or (d + 1,)      added to
// loss (1,)                       added to
// n, d, intercept, parameter      parameter of the loss, or 0
// count (1,) or null              takes the place of n, where that is known to the device alone
extern "C" __global__ void __launch_bounds__(THREADS, 4) csr_gradient(
    const T *__restrict__ data, const I *__restrict__ indices, const I *__restrict__ indptr,
    const CsrRow *__restrict__ chosen, const A *__restrict__ y, const A *__restrict__ weight,
    const A *__restrict__ w, O *__restrict__ gradient, double *__restrict__ loss, long long n,
    long long d, long long intercept, double parameter, const double *__restrict__ count) {
    const int lane = threadIdx.x % 32;
    const long long stride = static_cast<long long>(gridDim.x) * (THREADS / 32);
    const A bias = intercept ? w[d] : A(0);
    double loss_sum = 0, slope_sum = 0;
    if (count) n = static_cast<long long>(*count);
    for (long long i = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) / 32; i < n;
         i += stride) {
        CsrRow row;
        if (chosen) {
            row = chosen[i];
        } else {
            const long long first = indptr[i];
            row = {data + first, indices + first, indptr[i + 1] - first};
        }
        // Lanes share the row's entries; a butterfly gives all of them the product.
        A raw = 0;
        for (long long k = lane; k < row.count; k += 32)
            raw += static_cast<A>(number(row.data[k])) * w[row.indices[k]];
        raw = team_sum<32>(raw);
        A value;
        A slope = loss::LOSS(y[i], raw + bias, static_cast<A>(parameter), value);
        if (weight) {
            slope *= weight[i];
            value *= weight[i];
        }
        loss_sum += value;
        slope_sum += slope;
        if (slope != 0)  // rows of a hinge beyond the margin cost no writes; NaN != 0
            for (long long k = lane; k < row.count; k += 32)
                atomicAdd(gradient + row.indices[k],
                          static_cast<O>(slope * static_cast<A>(number(row.data[k]))));
    }
    if (lane == 0) {
        atomicAdd(loss, loss_sum);
        if (intercept) atomicAdd(gradient + d, static_cast<O>(slope_sum));
    }
}

// Leaves zeros in `gradient` (n,).
extern "C" __global__ void __launch_bounds__(THREADS) csr_clear(O *__restrict__ gradient,
                                                                long long n) {
    const long long stride = static_cast<long long>(gridDim.x) * THREADS;
    for (long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; i < n;
         i += stride)
        gradient[i] = 0;
}
