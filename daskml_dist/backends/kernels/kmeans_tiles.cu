// k-means of float32 rows on tensor cores: nearest centroid of each row, and each centroid's sums.
//
// Nearest is the centroid of the least |c|^2 / 2 - x.c. The products are those of matrices, by
// multiply-adds of bfloat16 (`mma`, from compute capability 8.0 on). A float32 is the sum of three
// bfloat16, and the six products of parts that are above the rounding of float32 are added up.
//
// Defined at compile time:
//   ARITHMETIC  float
//   EIGHTS      groups of 8 centroids: 8 * EIGHTS >= k
//   BLOCKS      blocks that are to fit a multiprocessor
//
// A block takes tiles of 192 rows. First each warp finds the labels of 32 rows. Then each warp adds
// up those rows of the tile whose centroids are its own (label % WARPS), which it reads again from
// the cache: a centroid's sums have one writer, and need no atomic additions within the block.
#include "numbers.cuh"

#define THREADS 192
#define WARPS (THREADS / 32)
#define TILE (32 * WARPS)
#define STEP 16  // columns that one product of matrices takes
#define PARTS 3
#define BATCH 8  // rows of a warp in flight while it adds them up

using Four = Vector<float, 4>;

// sum (16 rows, 8 centroids) += rows (16, STEP) @ centroids (STEP, 8), as PTX lays them on lanes.
__device__ inline void multiply(float (&sum)[4], const unsigned (&rows)[4],
                                const Vector<unsigned, 2> &centroids) {
#ifdef __CUDA_ARCH__
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(centroids.at[0]),
          "r"(centroids.at[1]));
#else
    multiply_bfloat16(sum, rows, centroids.at);
#endif
}

// Rounds x to bfloat16, returns those bits where float32 has them, and leaves the rest in x.
__device__ inline unsigned take_part(float &x, bool last) {
    const unsigned bits = __float_as_uint(x);
    const unsigned part = (last ? bits : bits + 0x8000u) & 0xffff0000u;
    x -= __uint_as_float(part);
    return part;
}

// The next part of two numbers in one word.
__device__ inline unsigned take_pair(float &lower, float &upper, bool last) {
    const unsigned low = take_part(lower, last);
    return low >> 16 | take_part(upper, last);
}

// Four neighbouring entries of a row; zeros outside.
__device__ inline Four four_entries(const float *row, int column, int width, bool inside) {
    return inside && column < width ? *reinterpret_cast<const Four *>(row + column) : Four{};
}

// X (n, d)            d is a multiple of 4, X aligned to 16 bytes
// shift (d,)          taken from each row first
// centroids (k, d)    of rows less the shift
// weight (n,)         or null
// labels (n,)         of the nearest centroid; the first where several are
// sums (k, d)         each centroid's weighted rows, less the shift, added to
// counts (k,)         their weights, added to
// inertia (1,)        weighted squared distances, added to
// n, d, k
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) kmeans_tiles(
    const float *__restrict__ X, const float *__restrict__ shift,
    const float *__restrict__ centroids, const float *__restrict__ weight,
    int *__restrict__ labels, double *__restrict__ sums, double *__restrict__ counts,
    double *__restrict__ inertia, long long n, long long d, long long k) {
    extern __shared__ __align__(16) unsigned char shared[];
    const int width = static_cast<int>(d), n_centroids = static_cast<int>(k);
    const int steps = (width + STEP - 1) / STEP, padded = steps * STEP;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float *moved = reinterpret_cast<float *>(shared);  // (padded,) the shift, with zeros behind it
    float *half = moved + padded;                      // (8 EIGHTS,) half of each centroid's square
    float *own_counts = half + 8 * EIGHTS;             // (8 EIGHTS,)
    float *own = own_counts + 8 * EIGHTS;              // (k, d) sums
    int *tile = reinterpret_cast<int *>(own + n_centroids * width);          // (TILE,) labels
    unsigned char *lists = reinterpret_cast<unsigned char *>(tile + TILE);  // (WARPS, TILE) rows
    // (PARTS, steps, EIGHTS, 32) words of the centroids, as lanes need them.
    auto *factor = reinterpret_cast<Vector<unsigned, 2> *>(lists + WARPS * TILE);
    const int part_size = steps * EIGHTS * 32;

    for (int j = threadIdx.x; j < padded; j += THREADS) moved[j] = j < width ? shift[j] : 0.0f;
    for (int e = threadIdx.x; e < n_centroids * width; e += THREADS) own[e] = 0;
    for (int c = threadIdx.x; c < 8 * EIGHTS; c += THREADS) {
        float square = 0;
        for (int j = 0; c < n_centroids && j < width; ++j)
            square += centroids[c * width + j] * centroids[c * width + j];
        half[c] = c < n_centroids ? 0.5f * square : __uint_as_float(0x7f800000u);  // infinity
        own_counts[c] = 0;
    }
    // Within a step a lane has four neighbouring columns, of rows and centroids alike, where PTX
    // means columns 2t, 2t + 1, 2t + 8 and 2t + 9: a sum over columns has no order.
    for (int e = threadIdx.x; e < part_size; e += THREADS) {
        const int c = e / 32 % EIGHTS * 8 + e % 32 / 4;
        const int j = e / (32 * EIGHTS) * STEP + e % 4 * 4;
        Four v = four_entries(centroids + c * width, j, width, c < n_centroids);
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            const bool last = part == PARTS - 1;
            factor[part * part_size + e] = {take_pair(v.at[0], v.at[1], last),
                                            take_pair(v.at[2], v.at[3], last)};
        }
    }
    __syncthreads();

    double total = 0;
    const int n_tiles = static_cast<int>((n + TILE - 1) / TILE);
    for (int number = blockIdx.x; number < n_tiles; number += gridDim.x) {
        const long long start = static_cast<long long>(number) * TILE;
        // Labels of the warp's 32 rows: two products of 16 rows, so that centroids are read once.
        const long long first = start + warp * 32;
        const int group = lane / 4, in_group = lane % 4;
        const float *ours = X + (first + group) * d + 4 * in_group;
        const int left = static_cast<int>(n - first < 32 ? n - first : 32) - group;
        float products[2][EIGHTS][4] = {};
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            const int column = step * STEP + 4 * in_group;
            const Four at = *reinterpret_cast<const Four *>(moved + column);
            Four x[4];  // of rows group, group + 8, group + 16, group + 24
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                x[i] = Four{};
                if (8 * i < left && column < width)
                    x[i] = *reinterpret_cast<const Four *>(ours + step * STEP + 8 * i * width);
            }
            unsigned rows[PARTS][2][4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int v = 0; v < 4; ++v) x[i].at[v] -= at.at[v];
#pragma unroll
                for (int part = 0; part < PARTS; ++part) {
                    const bool last = part == PARTS - 1;
                    rows[part][i / 2][i % 2] = take_pair(x[i].at[0], x[i].at[1], last);
                    rows[part][i / 2][i % 2 + 2] = take_pair(x[i].at[2], x[i].at[3], last);
                }
            }
#pragma unroll
            for (int c = 0; c < EIGHTS; ++c)
#pragma unroll
                for (int theirs = PARTS - 1; theirs >= 0; --theirs) {  // the small ones first
                    const auto words = factor[theirs * part_size + (step * EIGHTS + c) * 32 + lane];
#pragma unroll
                    for (int part = PARTS - 1 - theirs; part >= 0; --part)
#pragma unroll
                        for (int m = 0; m < 2; ++m) multiply(products[m][c], rows[part][m], words);
                }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float least = half[2 * in_group] - products[i / 2][0][i % 2 * 2];
            int label = 2 * in_group;
#pragma unroll
            for (int c = 0; c < EIGHTS; ++c)
#pragma unroll
                for (int v = 0; v < 2; ++v) {
                    const int centroid = 8 * c + 2 * in_group + v;
                    const float score = half[centroid] - products[i / 2][c][i % 2 * 2 + v];
                    if (score < least) least = score, label = centroid;
                }
#pragma unroll
            for (int offset = 2; offset > 0; offset /= 2) {
                const float score = __shfl_xor_sync(ALL_LANES, least, offset);
                const int centroid = __shfl_xor_sync(ALL_LANES, label, offset);
                if (score < least || (score == least && centroid < label))
                    least = score, label = centroid;
            }
            if (in_group == 0) {
                // Of a row of NaN no score is less: label 0 takes it, and the sums show it.
                const int at = warp * 32 + group + 8 * i;
                tile[at] = 8 * i < left ? label : -1;
                if (8 * i < left) labels[start + at] = label;
            }
        }
        __syncthreads();

        // Rows of the tile whose centroids are this warp's.
        unsigned char *list = lists + warp * TILE;
        int found = 0;
#pragma unroll
        for (int base = 0; base < TILE; base += 32) {
            const int label = tile[base + lane];
            const bool mine = label >= 0 && label % WARPS == warp;
            const unsigned votes = __ballot_sync(ALL_LANES, mine);
            const int before = __popc(votes & ((1u << lane) - 1));
            if (mine) list[found + before] = static_cast<unsigned char>(base + lane);
            found += __popc(votes);
        }
        __syncwarp();
        for (int e = 0; e < found; e += BATCH)
            for (int j = 4 * lane; j < width; j += 128) {
                Four rows[BATCH];
#pragma unroll
                for (int b = 0; b < BATCH; ++b) {
                    const int at = list[e + b < found ? e + b : e];
                    rows[b] = *reinterpret_cast<const Four *>(X + (start + at) * d + j);
                }
                const Four off = *reinterpret_cast<const Four *>(moved + j);
#pragma unroll
                for (int b = 0; b < BATCH; ++b) {
                    if (e + b >= found) break;
                    const int at = list[e + b], label = tile[at];
                    const float scale = weight ? weight[start + at] : 1.0f;
                    const Four centroid =
                        *reinterpret_cast<const Four *>(centroids + label * width + j);
                    Four *sum = reinterpret_cast<Four *>(own + label * width + j);
                    Four added = *sum;
                    float apart = 0;
#pragma unroll
                    for (int v = 0; v < 4; ++v) {
                        const float x = rows[b].at[v] - off.at[v], gap = x - centroid.at[v];
                        added.at[v] += scale * x;
                        apart += gap * gap;
                    }
                    *sum = added;
                    if (j == 0) own_counts[label] += scale;
                    total += scale * apart;
                }
            }
        __syncthreads();  // before other labels take the tile's place
    }
    total = team_sum<32>(total);
    if (lane == 0) atomicAdd(inertia, total);
    for (int e = threadIdx.x; e < n_centroids * width; e += THREADS)
        atomicAdd(sums + e, static_cast<double>(own[e]));
    for (int c = threadIdx.x; c < n_centroids; c += THREADS)
        atomicAdd(counts + c, static_cast<double>(own_counts[c]));
}
