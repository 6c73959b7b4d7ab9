// Lines of the rows that trees draw: how many, what they are, the sums of a node's, and the side of
// a split that they go to. Sums are of whole numbers, so that the order of lines does not matter.
#include "forest_nodes.cuh"

// Number of times that a row is drawn; an empty table: once.
__device__ inline int times_drawn(long long number, unsigned long long key,
                                  const unsigned long long *table, long long n_table) {
    if (!n_table) return 1;
    const unsigned long long draw =
        hash_of(hash_of(static_cast<unsigned long long>(number) + 1) + key);
    int times = 0;
    while (times < n_table && draw >= table[times]) ++times;
    return times;
}

// numbers (n,)               of the rows, among all
// weight (n,)
// keys (n_trees,)
// table (n_table,)           cumulated probabilities of 0, 1, ... draws, of 2**64
// counts (n_trees, n_tiles)  rows of a tile that a tree draws
// n, n_trees, n_tiles, n_table
extern "C" __global__ void __launch_bounds__(THREADS) forest_count(
    const long long *__restrict__ numbers, const long long *__restrict__ weight,
    const unsigned long long *__restrict__ keys, const unsigned long long *__restrict__ table,
    long long *__restrict__ counts, long long n, long long n_trees, long long n_tiles,
    long long n_table) {
    for (long long e = first_warp(); e < n_trees * n_tiles; e += all_warps()) {
        // First pass: count, so that each tile of each tree knows where its lines go.
        const unsigned long long key = keys[e / n_tiles];
        const long long start = e % n_tiles * TILE;
        int count = 0;
        for (int k = threadIdx.x % 32; k < TILE && start + k < n; k += 32)
            count += weight[start + k] && times_drawn(numbers[start + k], key, table, n_table);
        for (int offset = 16; offset > 0; offset /= 2)
            count += __shfl_xor_sync(ALL_LANES, count, offset);
        if (threadIdx.x % 32 == 0) counts[e] = count;
    }
}

// factor (n_trees, n_classes)  more weight of each class, or null
// slot (n,)                    classes
// more (n, n_line - 2)         the rest of the lines, of one draw
// ends (n_trees, n_tiles)      where the lines of a tile end
// lines (n_lines, n_line)
// bits                         that count rows
extern "C" __global__ void __launch_bounds__(THREADS) forest_draw(
    const long long *__restrict__ numbers, const long long *__restrict__ weight,
    const unsigned long long *__restrict__ keys, const unsigned long long *__restrict__ table,
    const long long *__restrict__ factor, const int *__restrict__ slot,
    const long long *__restrict__ more, const long long *__restrict__ ends,
    long long *__restrict__ lines, long long n, long long n_trees, long long n_tiles,
    long long n_table, long long n_classes, long long bits, long long n_line) {
    const long long width = n_line - 2, summed = width % 2 ? width / 2 + 1 : 0;
    for (long long e = first_warp(); e < n_trees * n_tiles; e += all_warps()) {
        const long long tree = e / n_tiles, start = e % n_tiles * TILE;
        long long place = e ? ends[e - 1] : 0;
        for (int from = 0; from < TILE && start + from < n; from += 32) {
            const long long i = start + from + threadIdx.x % 32;
            long long w = i < n ? weight[i] : 0;
            const int times = w ? times_drawn(numbers[i], keys[tree], table, n_table) : 0;
            // Second pass: lanes that draw their row write its line behind those of the lanes
            // below, in the rows' order.
            const unsigned drawn = __ballot_sync(ALL_LANES, times > 0);
            if (times) {
                if (factor) w *= factor[tree * n_classes + slot[i]];
                long long *line = lines + (place + __popc(drawn & lanes_below())) * n_line;
                line[0] = i | static_cast<long long>(slot[i]) << 32;
                line[1] = (w * times << bits) + 1;
                for (long long k = 0; k < width; ++k)
                    line[2 + k] = k < summed ? more[i * width + k] * times : more[i * width + k];
            }
            place += __popc(drawn);
        }
    }
}

// Bits of a number as a whole one, of the same order.
__device__ inline long long ordered(double x) {
    const long long bits = __double_as_longlong(x);
    return bits < 0 ? bits ^ 0x7fffffffffffffffll : bits;
}

// Add a number of each lane to a sum.
__device__ inline void add_warp(long long *at, long long value) {
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_xor_sync(ALL_LANES, value, offset);
    if (threadIdx.x % 32 == 0 && value) add_to(at, value);
}

// Raise the largest to a number of each lane.
__device__ inline void raise_warp(long long *at, long long value) {
    for (int offset = 16; offset > 0; offset /= 2) {
        const long long other = __shfl_xor_sync(ALL_LANES, value, offset);
        if (other > value) value = other;
    }
    if (threadIdx.x % 32 == 0) atomicMax(at, value);
}

// Add each lane's value to the sum of its slot; -1: to none. Lanes of one slot add together.
__device__ inline void add_slots(long long *sums, long long slot, long long value) {
    unsigned left = __ballot_sync(ALL_LANES, slot >= 0);
    while (left) {
        // Classes of 32 lines repeat: one addition a distinct class of the warp, instead of 32 that
        // meet at one address.
        const int from = lowest(left);
        const long long own = __shfl_sync(ALL_LANES, slot, from);
        add_warp(sums + own, slot == own ? value : 0);
        left &= ~__ballot_sync(ALL_LANES, slot == own);
    }
}

// lines (., n_line)
// nodes (n_nodes,)
// sums (n_nodes, n_sums + 2)        of `forest_cuts.node_worth`, the packed total, of what impurity
//                                   is made; added to
// reach (n_nodes, 2 * n_outputs)    of each output minus the smallest target, and the largest, as
//                                   whole numbers of the same order; raised
// n_nodes, n_tiles, n_line, n_sums, n_outputs
extern "C" __global__ void __launch_bounds__(THREADS) forest_sums(
    const long long *__restrict__ lines, const Node *__restrict__ nodes,
    long long *__restrict__ sums, long long *__restrict__ reach, long long n_nodes,
    long long n_tiles, long long n_line, long long n_sums, long long n_outputs) {
    for (long long tile = first_warp(); tile < n_tiles; tile += all_warps()) {
        const long long at = node_of(nodes, n_nodes, tile);
        const long long start = nodes[at].start + (tile - nodes[at].first_tile) * TILE;
        const long long stop = nodes[at].stop < start + TILE ? nodes[at].stop : start + TILE;
        long long *own = sums + at * (n_sums + 2), *of = reach + at * 2 * n_outputs;
        for (long long from = start; from < stop; from += 32) {
            const bool there = from + threadIdx.x % 32 < stop;
            // Lanes behind the end read a line that is there, and add zeros.
            const long long *line = lines + (there ? from + threadIdx.x % 32 : from) * n_line;
            const long long packed = there ? line[1] : 0;
            add_warp(own + n_sums, packed);
            if (n_line % 2 == 0) {
                add_slots(own, there ? line[0] >> 32 : -1, packed);
                for (long long k = 2; k < n_line; ++k) add_slots(own, there ? line[k] : -1, packed);
                continue;
            }
            add_warp(own, packed);
            for (long long k = 0; k < n_outputs; ++k) {
                add_warp(own + 1 + k, there ? line[2 + k] : 0);
                const double target = __longlong_as_double(line[3 + n_outputs + k]);
                raise_warp(of + 2 * k, ordered(-target));
                raise_warp(of + 2 * k + 1, ordered(target));
            }
            add_warp(own + n_sums + 1, there ? line[2 + n_outputs] : 0);
        }
    }
}

// bins (., width)
// lines (., n_line)
// nodes (n_nodes,)       that are split
// parted (., n_line)     takes the lines of these nodes, those that go left first
// ends (n_nodes, 2)      where lines that go left end so far, and where those that go right begin
// n_nodes, n_tiles, width, n_line, missing
extern "C" __global__ void __launch_bounds__(THREADS) forest_part(
    const unsigned char *__restrict__ bins, const long long *__restrict__ lines,
    const Node *__restrict__ nodes, long long *__restrict__ parted, long long *__restrict__ ends,
    long long n_nodes, long long n_tiles, long long width, long long n_line, long long missing) {
    for (long long tile = first_warp(); tile < n_tiles; tile += all_warps()) {
        const long long at = node_of(nodes, n_nodes, tile);
        const Node node = nodes[at];
        const long long start = node.start + (tile - node.first_tile) * TILE;
        const long long stop = node.stop < start + TILE ? node.stop : start + TILE;
        for (long long from = start; from < stop; from += 32) {
            const long long q = from + threadIdx.x % 32;
            const bool there = q < stop;
            bool goes = false;
            if (there) {
                const long long b = bins[(lines[q * n_line] & ROW) * width + node.feature];
                goes = b != missing ? b <= node.last : node.missing_left != 0;
            }
            const unsigned of_left = __ballot_sync(ALL_LANES, goes);
            const unsigned of_right = __ballot_sync(ALL_LANES, there && !goes);
            long long left = 0, right = 0;
            if (threadIdx.x % 32 == 0) {
                // The warp's first lane takes room for all: from the front for left, from the back
                // for right. The order within a node may differ from the CPU's, but sums of whole
                // numbers do not depend on it.
                left = add_to(ends + 2 * at, __popc(of_left));
                right = add_to(ends + 2 * at + 1, -__popc(of_right)) - __popc(of_right);
            }
            left = __shfl_sync(ALL_LANES, left, 0);
            right = __shfl_sync(ALL_LANES, right, 0);
            if (!there) continue;
            const long long to = goes ? left + __popc(of_left & lanes_below())
                                      : right + __popc(of_right & lanes_below());
            for (long long k = 0; k < n_line; ++k)
                parted[to * n_line + k] = lines[q * n_line + k];
        }
    }
}
