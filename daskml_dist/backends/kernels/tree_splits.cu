// The best split of leaves, in histograms of whole numbers: that of
// `daskml_dist.backends.tree_kernels`, to the last bit. Compiled without fused multiply-adds.
//
// `tree_splits` gives a warp a leaf and a feature: sums of the bins up to each one are a scan, and
// of equal gains the first in the order of the loops there counts. `tree_best` takes the first of
// the best features.
#include "tree_tasks.cuh"

#define BINS 256
// Bins of a lane.
#define OWN (BINS / 32)
// Numbers of a split: gain, feature, last bin that goes left, whether missing values do, sums of
// gradients, hessians and rows of the left child, whether it is of categories, which go left.
#define N_SPLIT_FACTS 12

// Leaf: its histogram and how far features lie apart there, sums of gradients, hessians and rows,
// value, bounds of what its children may answer.
struct Leaf {
    const long long *hist;
    long long stride, g, h, n;
    double value, low, high;
};

// Facts of a fit: units of gradients and hessians, l2, the least hessian and rows of a child.
struct Bounds {
    double g_unit, h_unit, l2, least_h;
    long long least_n;
};

// A split; `place` is its place among all that are looked at.
struct Split {
    double gain;
    long long place, bin, missing_left, g, h, n;
};

__device__ inline double value_of(double g, double h, const Leaf &leaf, double l2) {
    // Newton's step, within the bounds of monotonic constraints: the operations of
    // `tree_kernels._leaf_value`, in their order.
    const double value = -g / (h + l2 + 1e-15);
    if (value < leaf.low) return leaf.low;
    if (value > leaf.high) return leaf.high;
    return value;
}

__device__ inline double gain_of(double gl, double hl, double gr, double hr, double loss, int sign,
                                 const Leaf &leaf, double l2) {
    const double left = value_of(gl, hl, leaf, l2), right = value_of(gr, hr, leaf, l2);
    if ((sign > 0 && left > right) || (sign < 0 && left < right)) return -1.0;
    double gain = loss;
    gain -= gl * left;
    gain -= gr * right;
    return gain;
}

// Gain of a split by the sums of one side; -1 where a child is too small.
__device__ inline double gain_at(long long g, long long h, long long n, bool is_left, int sign,
                                 const Leaf &leaf, const Bounds &bounds) {
    if (n < bounds.least_n || leaf.n - n < bounds.least_n) return -1.0;
    // Whole numbers become gradients only here, as on the CPU: sums are exact before.
    const double g_all = leaf.g * bounds.g_unit, h_all = leaf.h * bounds.h_unit;
    const double g_own = g * bounds.g_unit, h_own = h * bounds.h_unit, h_other = h_all - h_own;
    if (h_own < bounds.least_h || h_other < bounds.least_h) return -1.0;
    const double loss = g_all * leaf.value, g_other = g_all - g_own;
    return is_left ? gain_of(g_own, h_own, g_other, h_other, loss, sign, leaf, bounds.l2)
                   : gain_of(g_other, h_other, g_own, h_own, loss, sign, leaf, bounds.l2);
}

__device__ inline void keep_better(Split &best, const Split &other) {
    if (other.gain > 0 &&
        (other.gain > best.gain || (other.gain == best.gain && other.place < best.place)))
        best = other;
}

// Sum of the lanes below.
__device__ inline long long sum_below(long long value) {
    const int lane = threadIdx.x % 32;
    long long sum = value;
    // An inclusive scan over the warp (Hillis and Steele 1986), less the own value.
    for (int offset = 1; offset < 32; offset *= 2) {
        const long long other = __shfl_sync(ALL_LANES, sum, lane < offset ? lane : lane - offset);
        if (lane >= offset) sum += other;
    }
    return sum - value;
}

__device__ inline void write_split(const Split &split, long long feature, bool of_categories,
                                   const unsigned long long *bits, long long *facts) {
    facts[0] = __double_as_longlong(split.gain);
    const bool found = split.gain > 0;
    facts[1] = found ? feature : 0;
    facts[2] = found ? split.bin : 0;
    facts[3] = found ? split.missing_left : 0;
    facts[4] = found ? split.g : 0;
    facts[5] = found ? split.h : 0;
    facts[6] = found ? split.n : 0;
    facts[7] = found && of_categories;
    for (int k = 0; k < 4; ++k)
        facts[8 + k] = found && of_categories ? static_cast<long long>(bits[k]) : 0;
}

// The best split by a number, of all lanes; each gets it.
__device__ inline Split split_by_number(const long long *hist, int count, bool missing, int sign,
                                        int channels, const Leaf &leaf, const Bounds &bounds) {
    const int lane = threadIdx.x % 32;
    // Eight neighbouring bins a lane: their sums, a scan of these over the lanes, and then each
    // bin's prefix.
    const int first = lane * OWN, last = count < first + OWN ? count : first + OWN;
    long long g = 0, h = 0, n = 0;
    for (int b = first; b < last; ++b) {
        g += hist[b * channels];
        h += hist[b * channels + 1];
        n += hist[b * channels + channels - 1];
    }
    const long long g_below = sum_below(g), h_below = sum_below(h), n_below = sum_below(n);
    const long long g_all = __shfl_sync(ALL_LANES, g_below + g, 31);
    const long long h_all = __shfl_sync(ALL_LANES, h_below + h, 31);
    const long long n_all = __shfl_sync(ALL_LANES, n_below + n, 31);
    Split best = {-1.0, 4 * BINS, 0, 0, 0, 0, 0};
    g = g_below;
    h = h_below;
    n = n_below;
    for (int b = first; b < last; ++b) {
        g += hist[b * channels];
        h += hist[b * channels + 1];
        n += hist[b * channels + channels - 1];
        if (b < count - 1 + missing) {
            const double gain = gain_at(g, h, n, true, sign, leaf, bounds);
            // Places count in the order of the CPU's loops, so that ties fall to the same split.
            keep_better(best, {gain, b, b, 0, g, h, n});
        }
        if (missing && b < count - 1) {
            // Missing values go left: what lies right of the bin is the other side.
            const long long gr = g_all - g, hr = h_all - h, nr = n_all - n;
            const double gain = gain_at(gr, hr, nr, false, sign, leaf, bounds);
            keep_better(best, {gain, BINS + count - b, b, 1, leaf.g - gr, leaf.h - hr,
                               leaf.n - nr});
        }
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        // The best of all lanes, by exchanges; keep_better does not depend on the order.
        Split other;
        other.gain = __shfl_xor_sync(ALL_LANES, best.gain, offset);
        other.place = __shfl_xor_sync(ALL_LANES, best.place, offset);
        other.bin = __shfl_xor_sync(ALL_LANES, best.bin, offset);
        other.missing_left = __shfl_xor_sync(ALL_LANES, best.missing_left, offset);
        other.g = __shfl_xor_sync(ALL_LANES, best.g, offset);
        other.h = __shfl_xor_sync(ALL_LANES, best.h, offset);
        other.n = __shfl_xor_sync(ALL_LANES, best.n, offset);
        keep_better(best, other);
    }
    return best;
}

// Categories of a warp that have rows enough: their bins, values, and bins in the values' order;
// bits of those that go left.
struct Categories {
    double values[BINS];
    unsigned long long bits[4];
    short bins[BINS], order[BINS];
};

// The best split by a category, in the order of their gradients; the first lane gets it.
__device__ inline Split split_by_category(const long long *hist, int count, bool missing,
                                          int last_bin, int sign, int channels, const Leaf &leaf,
                                          const Bounds &bounds, Categories &some) {
    const int lane = threadIdx.x % 32;
    // As `tree_kernels._find_best_categories`.
    const double support = leaf.n / (leaf.h * bounds.h_unit), least = 10.0;
    int n = 0;
    for (int from = 0; from < count + missing; from += 32) {
        const int at = from + lane, b = at < count ? at : last_bin;
        const bool there = at < count + missing;
        const double h = there ? hist[b * channels + 1] * bounds.h_unit : 0.0;
        const bool enough = there && h * support >= least;
        const unsigned of_warp = __ballot_sync(ALL_LANES, enough);
        if (enough) {
            const int k = n + __popc(of_warp & lanes_below());
            some.bins[k] = static_cast<short>(b);
            some.values[k] = hist[b * channels] * bounds.g_unit / (h + least);
        }
        n += __popc(of_warp);
    }
    __syncwarp();
    for (int k = lane; k < n; k += 32) {
        // Sorting by counting: a category's place is the number of smaller ones. 256 at most.
        int rank = 0;
        for (int other = 0; other < n; ++other)
            rank += some.values[other] < some.values[k] ||
                    (some.values[other] == some.values[k] && other < k);
        some.order[rank] = some.bins[k];
    }
    __syncwarp();
    Split best = {-1.0, 0, 0, 0, 0, 0, 0};
    // The prefixes are few: one lane goes through them, as the CPU does.
    if (lane > 0 || n <= 1) return best;
    for (int direction = 0; direction < 2; ++direction) {
        long long g = 0, h = 0, rows = 0;
        for (int i = 0; i < (n + 1) / 2 - direction; ++i) {
            const int b = some.order[direction ? n - 1 - i : i];
            g += hist[b * channels];
            h += hist[b * channels + 1];
            rows += hist[b * channels + channels - 1];
            const double gain = gain_at(g, h, rows, true, sign, leaf, bounds);
            if (!(gain > best.gain && gain > 0)) continue;
            best = {gain, 0, 0, 0, g, h, rows};
            for (int k = 0; k < 4; ++k) some.bits[k] = 0;
            for (int k = 0; k <= i; ++k) {
                const int c = some.order[direction ? n - 1 - k : k];
                if (missing && c == last_bin) {
                    best.missing_left = 1;
                    continue;
                }
                some.bits[c >> 6] |= 1ull << (c & 63);
            }
        }
    }
    return best;
}

// leaves (n_leaves,)
// allowed (n_leaves, d)      features that a leaf may be split by
// counts (d,)                bins of values
// missing, categorical, signs (d,)
// splits (n_leaves, d, N_SPLIT_FACTS)   the best split by each feature; its gain is -1 where there is
//                                       none
// n_leaves, d, last_bin, channels
// g_unit, h_unit, l2, least_h, least_n
extern "C" __global__ void __launch_bounds__(THREADS) tree_splits(
    const Leaf *__restrict__ leaves, const unsigned char *__restrict__ allowed,
    const int *__restrict__ counts, const unsigned char *__restrict__ missing,
    const unsigned char *__restrict__ categorical, const signed char *__restrict__ signs,
    long long *__restrict__ splits, long long n_leaves, long long d, long long last_bin,
    long long channels, double g_unit, double h_unit, double l2, double least_h,
    long long least_n) {
    extern __shared__ __align__(16) unsigned char shared[];
    Categories *of_warps = reinterpret_cast<Categories *>(shared);
    const int warp = threadIdx.x / 32;
    const Bounds bounds = {g_unit, h_unit, l2, least_h, least_n};
    const long long stride = static_cast<long long>(gridDim.x) * WARPS;
    for (long long e = static_cast<long long>(blockIdx.x) * WARPS + warp; e < n_leaves * d;
         e += stride) {
        // Warps take (leaf, feature) pairs.
        const long long j = e % d;
        const Leaf leaf = leaves[e / d];
        const long long *hist = leaf.hist + j * leaf.stride;
        Split best = {-1.0, 0, 0, 0, 0, 0, 0};
        if (allowed[e] && categorical[j])
            best = split_by_category(hist, counts[j], missing[j], static_cast<int>(last_bin),
                                     signs[j], static_cast<int>(channels), leaf, bounds,
                                     of_warps[warp]);
        else if (allowed[e])
            best = split_by_number(hist, counts[j], missing[j], signs[j],
                                   static_cast<int>(channels), leaf, bounds);
        if (threadIdx.x % 32 == 0)
            write_split(best, j, categorical[j], of_warps[warp].bits, splits + e * N_SPLIT_FACTS);
    }
}

// splits (n_leaves, d, N_SPLIT_FACTS)
// best (n_leaves, N_SPLIT_FACTS)      of all features
// n_leaves, d
extern "C" __global__ void __launch_bounds__(THREADS) tree_best(
    const long long *__restrict__ splits, long long *__restrict__ best, long long n_leaves,
    long long d) {
    const int lane = threadIdx.x % 32;
    const long long stride = static_cast<long long>(gridDim.x) * WARPS;
    for (long long leaf = static_cast<long long>(blockIdx.x) * WARPS + threadIdx.x / 32;
         leaf < n_leaves; leaf += stride) {
        // Lanes take features in turns; of equal gains the first feature counts.
        Split own = {-1.0, d, 0, 0, 0, 0, 0};
        for (long long j = lane; j < d; j += 32) {
            const double gain = __longlong_as_double(splits[(leaf * d + j) * N_SPLIT_FACTS]);
            keep_better(own, {gain, j, 0, 0, 0, 0, 0});
        }
        for (int offset = 16; offset > 0; offset /= 2) {
            Split other = {};
            other.gain = __shfl_xor_sync(ALL_LANES, own.gain, offset);
            other.place = __shfl_xor_sync(ALL_LANES, own.place, offset);
            keep_better(own, other);
        }
        const long long j = own.gain > 0 ? own.place : 0;  // that of no feature has no split
        if (lane < N_SPLIT_FACTS)
            best[leaf * N_SPLIT_FACTS + lane] =
                own.gain > 0 ? splits[(leaf * d + j) * N_SPLIT_FACTS + lane]
                             : (lane ? 0 : __double_as_longlong(-1.0));
    }
}
