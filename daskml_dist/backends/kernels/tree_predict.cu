// Answers of trees to rows, added in the order of the trees: those of the compiled loops of the
// CPU, to the last bit.
//
// Defined at compile time:
//   STORED      T, the type of X (float or double)
//
// A thread takes a row. A node is 16 bytes, so that one load brings it.
#include "tree_tasks.cuh"

using T = STORED;

#define MISSING_LEFT 1
#define CATEGORY 2

// Node: the largest value that goes left, or the number of its categories' bits; the left child,
// which the right one follows; feature, -1 at a leaf, times 4, and the flags above.
struct alignas(16) Node {
    union {
        double threshold;
        long long category;
    };
    int left, feature_and_flags;
};

// Number of a category; NaN where it is not known.
__device__ inline double number_of(double x, const double *edges, long long n_edges) {
    long long low = 0, high = n_edges;
    while (low < high) {
        const long long middle = (low + high) / 2;
        if (edges[middle] < x)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n_edges && edges[low] == x ? static_cast<double>(low)
                                                 : __longlong_as_double(0x7ff8000000000000ll);
}

// X (n, d)
// roots (n_trees,)              of the trees whose answers are added
// nodes (n_nodes,)
// bitsets (., 4)                categories that go left
// edges, firsts (d + 1,)        categories of the features, and where each one's begin
// values (n_nodes, n_values)
// out (n, n_outputs)            n_outputs is n_values, or trees belong to the outputs in turn
// n, d, n_trees, n_values, n_outputs
extern "C" __global__ void __launch_bounds__(THREADS) tree_predict(
    const T *__restrict__ X, const long long *__restrict__ roots, const Node *__restrict__ nodes,
    const unsigned long long *__restrict__ bitsets, const double *__restrict__ edges,
    const long long *__restrict__ firsts, const double *__restrict__ values,
    double *__restrict__ out, long long n, long long d, long long n_trees, long long n_values,
    long long n_outputs) {
    const long long stride = static_cast<long long>(gridDim.x) * THREADS;
    for (long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; i < n;
         i += stride) {
        const T *row = X + i * d;
        for (long long t = 0; t < n_trees; ++t) {
            long long k = roots[t];
            // One load of 16 bytes a level; lanes of a warp diverge, and caches hold the upper
            // levels.
            Node node = nodes[k];
            while (node.feature_and_flags >= 0) {
                const long long j = node.feature_and_flags >> 2;
                double x = to_double(row[j]);
                if (node.feature_and_flags & CATEGORY)
                    x = number_of(x, edges + firsts[j], firsts[j + 1] - firsts[j]);
                // Missing values, categories and numbers, in the order in which the CPU tests them.
                bool goes;
                if (x != x)
                    goes = node.feature_and_flags & MISSING_LEFT;
                else if (node.feature_and_flags & CATEGORY) {
                    const int c = static_cast<int>(x);
                    goes = bitsets[node.category * 4 + (c >> 6)] >> (c & 63) & 1;
                } else
                    goes = x <= node.threshold;
                k = node.left + !goes;
                node = nodes[k];
            }
            double *own = out + i * n_outputs + (n_values < n_outputs ? t % n_outputs : 0);
            for (long long v = 0; v < n_values; ++v) own[v] += values[k * n_values + v];
        }
    }
}
