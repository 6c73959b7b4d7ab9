// Where nodes of forests are best split: features that they draw, histograms of these, the best (or
// drawn) cut of each, and the best of a node's. They are those of the compiled loops of
// `daskml_dist.backends` (forest_kernels, forest_cuts), to the last bit. Compiled
// without fused multiply-adds.
//
// A warp takes a node and a feature; of a histogram each lane has eight bins.
#include "forest_nodes.cuh"
#include "logarithm.cuh"

#define BINS 256
// Bins of a lane.
#define OWN (BINS / 32)
// Facts about a cut before the sums of the left child: worth and threshold (as bits), whether the
// feature varies, the cut.
#define N_CUT_FACTS 6
#define LOG_2 0.6931471805599453

// Numbers of the criteria; from SQUARED on they are of regression.
enum { GINI, ENTROPY, SQUARED, POISSON };
// Where the facts of a fit are; see `forest_cuts`.
enum { KIND, BITS, LEAST_ROWS, LEAST_WEIGHT, ANYWHERE, MISSING, D, FEATURES, MAX_DEPTH, MIN_SPLIT,
       FIRST };

__device__ inline double not_a_number() { return __longlong_as_double(0x7ff8000000000000ll); }
__device__ inline double infinity() { return __longlong_as_double(0x7ff0000000000000ll); }

// nodes (n_nodes,)
// order (d, n_threads)       of each thread 0, 1, ..., d - 1, before and after
// swaps (last, n_threads)
// features (n_nodes, last - first)   that a node draws, of numbers `first` to `last`
// n_nodes, n_threads, d, first, last
extern "C" __global__ void __launch_bounds__(THREADS) forest_features(
    const Node *__restrict__ nodes, int *__restrict__ order, int *__restrict__ swaps,
    int *__restrict__ features, long long n_nodes, long long n_threads, long long d,
    long long first, long long last) {
    const long long thread = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (thread >= n_threads) return;
    for (long long at = thread; at < n_nodes; at += n_threads) {
        const unsigned long long path = nodes[at].path;
        // Fisher-Yates, with the draws of `forest_kernels.draw_next_feature`; a thread has a node,
        // and lists lie column by column, so that threads of a warp touch neighbours.
        for (long long k = 0; k < last; ++k) {
            const unsigned long long draw =
                hash_of(path + 0x5851F42D4C957F2Dull * static_cast<unsigned long long>(k + 1));
            const long long from =
                k + static_cast<long long>(draw % static_cast<unsigned long long>(d - k));
            swaps[k * n_threads + thread] = static_cast<int>(from);
            const int feature = order[from * n_threads + thread];
            order[from * n_threads + thread] = order[k * n_threads + thread];
            order[k * n_threads + thread] = feature;
            if (k >= first) features[at * (last - first) + k - first] = feature;
        }
        // Back to 0, 1, ..., d - 1 for the thread's next node.
        for (long long k = last - 1; k >= 0; --k) {
            const long long from = swaps[k * n_threads + thread];
            const int feature = order[from * n_threads + thread];
            order[from * n_threads + thread] = order[k * n_threads + thread];
            order[k * n_threads + thread] = feature;
        }
    }
}

// bins (., width)
// lines (., n_line)
// nodes (n_nodes,)
// features (n_nodes, m)
// hist (n_nodes, m, 256, n_sums)    added to
// n_nodes, n_tiles, m, width, n_line, n_sums
extern "C" __global__ void __launch_bounds__(THREADS) forest_histograms(
    const unsigned char *__restrict__ bins, const long long *__restrict__ lines,
    const Node *__restrict__ nodes, const int *__restrict__ features, long long *__restrict__ hist,
    long long n_nodes, long long n_tiles, long long m, long long width, long long n_line,
    long long n_sums) {
    for (long long unit = first_warp(); unit < n_tiles * m; unit += all_warps()) {
        // A warp takes a tile of a node's lines and one of the node's features.
        const long long tile = unit / m, k = unit % m, at = node_of(nodes, n_nodes, tile);
        const long long start = nodes[at].start + (tile - nodes[at].first_tile) * TILE;
        const long long stop = nodes[at].stop < start + TILE ? nodes[at].stop : start + TILE;
        const int feature = features[at * m + k];
        long long *own = hist + (at * m + k) * BINS * n_sums;
        for (long long q = start + threadIdx.x % 32; q < stop; q += 32) {
            const long long *line = lines + q * n_line;
            const long long packed = line[1];
            long long *sums = own + bins[(line[0] & ROW) * width + feature] * n_sums;
            // Odd lines are of regression, even ones of classes; see forest_kernels.
            if (n_line % 2) {
                add_to(sums, packed);
                for (long long v = 1; v < n_sums; ++v) add_to(sums + v, line[1 + v]);
                continue;
            }
            add_to(sums + (line[0] >> 32), packed);
            for (long long v = 2; v < n_line; ++v)
                if (line[v] >= 0) add_to(sums + line[v], packed);
        }
    }
}

// Sums of the left or right child of a cut: those of the bins up to it, and of missing values.
struct Side {
    const long long *below, *missing, *all;
    bool with_missing, is_right;
    __device__ long long operator()(long long v) const {
        const long long left = below[v] + (with_missing ? missing[v] : 0);
        return is_right ? all[v] - left : left;
    }
};

// Weight of a node times what its impurity lacks of a constant.
__device__ inline double worth(long long kind, const Side &sums, long long n_sums, long long total,
                               long long bits) {
    // The operations of `forest_cuts.node_worth`, in their order: fused or reordered, the last bits
    // would choose other splits.
    const double weight = static_cast<double>(total >> bits);
    double found = 0.0;
    if (kind == SQUARED) {
        for (long long k = 1; k < n_sums; ++k) {
            const double s = static_cast<double>(sums(k));
            found += s * s / weight;
        }
        return found;
    }
    if (kind == POISSON) {
        for (long long k = 1; k < n_sums; ++k) {
            const double s = static_cast<double>(sums(k));
            found += s > 0 ? s * logarithm(s / weight) : -infinity();
        }
        return found;
    }
    if (kind == GINI) {
        for (long long c = 0; c < n_sums; ++c) {
            const double w = static_cast<double>(sums(c) >> bits);
            found += w * w;
        }
        return found / weight;
    }
    for (long long c = 0; c < n_sums; ++c) {
        const double w = static_cast<double>(sums(c) >> bits);
        if (w > 0) found += w * (logarithm(w / weight) / LOG_2);
    }
    return found;
}

// Answer of a node, as monotonic constraints compare it.
__device__ inline double middle(long long kind, const Side &sums, long long total, long long bits) {
    const long long s = kind >= SQUARED ? sums(1) : sums(1) >> bits;
    return static_cast<double>(s) / static_cast<double>(total >> bits);
}

// Test of a cut: both children may be.
__device__ inline bool fits(const long long *facts, const Side &left, long long l_total,
                            const Side &right, long long r_total, int sign, const Node &node) {
    const long long bits = facts[BITS], mask = (1ll << bits) - 1;
    if ((l_total & mask) < facts[LEAST_ROWS] || (r_total & mask) < facts[LEAST_ROWS]) return false;
    if (l_total >> bits < facts[LEAST_WEIGHT] || r_total >> bits < facts[LEAST_WEIGHT])
        return false;
    if (!(l_total >> bits) || !(r_total >> bits)) return false;
    if (!sign) return true;
    const double a = middle(facts[KIND], left, l_total, bits);
    const double b = middle(facts[KIND], right, r_total, bits);
    if ((a < b ? a : b) < node.low || (a < b ? b : a) > node.high) return false;
    return (a - b) * sign <= 0;
}

// The first of some numbers, and the last.
__device__ inline int least_of_warp(int value) {
    for (int offset = 16; offset > 0; offset /= 2) {
        const int other = __shfl_xor_sync(ALL_LANES, value, offset);
        if (other < value) value = other;
    }
    return value;
}

__device__ inline int most_of_warp(int value) { return -least_of_warp(-value); }

// Make each bin's sums those of all bins up to it.
__device__ inline void cumulate(long long *hist, int own, long long n_sums) {
    const int lane = threadIdx.x % 32;
    // For each sum: the lane's eight bins, a scan over lanes, and prefixes back into the histogram.
    for (long long v = 0; v < n_sums; ++v) {
        long long sum = 0;
        for (int k = 0; k < own; ++k) sum += hist[(OWN * lane + k) * n_sums + v];
        long long below = sum;
        for (int offset = 1; offset < 32; offset *= 2) {
            const long long other =
                __shfl_sync(ALL_LANES, below, lane < offset ? lane : lane - offset);
            if (lane >= offset) below += other;
        }
        below -= sum;
        for (int k = 0; k < own; ++k) {
            below += hist[(OWN * lane + k) * n_sums + v];
            hist[(OWN * lane + k) * n_sums + v] = below;
        }
    }
}

// Cut: its value, its place among all that are looked at.
struct Cut {
    double value;
    int place;
};

// A cut that a lane looks at; -1: it may not be.
__device__ inline void look_at(Cut &best, const long long *facts, const long long *hist, int b,
                               int side, const long long *sums, long long n_sums, int sign,
                               const Node &node) {
    const long long *missing = hist + facts[MISSING] * n_sums;
    // Prefix sums in the histogram are the left child; the right one is the node's sums less these.
    const Side left = {hist + b * n_sums, missing, sums, side != 0, false};
    const Side right = {hist + b * n_sums, missing, sums, side != 0, true};
    long long l_total = 0;
    for (long long v = 0; v < facts[FIRST]; ++v) l_total += left(v);
    const long long r_total = sums[n_sums] - l_total;
    if (!fits(facts, left, l_total, right, r_total, sign, node)) return;
    const double value = worth(facts[KIND], left, n_sums, l_total, facts[BITS]) +
                         worth(facts[KIND], right, n_sums, r_total, facts[BITS]);
    if (value > best.value) best = {value, side * BINS + b};
}

// The last bin left of a cut drawn between the smallest and the largest value, and the threshold;
// bins that hold rows are `mine` of each lane.
__device__ inline int drawn_cut(const double *low, const double *high, unsigned mine, int first,
                                int last, unsigned long long draw, double &at) {
    at = not_a_number();
    if (first == last) return first;
    // 53 bits of the draw, as a number of [0, 1).
    const double share = static_cast<double>(draw >> 11) * (1.0 / 9007199254740992.0);
    at = low[first] + share * (high[last] - low[first]);
    int stop = last;
    for (int k = OWN - 1; k >= 0; --k) {
        const int b = OWN * (threadIdx.x % 32) + k;
        if (mine >> k & 1 && b > first && b < last && high[b] > at &&
            !((low[b] + high[b]) / 2 <= at))
            stop = b;
    }
    stop = least_of_warp(stop);
    int cut = -1;
    for (int k = 0; k < OWN; ++k) {
        const int b = OWN * (threadIdx.x % 32) + k;
        if (mine >> k & 1 && b < stop) cut = b;
    }
    return most_of_warp(cut);
}

// The first bin of those that hold rows behind another; -1: there is none.
__device__ inline int next_of(unsigned mine, int b) {
    int next = BINS;
    for (int k = OWN - 1; k >= 0; --k)
        if (mine >> k & 1 && OWN * static_cast<int>(threadIdx.x % 32) + k > b)
            next = OWN * (threadIdx.x % 32) + k;
    next = least_of_warp(next);
    return next == BINS ? -1 : next;
}

// nodes (n_nodes,)
// features (n_nodes, m)
// hist (n_nodes, m, 256, n_sums)    lost
// sums (n_nodes, n_sums + 2)        of the nodes
// facts (n_trees, n_facts)
// signs (d,)                        of monotonic constraints
// low, high (d, 256)                smallest and largest value of each bin
// cuts (n_nodes, m, N_CUT_FACTS + n_sums + 1)   facts about the cut, sums of the left child;
//                                   initially zeros
// first, n_jobs, m, n_sums, n_facts, has_signs   nodes times features, from which on
extern "C" __global__ void __launch_bounds__(THREADS) forest_cuts(
    const Node *__restrict__ nodes, const int *__restrict__ features, long long *__restrict__ hist,
    const long long *__restrict__ sums, const long long *__restrict__ facts,
    const signed char *__restrict__ signs, const double *__restrict__ low,
    const double *__restrict__ high, long long *__restrict__ cuts, long long first_job,
    long long n_jobs, long long m, long long n_sums, long long n_facts, long long has_signs) {
    const int lane = threadIdx.x % 32;
    for (long long job = first_job + first_warp(); job < n_jobs; job += all_warps()) {
        const Node node = nodes[job / m];
        const long long feature = features[job];
        const long long *of_fit = facts + node.tree * n_facts;
        const long long *of_node = sums + job / m * (n_sums + 2);
        long long *own = hist + (job - first_job) * BINS * n_sums;
        long long *says = cuts + job * (N_CUT_FACTS + n_sums + 1);
        const int missing = static_cast<int>(of_fit[MISSING]);
        // Bit k: this lane's k-th bin holds rows.
        unsigned mine = 0;
        bool there = false;
        int n_own = missing - OWN * lane;  // without the bin of missing values
        n_own = n_own < 0 ? 0 : (n_own > OWN ? OWN : n_own);
        for (long long v = 0; v < n_sums; ++v) {
            for (int k = 0; k < n_own; ++k)
                if (own[(OWN * lane + k) * n_sums + v]) mine |= 1u << k;
            there = there || own[missing * n_sums + v];
        }
        int first = BINS, last = -1;
        for (int k = 0; k < OWN; ++k) {
            if (!(mine >> k & 1)) continue;
            if (first == BINS) first = OWN * lane + k;
            last = OWN * lane + k;
        }
        first = least_of_warp(first);
        last = most_of_warp(last);
        const int sign = has_signs ? signs[feature] : 0;
        Cut best = {-infinity(), -1};
        double threshold = not_a_number();
        const bool varies = last >= 0 && (first != last || there);
        if (varies) {
            cumulate(own, n_own, n_sums);
            __syncwarp();
            // Extremely randomised trees: one drawn cut. Else all cuts, with missing values right
            // and then left.
            if (of_fit[ANYWHERE]) {
                const unsigned long long draw =
                    hash_of(hash_of(node.path ^ 0xD1B54A32D192ED03ull) +
                            static_cast<unsigned long long>(feature));
                const int side = there && first != last ? static_cast<int>(draw & 1) : 0;
                double at;
                const int cut = drawn_cut(low + feature * BINS, high + feature * BINS, mine, first,
                                          last, draw, at);
                const int next = next_of(mine, cut);
                if (next < 0 || !(high[feature * BINS + cut] <= at && at < low[feature * BINS + next]))
                    at = not_a_number();
                threshold = at;
                if (lane == cut / OWN)
                    look_at(best, of_fit, own, cut, side, of_node, n_sums, sign, node);
            } else {
                for (int side = 0; side < (there ? 2 : 1); ++side)
                    for (int k = 0; k < n_own; ++k) {
                        const int b = OWN * lane + k;
                        if (mine >> k & 1 && (b != last || (there && !side)))
                            look_at(best, of_fit, own, b, side, of_node, n_sums, sign, node);
                    }
            }
        }
        for (int offset = 16; offset > 0; offset /= 2) {
            const double value = __shfl_xor_sync(ALL_LANES, best.value, offset);
            // The best of the lanes; of equal ones the first in the order of the CPU's loops.
            const int place = __shfl_xor_sync(ALL_LANES, best.place, offset);
            if (place >= 0 && (best.place < 0 || value > best.value ||
                               (value == best.value && place < best.place)))
                best = {value, place};
        }
        const int b = best.place < 0 ? 0 : best.place % BINS;
        const int next = next_of(mine, b);
        if (lane == 0) {
            says[0] = __double_as_longlong(best.value);
            says[1] = __double_as_longlong(best.place < 0 ? 0.0 : threshold);
            says[2] = varies;
            says[3] = best.place < 0 ? 0 : b;
            says[4] = best.place < 0 ? 0 : next;
            says[5] = best.place < 0 ? 0 : best.place / BINS;
        }
        const Side left = {own + b * n_sums, own + missing * n_sums, of_node, best.place >= BINS,
                           false};
        long long total = 0;
        for (long long v = 0; v < of_fit[FIRST]; ++v) total += left(v);
        for (long long v = lane; v < n_sums; v += 32)
            says[N_CUT_FACTS + v] = best.place < 0 ? 0 : left(v);
        if (lane == 0) says[N_CUT_FACTS + n_sums] = best.place < 0 ? 0 : total;
    }
}

// cuts (n_nodes, m, width)   of each feature that a node drew, in their order
// features (n_nodes, m)
// best (n_nodes, 1 + width)  the feature of the best cut (-1: there is none), and the facts about
//                            it; whether any feature varies stands there in any case
// n_nodes, m, width, one     with `one`, the first feature that varies counts alone
extern "C" __global__ void __launch_bounds__(THREADS) forest_best(
    const long long *__restrict__ cuts, const int *__restrict__ features,
    long long *__restrict__ best, long long n_nodes, long long m, long long width, long long one) {
    for (long long at = first_warp(); at < n_nodes; at += all_warps()) {
        const long long *own = cuts + at * m * width;
        // Features in the order in which the node drew them: strictly better ones replace.
        double most = -infinity();
        long long which = -1;
        bool varies = false;
        for (long long k = 0; k < m && !(one && varies); ++k) {
            if (!own[k * width + 2]) continue;
            varies = true;
            const double value = __longlong_as_double(own[k * width]);
            if (!(value > most)) continue;
            most = value;
            which = k;
        }
        long long *out = best + at * (1 + width);
        for (long long v = threadIdx.x % 32; v < width; v += 32)
            out[1 + v] = which < 0 ? 0 : own[which * width + v];
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            out[0] = which < 0 ? -1 : features[at * m + which];
            out[3] = varies;
        }
    }
}
