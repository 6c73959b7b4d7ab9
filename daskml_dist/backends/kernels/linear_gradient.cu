// Gradient and sum of the losses of a linear model with one output. X is read once.
//
// Defined at compile time:
//   STORED      T, the type of X
//   ARITHMETIC  A, the type of sums within a block, and of y, weight and w
//   RESULT      O, the type of the gradient
//   LOSS        a function of losses.cuh
//   VECTOR      values of X in one load; d is a multiple of it
//   LANES       lanes that share a row; a power of two up to 32
//   CHUNKS      loads of a lane from one row: LANES * CHUNKS * VECTOR >= d
//   ROWS        rows that a team of lanes works on together, so that their loads overlap; <= LANES
//   THREADS     of a block
//   BLOCKS      blocks that are to fit a multiprocessor
//
// A team keeps its rows in registers: they serve the product with w, and then the gradient. Each
// lane adds up the gradient of its own columns in registers over all rows of its team. Teams,
// then warps, then blocks are summed in a fixed order: the same grid gives the same bits.
#include "numbers.cuh"
#include "losses.cuh"

#define WARPS (THREADS / 32)
#define TEAMS (32 / LANES)

// X (n, d)                        not read where there are addresses
// addresses (n,) or null          of the rows, which need not lie together
// y, weight (or null) (n,)
// w (d,), or (d + 1,)             with the intercept last
// partials (gridDim.x, d + 2)     each block's gradient, sum of slopes and sum of losses
// n, d, intercept, parameter      parameter of the loss, or 0
// count (1,) or null              takes the place of n, where that is known to the device alone
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) linear_gradient(
    const T *__restrict__ X, const unsigned long long *__restrict__ addresses,
    const A *__restrict__ y, const A *__restrict__ weight, const A *__restrict__ w,
    double *__restrict__ partials, long long n, long long d, long long intercept,
    double parameter, const double *__restrict__ count) {
    // (WARPS,) losses, (WARPS,) slopes, then w with zeros behind it, and at the end the sums.
    extern __shared__ __align__(16) unsigned char shared[];
    double *losses = reinterpret_cast<double *>(shared), *slopes = losses + WARPS;
    A *columns = reinterpret_cast<A *>(slopes + WARPS);
    const int width = static_cast<int>(d);
    if (count) n = static_cast<long long>(*count);
    // w goes to shared memory once a block, with zeros behind it, so that loops need no bounds.
    for (int j = threadIdx.x; j < LANES * CHUNKS * VECTOR; j += THREADS)
        columns[j] = j < width ? w[j] : A(0);
    const A bias = intercept ? w[width] : A(0);
    const int warp = threadIdx.x / 32, team = threadIdx.x % 32 / LANES;
    const int lane = threadIdx.x % LANES;
    __syncthreads();

    // The gradient of this lane's columns, in registers until the end.
    Vector<A, VECTOR> sums[CHUNKS] = {};
    double loss_sum = 0, slope_sum = 0;
    const long long step = ROWS * TEAMS;
    const long long stride = step * WARPS * gridDim.x;
    long long first = step * (static_cast<long long>(blockIdx.x) * WARPS + warp);
    for (; first < n; first += stride) {  // the same for all lanes of a warp
        // All loads of ROWS rows are issued before the first is used: memory latency is paid once.
        Loaded<T, VECTOR> x[ROWS][CHUNKS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const long long i = first + r * TEAMS + team;
            const bool inside = i < n;
            const T *row = X + i * d;
            if (addresses) row = reinterpret_cast<const T *>(inside ? addresses[i] : 0);
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                const int j = (c * LANES + lane) * VECTOR;
                x[r][c] = Loaded<T, VECTOR>{};
                if (inside && j < width)
                    x[r][c] = *reinterpret_cast<const Loaded<T, VECTOR> *>(row + j);
            }
        }
        // Each lane's share of the products with w.
        A dots[ROWS] = {};
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const auto at =
                *reinterpret_cast<const Vector<A, VECTOR> *>(columns + (c * LANES + lane) * VECTOR);
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int v = 0; v < VECTOR; ++v)
                    dots[r] += static_cast<A>(entry(x[r][c], v)) * at.at[v];
        }
        // Each lane takes the loss of one row, so that exponentials are not computed ROWS times.
        const int mine = lane % ROWS;
        // Lanes exchange halves of the rows they hold, until each holds the one of its own number:
        // ROWS - 1 shuffles and those over the lanes with the same row.
#pragma unroll
        for (int half = ROWS / 2; half > 0; half /= 2) {
            const bool upper = lane & half;
#pragma unroll
            for (int r = 0; r < half; ++r) {
                const A kept = upper ? dots[r + half] : dots[r];
                const A given = upper ? dots[r] : dots[r + half];
                dots[r] = kept + __shfl_xor_sync(ALL_LANES, given, half);
            }
        }
        A raw = dots[0];
#pragma unroll
        for (int offset = ROWS; offset < LANES; offset *= 2)
            raw += __shfl_xor_sync(ALL_LANES, raw, offset);
        // The loss and its derivative of this lane's row.
        A slope = 0;
        const long long i = first + mine * TEAMS + team;
        if (i < n) {
            A value;
            slope = loss::LOSS(y[i], raw + bias, static_cast<A>(parameter), value);
            if (weight) {
                slope *= weight[i];
                value *= weight[i];
            }
            if (lane < ROWS) {
                loss_sum += value;
                slope_sum += slope;
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            // Second use of the rows, still in registers: slope times entries.
            const A g = __shfl_sync(ALL_LANES, slope, r, LANES);
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
                for (int v = 0; v < VECTOR; ++v)
                    sums[c].at[v] += g * static_cast<A>(entry(x[r][c], v));
        }
    }

    // Teams of a warp hold the same columns: add them up by shuffles.
#pragma unroll
    for (int offset = LANES; offset < 32; offset *= 2)
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
            for (int v = 0; v < VECTOR; ++v)
                sums[c].at[v] += __shfl_xor_sync(ALL_LANES, sums[c].at[v], offset);
    loss_sum = team_sum<32>(loss_sum);
    slope_sum = team_sum<32>(slope_sum);
    if (threadIdx.x % 32 == 0) {
        losses[warp] = loss_sum;
        slopes[warp] = slope_sum;
    }
    // Warps add one after the other, in a fixed order, where w was: deterministic, without atomic
    // operations.
    for (int turn = 0; turn < WARPS; ++turn) {
        __syncthreads();  // at first: w is needed no more
        if (warp == turn && team == 0)
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
                for (int v = 0; v < VECTOR; ++v) {
                    A &sum = columns[(c * LANES + lane) * VECTOR + v];
                    sum = (turn ? sum : A(0)) + sums[c].at[v];
                }
    }
    __syncthreads();
    // A block's sums; `sum_partials` adds up the blocks.
    double *out = partials + blockIdx.x * (d + 2);
    for (int j = threadIdx.x; j < width; j += THREADS) out[j] = columns[j];
    if (threadIdx.x == 0) {
        double slope = 0, loss = 0;
        for (int k = 0; k < WARPS; ++k) {
            slope += slopes[k];
            loss += losses[k];
        }
        out[d] = slope;
        out[d + 1] = loss;
    }
}

// Sums the blocks' gradients into `out` (d,), or (d + 1,) with an intercept, where `add` is not 0
// on top of what is there; sets loss[0]. 32 columns a block, each summed by SUMMERS threads.
#define SUMMERS 16

extern "C" __global__ void __launch_bounds__(32 * SUMMERS) sum_partials(
    const double *__restrict__ partials, O *__restrict__ out, double *__restrict__ loss,
    long long n_blocks, long long d, long long intercept, long long add) {
    extern __shared__ __align__(16) unsigned char shared[];
    double *sums = reinterpret_cast<double *>(shared);
    // A warp's lanes read neighbouring columns; 16 threads share a column's blocks, in a fixed
    // order.
    const long long column = blockIdx.x * 32ll + threadIdx.x;
    double sum = 0;
    if (column < d + 2)
        for (long long b = threadIdx.y; b < n_blocks; b += SUMMERS)
            sum += partials[b * (d + 2) + column];
    sums[threadIdx.y * 32 + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y) return;
    for (int k = 1; k < SUMMERS; ++k) sum += sums[k * 32 + threadIdx.x];
    if (column < d || (column == d && intercept))
        out[column] = (add ? out[column] : O(0)) + static_cast<O>(sum);
    else if (column == d + 1)
        loss[0] = sum;
}
