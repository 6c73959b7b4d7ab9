// Softmax cross-entropy: losses, and gradients in the place of the raw predictions.
//
// Defined at compile time:
//   ARITHMETIC  A, the type of the raw predictions, weights and losses
//   LANES       lanes that share a row; a power of two up to 32
#include "numbers.cuh"

#define THREADS 256

// raw (n, k)      raw predictions; their gradients when done
// codes (n,)      the rows' classes, from 0 to k - 1
// weight (n,)     or null
// losses (n,)     of each row, times its weight
// n, k
extern "C" __global__ void __launch_bounds__(THREADS) softmax_gradient(
    A *__restrict__ raw, const int *__restrict__ codes, const A *__restrict__ weight,
    A *__restrict__ losses, long long n, long long k) {
    const long long teams = THREADS / LANES;
    const int lane = threadIdx.x % LANES;
    const int first = threadIdx.x / 32 * (32 / LANES);  // of the warp's teams
    const long long stride = teams * gridDim.x;
    for (long long start = blockIdx.x * teams + first; start < n; start += stride) {
        const long long i = start + threadIdx.x % 32 / LANES;
        const bool inside = i < n;  // lanes of other teams still need the shuffles
        A *row = raw + i * k;
        A most = 0, total = 0, target = 0;
        if (inside) {
            target = row[codes[i]];
            most = row[0];
            for (long long c = lane; c < k; c += LANES) most = row[c] > most ? row[c] : most;
        }
#pragma unroll
        for (int offset = LANES / 2; offset > 0; offset /= 2) {
            // The largest of the row over its lanes: powers of e are taken about it.
            const A other = __shfl_xor_sync(ALL_LANES, most, offset);
            most = other > most ? other : most;
        }
        if (inside) {
#pragma unroll 1  // four exponentials at a time would spill
            for (long long c = lane; c < k; c += LANES) total += exp(row[c] - most);
        }
        total = team_sum<LANES>(total);
        // Lanes have read row[0] and row[codes[i]] of others, who write below; shuffles order no memory.
        __syncwarp();
        if (!inside) continue;
        const A scale = weight ? weight[i] : A(1), logarithm = log(total);
#pragma unroll 1
        for (long long c = lane; c < k; c += LANES)
            // Gradient: softmax minus the one-hot target, times the weight.
            row[c] = scale * (exp(row[c] - most - logarithm) - (c == codes[i] ? A(1) : A(0)));
        if (lane == 0) losses[i] = scale * (logarithm - (target - most));
    }
}
