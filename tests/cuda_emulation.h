// CUDA's words for g++: a block's threads are fibers that switch at shuffles and barriers.
//
// A run reports what a GPU would hide: a barrier that not all threads reach, stores behind the
// shared memory that was asked for, misaligned vectors, indices outside of arrays. Shared memory
// starts as NaN.
#pragma once

#include <math.h>
#include <setjmp.h>
#include <string.h>
#include <ucontext.h>

#include <functional>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__
#define __align__(n)
#define __launch_bounds__(...)

struct Index {
    unsigned x, y, z;
};

static Index threadIdx, blockIdx, blockDim, gridDim;

extern "C" {
alignas(16) unsigned char shared[1 << 16];
}

namespace emulation {

enum Problem { NONE, DEADLOCK, SHARED_OVERRUN, UNDEFINED };

constexpr size_t STACK = 1 << 16;

struct Barrier {
    unsigned arrived = 0, generation = 0;
};

struct Thread {
    ucontext_t start;
    jmp_buf place;
    bool started = false;
    Index index;
    const Barrier *waits = nullptr;
    unsigned generation = 0;
    bool done = false;
};

struct Warp {
    Barrier barrier;
    unsigned shuffles[32] = {};
    unsigned char slots[2][32][8];
};

static std::function<void()> body;
static std::vector<Thread> threads;
static std::vector<Warp> warps;
static Barrier block;
static Thread *current;
static jmp_buf scheduler;
static int problem;

// Jumps, since to swap contexts is a call of the system; a context is for the first time alone.
inline void resume(Thread &thread) {
    if (_setjmp(scheduler)) return;
    if (thread.started) _longjmp(thread.place, 1);
    thread.started = true;
    setcontext(&thread.start);
}

inline void leave() {
    if (!_setjmp(current->place)) _longjmp(scheduler, 1);
}

inline void arrive(Barrier &barrier, unsigned count) {
    if (++barrier.arrived == count) {
        barrier.arrived = 0;
        ++barrier.generation;
        return;
    }
    current->waits = &barrier;
    current->generation = barrier.generation;
    leave();
}

inline void enter() {
    body();
    current->done = true;
    leave();
}

inline void run_block(std::vector<unsigned char> &stacks, size_t shared_bytes) {
    memset(shared, 0xff, sizeof shared);
    const unsigned count = blockDim.x * blockDim.y;
    threads.assign(count, Thread{});
    warps.assign((count + 31) / 32, Warp{});
    block = Barrier{};
    for (unsigned i = 0; i < count; ++i) {
        threads[i].index = {i % blockDim.x, i / blockDim.x, 0};
        getcontext(&threads[i].start);
        threads[i].start.uc_stack.ss_sp = stacks.data() + i * STACK;
        threads[i].start.uc_stack.ss_size = STACK;
        makecontext(&threads[i].start, enter, 0);
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (Thread &thread : threads) {
            if (thread.done) continue;
            if (thread.waits && thread.waits->generation == thread.generation) continue;
            thread.waits = nullptr;
            current = &thread;
            threadIdx = thread.index;
            resume(thread);
            moved = true;
        }
    }
    for (const Thread &thread : threads)
        if (!thread.done) problem = DEADLOCK;
    for (size_t i = shared_bytes; i < sizeof shared; ++i)
        if (shared[i] != 0xff) problem = SHARED_OVERRUN;
}

template <typename... P, size_t... K>
void call(void (*kernel)(P...), void **arguments, std::index_sequence<K...>) {
    kernel(*static_cast<std::remove_cv_t<P> *>(arguments[K])...);
}

// Arguments come as pointers to each, as for cuLaunchKernel.
template <typename... P>
int launch(void (*kernel)(P...), unsigned grid, unsigned x, unsigned y, size_t shared_bytes,
           void **arguments) {
    gridDim = {grid, 1, 1};
    blockDim = {x, y, 1};
    problem = NONE;
    body = [=] { call(kernel, arguments, std::index_sequence_for<P...>{}); };
    static std::vector<unsigned char> stacks;
    if (stacks.size() < STACK * x * y) stacks.resize(STACK * x * y);
    for (unsigned b = 0; b < grid && problem == NONE; ++b) {
        blockIdx = {b, 0, 0};
        run_block(stacks, shared_bytes);
    }
    return problem;
}

inline unsigned thread_number() { return current->index.y * blockDim.x + current->index.x; }

template <typename S>
S exchange(S value, unsigned lane, unsigned from) {
    Warp &warp = warps[thread_number() / 32];
    auto &slots = warp.slots[warp.shuffles[lane]++ % 2];
    memcpy(slots[lane], &value, sizeof value);
    arrive(warp.barrier, 32);
    S other;
    memcpy(&other, slots[from], sizeof other);
    return other;
}

}  // namespace emulation

extern "C" {
// What -fsanitize calls.
inline __attribute__((visibility("hidden"), used)) void __ubsan_handle_type_mismatch_v1(
    void *, unsigned long) {
    emulation::problem = emulation::UNDEFINED;
}
inline __attribute__((visibility("hidden"), used)) void __ubsan_handle_out_of_bounds(
    void *, unsigned long) {
    emulation::problem = emulation::UNDEFINED;
}
inline __attribute__((visibility("hidden"), used)) void __ubsan_handle_add_overflow(
    void *, unsigned long, unsigned long) {
    emulation::problem = emulation::UNDEFINED;
}
inline __attribute__((visibility("hidden"), used)) void __ubsan_handle_sub_overflow(
    void *, unsigned long, unsigned long) {
    emulation::problem = emulation::UNDEFINED;
}
inline __attribute__((visibility("hidden"), used)) void __ubsan_handle_mul_overflow(
    void *, unsigned long, unsigned long) {
    emulation::problem = emulation::UNDEFINED;
}
inline __attribute__((visibility("hidden"), used)) void __ubsan_handle_negate_overflow(
    void *, unsigned long) {
    emulation::problem = emulation::UNDEFINED;
}
}

inline void __syncthreads() {
    emulation::arrive(emulation::block, blockDim.x * blockDim.y);
    threadIdx = emulation::current->index;
}

template <typename S>
S __shfl_xor_sync(unsigned, S value, int mask) {
    const unsigned lane = emulation::thread_number() % 32;
    S other = emulation::exchange(value, lane, lane ^ mask);
    threadIdx = emulation::current->index;
    return other;
}

template <typename S>
S __shfl_sync(unsigned, S value, int from, int width = 32) {
    const unsigned lane = emulation::thread_number() % 32;
    S other = emulation::exchange(value, lane, lane / width * width + from % width);
    threadIdx = emulation::current->index;
    return other;
}

inline unsigned __ballot_sync(unsigned, bool says) {
    unsigned votes = 0;
    for (unsigned lane = 0; lane < 32; ++lane)
        votes |= static_cast<unsigned>(__shfl_sync(0xffffffffu, says, lane)) << lane;
    return votes;
}

inline void __syncwarp() {
    emulation::arrive(emulation::warps[emulation::thread_number() / 32].barrier, 32);
    threadIdx = emulation::current->index;
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

template <typename S>
S atomicAdd(S *at, S value) {
    const S before = *at;
    *at += value;
    return before;
}

template <typename S>
S atomicMax(S *at, S value) {
    const S before = *at;
    if (value > before) *at = value;
    return before;
}

template <typename S>
S atomicExch(S *at, S value) {
    return std::exchange(*at, value);
}

inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline double __longlong_as_double(long long bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

inline long long __double_as_longlong(double value) {
    long long bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// mma.m16n8k16 of bfloat16: sum (16, 8) += a (16, 16) @ b (16, 8), laid on lanes as PTX describes.
inline void multiply_bfloat16(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    const unsigned group = emulation::thread_number() % 32 / 4, place = emulation::thread_number() % 4;
    const auto entry = [](unsigned word, int upper) {
        return __uint_as_float(upper ? word & 0xffff0000u : word << 16);
    };
    for (int lane = 0; lane < 4; ++lane)
        for (int right = 0; right < 2; ++right) {  // columns 2 lane + 8 right, and the next
            unsigned rows[2], columns[2];
            for (int i = 0; i < 2; ++i) {
                rows[i] = __shfl_sync(0xffffffffu, a[i + 2 * right], group * 4 + lane);
                columns[i] = __shfl_sync(0xffffffffu, b[right], (2 * place + i) * 4 + lane);
            }
            for (int i = 0; i < 4; ++i)
                for (int upper = 0; upper < 2; ++upper)
                    sum[i] += entry(rows[i / 2], upper) * entry(columns[i % 2], upper);
        }
}

inline float half_to_float(unsigned short bits) {
    const int exponent = bits >> 10 & 31, digits = bits & 1023;
    const float size = exponent == 31 ? (digits ? NAN : INFINITY)
                       : exponent     ? ldexpf(1024 + digits, exponent - 25)
                                      : ldexpf(digits, -24);
    return bits >> 15 ? -size : size;
}
