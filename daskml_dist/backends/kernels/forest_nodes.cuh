// What the growth of forests asks for: nodes, the lines of their rows, hashes.
//
// A line is what a drawn row adds, as `daskml_dist.backends.forest_kernels` has it; those of a node
// are neighbours.
#pragma once

#define THREADS 256
#define WARPS (THREADS / 32)
// Lines (or rows) that a warp takes.
#define TILE 512
#define ALL_LANES 0xffffffffu
#define ROW 0xffffffffll

// Node: its lines, the hash of the way to it, its tree, the first of its tiles, bounds of what its
// children may answer; the feature that it is split by, the last bin that goes left, whether missing
// values do.
struct Node {
    long long start, stop;
    unsigned long long path;
    long long tree, first_tile;
    double low, high;
    long long feature, last, missing_left;
};

// Place of the last node that begins at or before a tile.
__device__ inline long long node_of(const Node *nodes, long long n_nodes, long long tile) {
    long long low = 0, high = n_nodes;
    while (high - low > 1) {
        const long long middle = (low + high) / 2;
        if (nodes[middle].first_tile <= tile)
            low = middle;
        else
            high = middle;
    }
    return low;
}

__device__ inline unsigned long long hash_of(unsigned long long number) {
    // splitmix64, as `forest_kernels.hash_number`.
    number *= 0x9E3779B97F4A7C15ull;
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9ull;
    number = (number ^ number >> 27) * 0x94D049BB133111EBull;
    return number ^ number >> 31;
}

__device__ inline unsigned lanes_below() { return (1u << threadIdx.x % 32) - 1; }

// Place of the lowest bit that is set.
__device__ inline int lowest(unsigned bits) { return __popc((bits & (~bits + 1)) - 1); }

__device__ inline long long add_to(long long *at, long long value) {
    return static_cast<long long>(atomicAdd(reinterpret_cast<unsigned long long *>(at),
                                            static_cast<unsigned long long>(value)));
}

__device__ inline long long first_warp() {
    return static_cast<long long>(blockIdx.x) * WARPS + threadIdx.x / 32;
}

__device__ inline long long all_warps() { return static_cast<long long>(gridDim.x) * WARPS; }
