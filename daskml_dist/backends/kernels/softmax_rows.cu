// Gradient and sum of the losses of softmax regression: cross-entropy of some classes. X is read once.
//
// Defined at compile time, beside what linear_gradient.cu explains (STORED, ARITHMETIC, RESULT,
// VECTOR, LANES, CHUNKS, ROWS, THREADS and BLOCKS):
//   CLASSES  K
//   PADDED   the least power of two that is not below K
//   SPREAD   1: the columns of a row are spread over the warps of a block (LANES is 32); else 0
//
// As in linear_gradient.cu a team of lanes keeps its rows in registers, from the products with w to
// the gradient, whose columns each lane adds up for all classes. Between the two, lanes exchange
// halves of the rows' raw predictions, and then of the classes, until each has HELD classes of one
// row; the slopes of a row go to its whole team through shared memory. Sums are in a fixed order.
// Wide rows are spread over a block: its warps then share what they have of each raw prediction.
#include "numbers.cuh"

#define WARPS (THREADS / 32)
#define TEAMS (32 / LANES)
#define SPANS (SPREAD ? WARPS : 1)                        // warps that share a row
#define SPAN (LANES * CHUNKS * VECTOR)                    // columns of a team
#define SHARE (LANES / ROWS)                              // lanes of a team with the same row
#define HOLDERS (PADDED < SHARE ? PADDED : SHARE)         // those of them with different classes
#define HELD (PADDED / HOLDERS)
#define SLOTS ((CLASSES + 3) / 4 * 4)                     // slopes of a row, loaded four at a time

// After it dots[0] is of the row lane % ROWS.
template <int HALF>
__device__ inline void exchange_rows(A (&dots)[ROWS][PADDED], int lane) {
    if constexpr (HALF > 0) {
        // Recursive halving: a lane keeps one half of the rows and gives the other away, so that
        // sums take HALF shuffles instead of all lanes adding everything.
        const bool upper = lane & HALF;
#pragma unroll
        for (int r = 0; r < HALF; ++r)
#pragma unroll
            for (int k = 0; k < CLASSES; ++k) {
                const A kept = upper ? dots[r + HALF][k] : dots[r][k];
                const A given = upper ? dots[r][k] : dots[r + HALF][k];
                dots[r][k] = kept + __shfl_xor_sync(ALL_LANES, given, HALF);
            }
        exchange_rows<HALF / 2>(dots, lane);
    }
}

// After it dots[h] is the sum for class first_class(lane) + h, for each h below HELD.
template <int HOLDS, int OFFSET>
__device__ inline void exchange_classes(A (&dots)[PADDED], int lane) {
    if constexpr (OFFSET < LANES) {
        if constexpr (HOLDS > 1) {
            constexpr int half = HOLDS / 2;
            const bool upper = lane & OFFSET;
#pragma unroll
            for (int k = 0; k < half; ++k) {
                const A kept = upper ? dots[k + half] : dots[k];
                const A given = upper ? dots[k] : dots[k + half];
                dots[k] = kept + __shfl_xor_sync(ALL_LANES, given, OFFSET);
            }
            exchange_classes<half, OFFSET * 2>(dots, lane);
        } else {
            dots[0] += __shfl_xor_sync(ALL_LANES, dots[0], OFFSET);
            exchange_classes<1, OFFSET * 2>(dots, lane);
        }
    }
}

__device__ inline int first_class(int lane) {
    int first = 0;
#pragma unroll
    for (int holder = 1, half = PADDED / 2; holder < HOLDERS; holder *= 2, half /= 2)
        if (lane / ROWS & holder) first += half;
    return first;
}

// X (n, d)
// codes (n,)                 the rows' classes, from 0 to K - 1
// weight (n,)                or null
// w (d, K), or (d + 1, K)    with the intercepts last
// partials (gridDim.x, .)    each block's gradient, of the shape of w; without intercepts one number
//                            more, which means nothing; and last the sum of losses
// n, d, intercept
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) softmax_rows(
    const T *__restrict__ X, const int *__restrict__ codes, const A *__restrict__ weight,
    const A *__restrict__ w, double *__restrict__ partials, long long n, long long d,
    long long intercept) {
    extern __shared__ __align__(16) unsigned char shared[];
    double *losses = reinterpret_cast<double *>(shared);  // (WARPS,)
    double *biases_of = losses + WARPS;                   // (WARPS, PADDED) gradients of intercepts
    // (SPANS, CHUNKS, K, LANES, VECTOR): w with zeros behind it, and at the end the sums.
    A *columns = reinterpret_cast<A *>(biases_of + WARPS * PADDED);
    A *slopes = columns + SPANS * SPAN * CLASSES;       // (WARPS, TEAMS, ROWS, SLOTS)
    A *biases = slopes + WARPS * TEAMS * ROWS * SLOTS;  // (PADDED,)
    A *shares = biases + PADDED;                        // (2, WARPS, ROWS, PADDED) if SPREAD
    const int width = static_cast<int>(d);
    const int warp = threadIdx.x / 32, team = threadIdx.x % 32 / LANES;
    const int lane = threadIdx.x % LANES;
    const int span = SPREAD ? warp : 0;
    for (int e = threadIdx.x; e < SPANS * SPAN * CLASSES; e += THREADS) {
        // Transposed, so that a lane's vector of one class lies together and lanes read neighbours.
        const int chunk = e / (VECTOR * LANES * CLASSES), k = e / (VECTOR * LANES) % CLASSES;
        const int j = chunk * LANES * VECTOR + e % (LANES * VECTOR);
        columns[e] = j < width ? w[j * CLASSES + k] : A(0);
    }
    for (int k = threadIdx.x; k < PADDED; k += THREADS)
        biases[k] = intercept && k < CLASSES ? w[width * CLASSES + k] : A(0);
    __syncthreads();

    const int mine = lane % ROWS, base = first_class(lane);
    // Other lanes, and where rows are spread other warps, repeat what these have.
    const bool holds = lane / ROWS < HOLDERS, counts = holds && (!SPREAD || warp == 0);
    A *own_columns = columns + span * SPAN * CLASSES;
    A *own = slopes + (warp * TEAMS + team) * ROWS * SLOTS;
    Vector<A, VECTOR> sums[CHUNKS][CLASSES] = {};
    double loss_sum = 0, slope_sums[HELD] = {};
    const long long step = ROWS * TEAMS;
    const long long n_groups = WARPS / SPANS;  // of warps, each with rows of its own
    const long long stride = step * n_groups * gridDim.x;
    long long first = step * (blockIdx.x * n_groups + (SPREAD ? 0 : warp));
    for (int buffer = 0; first < n; first += stride, buffer ^= 1) {
        // The same for all lanes of a warp, and where rows are spread of a block.
        Loaded<T, VECTOR> x[ROWS][CHUNKS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const long long i = first + r * TEAMS + team;
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                const int j = span * SPAN + (c * LANES + lane) * VECTOR;
                x[r][c] = Loaded<T, VECTOR>{};
                if (i < n && j < width)
                    x[r][c] = *reinterpret_cast<const Loaded<T, VECTOR> *>(X + i * d + j);
            }
        }
        // Raw predictions.
        A dots[ROWS][PADDED] = {};
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
            for (int k = 0; k < CLASSES; ++k) {
                const auto at = *reinterpret_cast<const Vector<A, VECTOR> *>(
                    own_columns + ((c * CLASSES + k) * LANES + lane) * VECTOR);
#pragma unroll
                for (int r = 0; r < ROWS; ++r)
#pragma unroll
                    for (int v = 0; v < VECTOR; ++v)
                        dots[r][k] += static_cast<A>(entry(x[r][c], v)) * at.at[v];
            }
        exchange_rows<ROWS / 2>(dots, lane);
        exchange_classes<PADDED, ROWS>(dots[0], lane);
#if SPREAD
        // The block's warps add up their shares, in one order. The next ones go elsewhere, so that
        // one barrier is enough.
        A *share = shares + (buffer * WARPS * ROWS + mine) * PADDED + base;
#pragma unroll
        for (int h = 0; h < HELD; ++h)
            if (holds) share[warp * ROWS * PADDED + h] = dots[0][h];
        __syncthreads();
#pragma unroll
        for (int h = 0; h < HELD; ++h) {
            dots[0][h] = share[h];
#pragma unroll
            for (int from = 1; from < WARPS; ++from) dots[0][h] += share[from * ROWS * PADDED + h];
        }
#endif

        // Softmax of the row: its largest, powers of e, and their sum over the row's lanes.
        const long long i = first + mine * TEAMS + team;
        const bool inside = i < n;
        const int code = inside ? codes[i] : -1;
        A raw[HELD], most = -__uint_as_float(0x7f800000u);  // infinity
#pragma unroll
        for (int h = 0; h < HELD; ++h) {
            raw[h] = dots[0][h] + biases[base + h];
            if (base + h < CLASSES && raw[h] > most) most = raw[h];
        }
#pragma unroll
        for (int offset = ROWS; offset < ROWS * HOLDERS; offset *= 2) {
            const A other = __shfl_xor_sync(ALL_LANES, most, offset);
            most = other > most ? other : most;
        }
        A powers[HELD], total = 0;
#pragma unroll
        for (int h = 0; h < HELD; ++h) {
            powers[h] = base + h < CLASSES ? exp(raw[h] - most) : A(0);
            total += powers[h];
        }
#pragma unroll
        for (int offset = ROWS; offset < ROWS * HOLDERS; offset *= 2)
            total += __shfl_xor_sync(ALL_LANES, total, offset);
        const A scale = !inside ? A(0) : weight ? weight[i] : A(1), inverse = 1 / total;
#pragma unroll
        for (int h = 0; h < HELD; ++h)
            if (holds && base + h < CLASSES) {
                const bool right = base + h == code;
                const A slope = scale * (powers[h] * inverse - (right ? A(1) : A(0)));
                own[mine * SLOTS + base + h] = inside ? slope : A(0);
                slope_sums[h] += inside && counts ? slope : A(0);
                if (right && counts) loss_sum += scale * (log(total) - (raw[h] - most));
            }
        __syncwarp();
        // Slopes times entries.
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int from = 0; from < CLASSES; from += 4) {
                const auto four =
                    *reinterpret_cast<const Vector<A, 4> *>(own + r * SLOTS + from);
#pragma unroll
                for (int k = from; k < (from + 4 < CLASSES ? from + 4 : CLASSES); ++k)
#pragma unroll
                    for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
                        for (int v = 0; v < VECTOR; ++v)
                            sums[c][k].at[v] +=
                                four.at[k - from] * static_cast<A>(entry(x[r][c], v));
            }
        __syncwarp();  // the slopes are read before the next take their place
    }

    // Teams of a warp, then warps.
#pragma unroll
    for (int offset = LANES; offset < 32; offset *= 2)
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
            for (int k = 0; k < CLASSES; ++k)
#pragma unroll
                for (int v = 0; v < VECTOR; ++v)
                    sums[c][k].at[v] += __shfl_xor_sync(ALL_LANES, sums[c][k].at[v], offset);
    loss_sum = team_sum<32>(loss_sum);
    if (threadIdx.x % 32 == 0) losses[warp] = loss_sum;
#pragma unroll
    for (int h = 0; h < HELD; ++h) {
        double sum = slope_sums[h];
#pragma unroll
        for (int offset = 1; offset < ROWS; offset *= 2)
            sum += __shfl_xor_sync(ALL_LANES, sum, offset);
#pragma unroll
        for (int offset = LANES; offset < 32; offset *= 2)
            sum += __shfl_xor_sync(ALL_LANES, sum, offset);
        if (team == 0 && mine == 0 && holds) biases_of[warp * PADDED + base + h] = sum;
    }
    for (int turn = 0; turn < WARPS / SPANS; ++turn) {
        __syncthreads();  // at first: w is needed no more
        if ((SPREAD || warp == turn) && team == 0)
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
                for (int k = 0; k < CLASSES; ++k)
#pragma unroll
                    for (int v = 0; v < VECTOR; ++v) {
                        A &sum = own_columns[((c * CLASSES + k) * LANES + lane) * VECTOR + v];
                        sum = (turn ? sum : A(0)) + sums[c][k].at[v];
                    }
    }
    __syncthreads();
    const int n_sums = width * CLASSES, n_more = intercept ? CLASSES : 1;
    double *out = partials + static_cast<long long>(blockIdx.x) * (n_sums + n_more + 1);
    for (int e = threadIdx.x; e < n_sums; e += THREADS) {
        const int j = e / CLASSES, k = e % CLASSES, chunk = j / (LANES * VECTOR);
        out[e] = columns[(chunk * CLASSES + k) * LANES * VECTOR + j % (LANES * VECTOR)];
    }
    for (int k = threadIdx.x; k < n_more; k += THREADS) {
        double sum = 0;
        for (int from = 0; from < WARPS; ++from) sum += biases_of[from * PADDED + k];
        out[n_sums + k] = sum;
    }
    if (threadIdx.x == 0) {
        double loss = 0;
        for (int from = 0; from < WARPS; ++from) loss += losses[from];
        out[n_sums + n_more] = loss;
    }
}
