// Chosen rows of several blocks, in the order in which they were chosen: where each lies, and
// their targets and weights one after another. The rows themselves stay where they are.
//
// Defined at compile time:
//   ARITHMETIC  A, the type of y and weight
#include "numbers.cuh"

#define THREADS 256

// Rows `row` to `row + count` of a block, which become rows from `at` on.
struct alignas(16) Run {
    int block, row, at, count;
};

// The addresses of a block's arrays; weight is null where rows have none.
struct Block {
    unsigned long long X, y, weight;
};

// blocks (.,)
// runs (n,)                                a warp takes one
// addresses, targets, weights (or null)    of all the runs' rows
// n, row_bytes                             bytes of a row of X
extern "C" __global__ void __launch_bounds__(THREADS) choose_rows(
    const Block *__restrict__ blocks, const Run *__restrict__ runs,
    unsigned long long *__restrict__ addresses, A *__restrict__ targets, A *__restrict__ weights,
    long long n, long long row_bytes) {
    const long long stride = static_cast<long long>(gridDim.x) * (THREADS / 32);
    for (long long r = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) / 32; r < n;
         r += stride) {
        const Run run = runs[r];
        const Block block = blocks[run.block];
        const A *y = reinterpret_cast<const A *>(block.y);
        const A *weight = reinterpret_cast<const A *>(block.weight);
        for (int k = threadIdx.x % 32; k < run.count; k += 32) {
            const long long row = static_cast<long long>(run.row) + k;
            addresses[run.at + k] = block.X + row * row_bytes;
            targets[run.at + k] = y[row];
            if (weights) weights[run.at + k] = weight[row];
        }
    }
}
