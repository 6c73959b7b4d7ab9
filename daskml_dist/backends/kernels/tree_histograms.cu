// Histograms of growing trees, of whole numbers: their sums are exact, so that the order of the
// threads does not matter.
//
// A block adds up some rows of a leaf and 8 or 16 features in shared memory, in the numbers that
// `daskml_dist.backends.tree_kernels` packs gradients, hessians and rows into, and adds what they
// hold to the result, before they can overflow. Shared memory has no addition of 64 bits; it is
// made of two of 32, the carry of one going to the other.
#include "tree_tasks.cuh"

// Bins of a feature in shared memory; bytes of a block's sums, of all features.
#define BINS 256
#define SHARED 32768

__device__ inline void add_64(unsigned *low, unsigned *high, unsigned long long value) {
    // Low half first; a sum that wrapped is smaller than what was there, which is the carry.
    const unsigned part = static_cast<unsigned>(value);
    const unsigned before = atomicAdd(low, part);
    const unsigned carry = before + part < before;
    atomicAdd(high, static_cast<unsigned>(value >> 32) + carry);
}

__device__ inline void add_to(long long *at, long long value) {
    if (value)
        atomicAdd(reinterpret_cast<unsigned long long *>(at),
                  static_cast<unsigned long long>(value));
}

// bins (n, words)       eight features of a row in a word
// packed (n,)           gradients and hessians
// index (n,)            numbers of rows
// tasks (n_tasks,)
// middles (n_tasks,)    where the rows that go right begin; not read of tasks of all rows
// out                   gradients, hessians (unless they are 1) and rows of a bin, added to; bins
//                       lie behind each other, features and slots `stride` numbers apart
// n_tasks, n_units, n_groups, chunk, words, d, n_bins, mode, feature_stride, slot_stride
//                       a unit: `chunk` rows at most, and a group of features
extern "C" __global__ void __launch_bounds__(THREADS) tree_histograms(
    const unsigned long long *__restrict__ bins, const long long *__restrict__ packed,
    const int *__restrict__ index, const Task *__restrict__ tasks,
    const long long *__restrict__ middles, long long *__restrict__ out, long long n_tasks,
    long long n_units, long long n_groups, long long chunk, long long words, long long d,
    long long n_bins, long long mode, long long feature_stride, long long slot_stride) {
    extern __shared__ __align__(16) unsigned char shared[];
    unsigned *sums = reinterpret_cast<unsigned *>(shared);
    // EXACT needs two numbers a bin, so 8 features fill the shared memory; else 16 do.
    const int own_words = mode == EXACT ? 1 : 2;
    const int plane = own_words * 8 * BINS;  // the halves of numbers lie in planes of their own
    for (long long unit = blockIdx.x; unit < n_units; unit += gridDim.x) {
        // Which leaf, which features, and which of its rows this block takes.
        const long long at = place_of<&Task::first_unit>(tasks, n_tasks, unit);
        const Task task = tasks[at];
        const long long group = (unit - task.first_unit) % n_groups;
        const long long begin = task.side == 1 ? middles[at] : task.start;
        const long long end = task.side == 0 ? middles[at] : task.stop;
        const long long start = begin + (unit - task.first_unit) / n_groups * chunk;
        const long long stop = end < start + chunk ? end : start + chunk;
        if (start >= stop) continue;  // all threads of the block alike
        __syncthreads();              // the last unit's sums are read
        for (int e = threadIdx.x; e < SHARED / 4; e += THREADS) sums[e] = 0;
        __syncthreads();
        // A thread takes a row and a word, 8 bins, at a time.
        for (long long e = threadIdx.x; e < (stop - start) * own_words; e += THREADS) {
            const long long row = index[start + e / own_words];
            const int part = static_cast<int>(e % own_words);
            const long long word = group * own_words + part;
            if (word >= words) continue;
            const unsigned long long of_row = bins[row * words + word];
            // For EXACT the packed number is split: gradients in one sum, hessians and a count in
            // the other.
            const long long value = packed[row];
            const unsigned long long first =
                mode == EXACT ? static_cast<unsigned long long>(value >> 32)
                              : static_cast<unsigned long long>(value);
            const unsigned long long second =
                ((static_cast<unsigned long long>(value) & 0xffffffffu) << 16) + 1;
            // Rows of one bin meet at one address; additions are atomic, and exact in any order.
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                if (word * 8 + k >= d) break;
                const int place = (part * 8 + k) * BINS + static_cast<int>(of_row >> 8 * k & 255);
                add_64(sums + place, sums + plane + place, first);
                if (mode == EXACT)
                    add_64(sums + 2 * plane + place, sums + 3 * plane + place, second);
            }
        }
        __syncthreads();
        // Unpack each bin, as `_unpack_sums` of the CPU, and add it to the leaf's histogram: a
        // leaf's rows are spread over many blocks.
        for (int e = threadIdx.x; e < plane; e += THREADS) {
            const long long j = group * own_words * 8 + e / BINS, b = e % BINS;
            if (j >= d || b >= n_bins) continue;
            const long long value = static_cast<long long>(
                static_cast<unsigned long long>(sums[plane + e]) << 32 | sums[e]);
            long long *of_bin =
                out + task.slot * slot_stride + j * feature_stride + b * (mode == CONSTANT ? 2 : 3);
            if (mode == CONSTANT) {
                const long long count = value & 0xffff;
                add_to(of_bin, (value - count) >> 16);
                add_to(of_bin + 1, count);
            } else if (mode == ROUNDED) {
                const long long count = value & 0x1fff, h = value >> 13 & 0x1ffffff;
                add_to(of_bin, (value - (h << 13) - count) >> 38);
                add_to(of_bin + 1, h);
                add_to(of_bin + 2, count);
            } else {
                const long long both = static_cast<long long>(
                    static_cast<unsigned long long>(sums[3 * plane + e]) << 32 |
                    sums[2 * plane + e]);
                const long long count = both & 0xffff;
                add_to(of_bin, value);
                add_to(of_bin + 1, (both - count) >> 16);
                add_to(of_bin + 2, count);
            }
        }
    }
}
