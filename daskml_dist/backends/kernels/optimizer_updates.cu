// One step of an optimizer over a flat vector: the mean gradient, l2 added, the step, l1.
//
// Defined at compile time:
//   ARITHMETIC  A, the type of the parameters and their optimizer state
//   RESULT      O, the type of the gradient
//   OPTIMIZER   a function below
//
// The maths is that of daskml_dist/optimizers in the same order, so that without fused
// multiply-adds (--fmad=false) the results are NumPy's to the last bit, but for float32 numbers
// below 1e-38, which CuPy has its compiler take for 0 (-ftz=true).
#include "numbers.cuh"

#define THREADS 256
// Blocks a multiprocessor: 64 registers for a thread, 128 in double. Left to itself, the compiler
// takes fewer and spills.
#define BLOCKS (sizeof(A) == 4 ? 4 : 2)

// The optimizer's state of one parameter, in the order of `Optimizer.state_names`.
struct State {
    A a, b, c;
};

// What `optimizer_numbers` of __init__.py returns, in type A but for the first three.
struct Numbers {
    double rows;  // of the gradient; a step of none changes nothing
    double lr;
    double decay;  // of the parameters (AdamW)
    A p, q, r, s, t, u, v;
};

namespace optimizer {

// As `penalties.soft_threshold`.
__device__ inline void soften(A &w, A threshold) {
    A inside = w > threshold ? threshold : w;
    inside = inside < -threshold ? -threshold : inside;
    w -= inside;
}

__device__ inline void soften_by(A &w, A rate, double l1) {
    if (l1 != 0) soften(w, rate * static_cast<A>(l1));
}

// Each takes a parameter and its gradient and state, the numbers, and the strength of l1 for this
// parameter and for any.

__device__ inline void sgd(A &w, A g, State &, const Numbers &at, double l1, double) {
    w -= g * static_cast<A>(at.lr);
    soften_by(w, static_cast<A>(at.lr), l1);
}

// p: momentum; q: how far a step leads in the long run, in learning rates
__device__ inline void momentum(A &w, A g, State &state, const Numbers &at, double l1, double) {
    state.a = state.a * at.p + g;
    w -= state.a * static_cast<A>(at.lr);
    soften_by(w, static_cast<A>(at.lr) * at.q, l1);
}

__device__ inline void nesterov(A &w, A g, State &state, const Numbers &at, double l1, double) {
    state.a = state.a * at.p + g;
    w -= (g + at.p * state.a) * static_cast<A>(at.lr);
    soften_by(w, static_cast<A>(at.lr) * at.q, l1);
}

// p: epsilon
__device__ inline void adagrad(A &w, A g, State &state, const Numbers &at, double l1, double) {
    state.a += g * g;
    const A rate = static_cast<A>(at.lr) / (sqrt(state.a) + at.p);
    w -= g * rate;
    soften_by(w, rate, l1);
}

// p: epsilon
__device__ inline void nag(A &w, A g, State &state, const Numbers &at, double l1, double) {
    g /= state.b;
    state.a += g * g;
    const A rate = static_cast<A>(at.lr) / (sqrt(state.a) + at.p);
    w -= g * rate / state.b;
    if (l1 != 0) soften_by(w, rate / state.b / state.b, l1);
}

// p, q: beta1 and 1 - beta1; r, s: beta2 and 1 - beta2; t, u: factors that correct the bias of m
// and of the root of v; v: epsilon
__device__ inline void adam(A &w, A g, State &state, const Numbers &at, double l1, double) {
    state.b = state.b * at.r + g * g * at.s;
    state.a = state.a * at.p + g * at.q;
    const A rate = static_cast<A>(at.lr) / (sqrt(state.b) * at.u + at.v);
    w -= rate * state.a * at.t;
    soften_by(w, rate, l1);
}

// decay: of w, in learning rates
__device__ inline void adamw(A &w, A g, State &state, const Numbers &at, double l1, double any) {
    w -= static_cast<A>(at.lr) * static_cast<A>(at.decay) * w;
    adam(w, g, state, at, l1, any);
}

// p: beta; the state is n, dual and bound
__device__ inline void ftrl(A &w, A g, State &state, const Numbers &at, double l1, double any) {
    state.a += g * g;
    const A rate = static_cast<A>(at.lr) / (sqrt(state.a) + at.p);
    if (at.lr == 0 || any == 0) {
        w -= g * rate;
        return;
    }
    const A dual = w != 0 ? copysign(state.c, -w) : state.b;
    const A z = g + dual - w / rate;
    state.c += static_cast<A>(l1);
    state.b = z > state.c ? state.c : z;
    state.b = state.b < -state.c ? -state.c : state.b;
    w = (state.b - z) * rate;
}

}  // namespace optimizer

// w (n,)                    the parameters
// gradient (n,)             of the summed loss, not changed
// state0, state1, state2 (n,)  null where the optimizer has fewer
// n, penalised              l1 and l2 are for the first `penalised` parameters
// l1, l2                    strengths of the penalties
// rows, lr, decay, p to v   `optimizer_numbers`
// numbers (10,) or null     take the place of these, where the device alone knows the step
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) optimizer_update(
    A *__restrict__ w, const O *__restrict__ gradient, A *__restrict__ state0,
    A *__restrict__ state1, A *__restrict__ state2, long long n, long long penalised, double l1,
    double l2, double rows, double lr, double decay, double p, double q, double r, double s,
    double t, double u, double v, const double *__restrict__ numbers) {
    // Recorded steps (CUDA graphs) find the step's numbers in memory; single ones get them as
    // arguments.
    const auto pick = [&](int i, double given) { return numbers ? numbers[i] : given; };
    const Numbers at = {pick(0, rows),  pick(1, lr),    pick(2, decay), A(pick(3, p)),
                        A(pick(4, q)),  A(pick(5, r)),  A(pick(6, s)),  A(pick(7, t)),
                        A(pick(8, u)),  A(pick(9, v))};
    if (at.rows == 0) return;
    const long long stride = static_cast<long long>(gridDim.x) * THREADS;
#pragma unroll 1  // several roots and quotients at a time would spill
    for (long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; i < n;
         i += stride) {
        const bool penalty = i < penalised;
        A own = w[i];
        A g = static_cast<A>(gradient[i] / static_cast<O>(at.rows));
        if (penalty && l2 != 0) g += static_cast<A>(l2) * own;
        State state = {state0 ? state0[i] : A(0), state1 ? state1[i] : A(0), state2 ? state2[i] : A(0)};
        optimizer::OPTIMIZER(own, g, state, at, penalty ? l1 : 0.0, l1);
        w[i] = own;
        if (state0) state0[i] = state.a;
        if (state1) state1[i] = state.b;
        if (state2) state2[i] = state.c;
    }
}
