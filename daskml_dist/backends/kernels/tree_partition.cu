// Rows of some leaves by the side of a split that they go to, in their order; and what leaves
// answer, added to the raw predictions of their rows.
//
// An index holds numbers of rows, those of a leaf being neighbours. `tree_count` counts, for each
// tile, those that go left, `tree_scan` makes places of the counts, `tree_part` writes the
// rows there, in a second index, and `tree_back` brings them back.
#include "tree_tasks.cuh"

// Whether the row at a place of the index goes left.
__device__ inline bool goes_left(const unsigned char *bins, long long width,
                                 const unsigned char *table, const Task &task, int row) {
    return table[bins[row * width + task.feature]];
}

// bins (n, width)       of each row
// index (n,)
// tasks (n_tasks,)
// tables (n_tasks, 256) of each bin, whether it goes left
// counts (n_tiles,)     rows of each tile that go left
// n_tasks, n_tiles, width
extern "C" __global__ void __launch_bounds__(THREADS) tree_count(
    const unsigned char *__restrict__ bins, const int *__restrict__ index,
    const Task *__restrict__ tasks, const unsigned char *__restrict__ tables,
    int *__restrict__ counts, long long n_tasks, long long n_tiles, long long width) {
    extern __shared__ __align__(16) unsigned char shared[];
    int *of_warp = reinterpret_cast<int *>(shared);
    for (long long tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        const long long at = place_of<&Task::first_tile>(tasks, n_tasks, tile);
        const Task task = tasks[at];
        const long long start = task.start + (tile - task.first_tile) * TILE;
        // Rows of the tile that go left: by thread, by warp, and by block.
        int count = 0;
        for (int k = threadIdx.x; k < TILE; k += THREADS)
            if (start + k < task.stop)
                count += goes_left(bins, width, tables + at * 256, task, index[start + k]);
        for (int offset = 16; offset > 0; offset /= 2)
            count += __shfl_xor_sync(ALL_LANES, count, offset);
        __syncthreads();  // the last tile's are read
        if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = count;
        __syncthreads();
        if (threadIdx.x == 0) {
            int total = 0;
            for (int w = 0; w < WARPS; ++w) total += of_warp[w];
            counts[tile] = total;
        }
    }
}

// counts (n_tiles,)     become rows that go left in the task's tiles before
// middles (n_tasks,)    where the rows that go right begin
// n_tasks, n_tiles
extern "C" __global__ void __launch_bounds__(THREADS) tree_scan(
    const Task *__restrict__ tasks, int *__restrict__ counts, long long *__restrict__ middles,
    long long n_tasks, long long n_tiles) {
    extern __shared__ __align__(16) unsigned char shared[];
    int *sums = reinterpret_cast<int *>(shared);
    for (long long at = blockIdx.x; at < n_tasks; at += gridDim.x) {
        const long long first = tasks[at].first_tile;
        const long long last = at + 1 < n_tasks ? tasks[at + 1].first_tile : n_tiles;
        // A block scans a task's tiles: each thread sums a run of them, sees what lies before, and
        // writes the places of its own.
        const long long each = (last - first + THREADS - 1) / THREADS;
        const long long from = first + each * threadIdx.x;
        const long long to = from + each < last ? from + each : last;
        int own = 0;
        for (long long tile = from; tile < to; ++tile) own += counts[tile];
        __syncthreads();  // the last task's are read
        sums[threadIdx.x] = own;
        __syncthreads();
        int before = 0;
        // 256 sums in shared memory: a loop costs less than a tree of barriers.
        for (int k = 0; k < static_cast<int>(threadIdx.x); ++k) before += sums[k];
        for (long long tile = from; tile < to; ++tile) {
            const int count = counts[tile];
            counts[tile] = before;
            before += count;
        }
        if (threadIdx.x == THREADS - 1) middles[at] = tasks[at].start + before;
    }
}

// counts, middles       as `tree_scan` left them
// parted (n,)           the index as it becomes, where the tasks' rows are
extern "C" __global__ void __launch_bounds__(THREADS) tree_part(
    const unsigned char *__restrict__ bins, const int *__restrict__ index,
    const Task *__restrict__ tasks, const unsigned char *__restrict__ tables,
    const int *__restrict__ counts, const long long *__restrict__ middles,
    int *__restrict__ parted, long long n_tasks, long long n_tiles, long long width) {
    extern __shared__ __align__(16) unsigned char shared[];
    int *of_warp = reinterpret_cast<int *>(shared);
    const int warp = threadIdx.x / 32;
    for (long long tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        const long long at = place_of<&Task::first_tile>(tasks, n_tasks, tile);
        const Task task = tasks[at];
        const long long start = task.start + (tile - task.first_tile) * TILE;
        // Where this tile's rows begin on either side: a stable partition, so that the order is the
        // CPU's.
        long long left = task.start + counts[tile];
        long long right = middles[at] + start - task.start - counts[tile];
        for (int from = 0; from < TILE && start + from < task.stop; from += THREADS) {
            const long long place = start + from + threadIdx.x;
            const bool there = place < task.stop;
            const int row = there ? index[place] : 0;
            const bool goes = there && goes_left(bins, width, tables + at * 256, task, row);
            // A lane's place is the number of lanes below it, of warps before its own, and of
            // rounds before, on its side.
            const unsigned of_left = __ballot_sync(ALL_LANES, goes);
            const unsigned of_right = __ballot_sync(ALL_LANES, there && !goes);
            __syncthreads();  // the last round's are read
            if (threadIdx.x % 32 == 0) {
                of_warp[warp] = __popc(of_left);
                of_warp[WARPS + warp] = __popc(of_right);
            }
            __syncthreads();
            int lefts = 0, rights = 0, before_left = 0, before_right = 0;
            for (int w = 0; w < WARPS; ++w) {
                if (w == warp) {
                    before_left = lefts;
                    before_right = rights;
                }
                lefts += of_warp[w];
                rights += of_warp[WARPS + w];
            }
            if (goes)
                parted[left + before_left + __popc(of_left & lanes_below())] = row;
            else if (there)
                parted[right + before_right + __popc(of_right & lanes_below())] = row;
            left += lefts;
            right += rights;
        }
    }
}

// index (n,)            takes the tasks' rows from `parted`
extern "C" __global__ void __launch_bounds__(THREADS) tree_back(
    int *__restrict__ index, const Task *__restrict__ tasks, const int *__restrict__ parted,
    long long n_tasks, long long n_tiles) {
    for (long long tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        const Task task = tasks[place_of<&Task::first_tile>(tasks, n_tasks, tile)];
        const long long start = task.start + (tile - task.first_tile) * TILE;
        for (int k = threadIdx.x; k < TILE; k += THREADS)
            if (start + k < task.stop) index[start + k] = parted[start + k];
    }
}

// raw (n,)              raw predictions, added to
// index (n,)
// starts (n_leaves,)    where the leaves' rows begin in the index, sorted
// values (n_leaves,)    what they answer
// n, n_leaves
extern "C" __global__ void __launch_bounds__(THREADS) tree_answer(
    double *__restrict__ raw, const int *__restrict__ index, const long long *__restrict__ starts,
    const double *__restrict__ values, long long n, long long n_leaves) {
    const long long stride = static_cast<long long>(gridDim.x) * THREADS;
    for (long long q = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; q < n;
         q += stride) {
        // The leaf of a place in the index, by binary search.
        long long low = 0, high = n_leaves;
        while (high - low > 1) {
            const long long middle = (low + high) / 2;
            if (starts[middle] <= q)
                low = middle;
            else
                high = middle;
        }
        raw[index[q]] += values[low];
    }
}
