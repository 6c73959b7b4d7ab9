// What trees ask for: rows of some leaves, which are neighbours in an index.
#pragma once

#define THREADS 256
#define WARPS (THREADS / 32)
// Neighbours of an index that a block parts together.
#define TILE 1024
#define ALL_LANES 0xffffffffu

// Leaf that is parted: by which feature, its rows `start` to `stop` of the index, which side's
// histograms are asked for (0 left, 1 right, 2 all rows) and where they go; the first of its tiles,
// and of its units of `tree_histograms`.
struct Task {
    long long feature, start, stop, side, slot, first_tile, first_unit;
};

// Place of the last task that begins at or before a tile (or unit).
template <long long Task::*FIRST>
__device__ inline long long place_of(const Task *tasks, long long n_tasks, long long number) {
    long long at = n_tasks - 1;
    while (at > 0 && tasks[at].*FIRST > number) --at;
    return at;
}

__device__ inline unsigned lanes_below() { return (1u << threadIdx.x % 32) - 1; }
