// Chosen rows of several blocks, in the order in which they were chosen: where each lies, and
// their targets and weights one after another. The rows themselves stay where they are.
//
// Defined at compile time:
//   STORED      T, the type of the entries of sparse rows
//   ARITHMETIC  A, the type of y and weight
//   INDEX       I, the type of `indices` and `indptr`
#include "numbers.cuh"
#include "csr_row.cuh"

#define THREADS 256

// Rows `row` to `row + count` of a block, which become rows from `at` on.
struct alignas(16) Run {
    int block, row, at, count;
};

// The addresses of a block's targets and weights; weight is null where rows have none.
struct Targets {
    const A *y, *weight;
};

// The addresses of a dense block's arrays.
struct Block {
    unsigned long long X;
    Targets targets;
};

struct CsrBlock {
    const T *data;
    const I *indices, *indptr;
    Targets targets;
};

// Calls `take(block, row, at)` for each row of the runs; a warp takes a run.
template <typename B, typename Take>
__device__ inline void each_row(const B *blocks, const Run *runs, long long n, A *targets,
                                A *weights, const Take &take) {
    const long long stride = static_cast<long long>(gridDim.x) * (THREADS / 32);
    for (long long r = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) / 32; r < n;
         r += stride) {
        // Lanes take the run's rows side by side.
        const Run run = runs[r];
        const B block = blocks[run.block];
        for (int k = threadIdx.x % 32; k < run.count; k += 32) {
            const long long row = static_cast<long long>(run.row) + k;
            take(block, row, run.at + k);
            targets[run.at + k] = block.targets.y[row];
            if (weights) weights[run.at + k] = block.targets.weight[row];
        }
    }
}

// blocks (.,)
// runs (n,)
// addresses, targets, weights (or null)    of all the runs' rows
// n, row_bytes                             bytes of a row of X
extern "C" __global__ void __launch_bounds__(THREADS) gather_rows(
    const Block *__restrict__ blocks, const Run *__restrict__ runs,
    unsigned long long *__restrict__ addresses, A *__restrict__ targets, A *__restrict__ weights,
    long long n, long long row_bytes) {
    each_row(blocks, runs, n, targets, weights, [=](const Block &block, long long row, int at) {
        addresses[at] = block.X + row * row_bytes;
    });
}

// As above; `rows` is where each row lies.
extern "C" __global__ void __launch_bounds__(THREADS) gather_csr_rows(
    const CsrBlock *__restrict__ blocks, const Run *__restrict__ runs, CsrRow *__restrict__ rows,
    A *__restrict__ targets, A *__restrict__ weights, long long n) {
    each_row(blocks, runs, n, targets, weights, [=](const CsrBlock &block, long long row, int at) {
        const long long first = block.indptr[row];
        rows[at] = {block.data + first, block.indices + first, block.indptr[row + 1] - first};
    });
}
