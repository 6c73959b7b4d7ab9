// k-means: the nearest centroid of each row, and the sums of each centroid's rows.
//
// A row's squared distance to a centroid c is |x|^2 + 2 (|c|^2 / 2 - x.c): a multiply-add an entry.
// It cancels where rows lie far from the origin, so subtract the mean, as with any such form.
//
// Defined at compile time:
//   STORED      T, the type of X
//   ARITHMETIC  A, the type of the centroids and the weights
//   CENTROIDS   centroids of a lane: groups of 32 * CENTROIDS are compared at a time
//   SHARED      1: a block adds up its sums in shared memory; 0: straight to `sums`
//
// A warp takes ROWS rows. Columns come 32 at a time: a lane holds one entry of each row, which it
// gives to the others by a shuffle, and the block holds 32 columns of centroids in shared memory.
// Sums are atomic, in no fixed order.
#include "numbers.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define ROWS 8
#define GROUP (32 * CENTROIDS)

// X (n, d), centroids (k, d), weight (n,) or null
// labels (n,)        of the nearest centroid; the first where several are
// sums (k, d)        each centroid's weighted rows, added to
// counts (k,)        their weights, added to
// inertia (1,)       weighted squared distances, added to
// n, d, k
extern "C" __global__ void __launch_bounds__(THREADS) kmeans(
    const T *__restrict__ X, const A *__restrict__ centroids, const A *__restrict__ weight,
    int *__restrict__ labels, double *__restrict__ sums, double *__restrict__ counts,
    double *__restrict__ inertia, long long n, long long d, long long k) {
    extern __shared__ __align__(16) unsigned char shared[];
    A *tile = reinterpret_cast<A *>(shared);  // (32, GROUP + 1): columns of the centroids
    A *own = tile + 32 * (GROUP + 1);         // (k, d + 1) where SHARED: sums, then counts
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (SHARED)
        for (long long e = threadIdx.x; e < k * (d + 1); e += THREADS) own[e] = 0;

    double total = 0;
    const long long stride = static_cast<long long>(gridDim.x) * WARPS * ROWS;
    // All warps of a block make the same number of rounds: they share the tiles.
    for (long long start = static_cast<long long>(blockIdx.x) * WARPS * ROWS; start < n;
         start += stride) {
        const long long first = start + warp * ROWS;
        A least[ROWS], norm[ROWS];
        int label[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            least[r] = 0;
            norm[r] = 0;
            label[r] = -1;
        }
        for (long long from = 0; from < k; from += GROUP) {
            // A lane has CENTROIDS centroids, and scores of them for all rows of its warp.
            A score[ROWS][CENTROIDS] = {}, half[CENTROIDS] = {};
            for (long long left = 0; left < d; left += 32) {
                const int filled = d - left < 32 ? static_cast<int>(d - left) : 32;
                __syncthreads();  // the last tile is done with
                // GROUP + 1 apart: lanes then write and read different banks of shared memory.
                for (int e = threadIdx.x; e < 32 * GROUP; e += THREADS) {
                    const int c = e / 32, j = e % 32;
                    tile[j * (GROUP + 1) + c] =
                        from + c < k && j < filled ? centroids[(from + c) * d + left + j] : A(0);
                }
                A x[ROWS];
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    x[r] = 0;
                    if (first + r < n && lane < filled)
                        x[r] = static_cast<A>(number(X[(first + r) * d + left + lane]));
                    if (from == 0) norm[r] += x[r] * x[r];
                }
                __syncthreads();
                for (int j = 0; j < filled; ++j) {
                    A c[CENTROIDS];
#pragma unroll
                    for (int m = 0; m < CENTROIDS; ++m) {
                        c[m] = tile[j * (GROUP + 1) + m * 32 + lane];
                        half[m] += A(0.5) * c[m] * c[m];
                    }
#pragma unroll
                    for (int r = 0; r < ROWS; ++r) {
                        // Lane j hands its entry of the row to all: one multiply-add a centroid.
                        const A entry = __shfl_sync(ALL_LANES, x[r], j);
#pragma unroll
                        for (int m = 0; m < CENTROIDS; ++m) score[r][m] -= entry * c[m];
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int m = 0; m < CENTROIDS; ++m) {
                    const long long c = from + m * 32 + lane;
                    // Strictly less: the first of equal centroids stays.
                    const A at = score[r][m] + half[m];
                    if (c < k && (label[r] < 0 || at < least[r])) {
                        least[r] = at;
                        label[r] = static_cast<int>(c);
                    }
                }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
#pragma unroll
            for (int offset = 16; offset > 0; offset /= 2) {
                const A at = __shfl_xor_sync(ALL_LANES, least[r], offset);
                // Over the lanes, of equal scores the smaller number.
                const int c = __shfl_xor_sync(ALL_LANES, label[r], offset);
                if (c >= 0 && (label[r] < 0 || at < least[r] || (at == least[r] && c < label[r]))) {
                    least[r] = at;
                    label[r] = c;
                }
            }
            // The squared distance, |x|^2 + 2 (|c|^2 / 2 - x.c).
            const A square = team_sum<32>(norm[r]) + 2 * least[r];
            const long long i = first + r;
            if (i >= n) continue;
            const A scale = weight ? weight[i] : A(1);
            if (lane == 0) {
                labels[i] = label[r];
                total += scale * (square < 0 ? A(0) : square);
                if (SHARED)
                    atomicAdd(own + label[r] * (d + 1) + d, scale);
                else
                    atomicAdd(counts + label[r], static_cast<double>(scale));
            }
            // The row's entries are read again, from the cache, and added to its centroid's sums.
            for (long long j = lane; j < d; j += 32) {
                const A entry = scale * static_cast<A>(number(X[i * d + j]));
                if (SHARED)
                    atomicAdd(own + label[r] * (d + 1) + j, entry);
                else
                    atomicAdd(sums + label[r] * d + j, static_cast<double>(entry));
            }
        }
    }
    if (lane == 0) atomicAdd(inertia, total);
    if (!SHARED) return;
    __syncthreads();
    for (long long c = warp; c < k; c += WARPS)
        for (long long j = lane; j <= d; j += 32)
            atomicAdd(j < d ? sums + c * d + j : counts + c,
                      static_cast<double>(own[c * (d + 1) + j]));
}
