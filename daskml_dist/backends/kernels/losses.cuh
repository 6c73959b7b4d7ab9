// Losses of one row: what `Loss.at_row` of daskml_dist/losses computes, in type A.
//
// Each takes the target y (-1 or +1 for classification), the raw prediction and the loss's one
// parameter (0 where it has none), sets `value` and returns the derivative. Comparisons are
// written so that NaN stays NaN, which fmax and fmin do not do.
#pragma once

namespace loss {

__device__ inline A positive(A x) { return x < 0 ? A(0) : x; }

__device__ inline A log_loss(A y, A raw, A, A &value) {
    const A margin = y * raw;
    const A e = exp(-fabs(margin));
    value = log1p(e) - (margin < 0 ? margin : A(0));
    return -y * ((margin > 0 ? e : A(1)) / (1 + e));
}

// The hinge loss, and with the threshold 0 the perceptron's.
__device__ inline A hinge(A y, A raw, A threshold, A &value) {
    const A gap = threshold - y * raw;
    value = positive(gap);
    return gap >= 0 ? -y : A(0);
}

__device__ inline A perceptron(A y, A raw, A threshold, A &value) {
    return hinge(y, raw, threshold, value);
}

__device__ inline A squared_hinge(A y, A raw, A, A &value) {
    const A gap = positive(1 - y * raw);
    value = gap * gap;
    return -2 * gap * y;
}

__device__ inline A modified_huber(A y, A raw, A, A &value) {
    const A gap = positive(1 - y * raw);
    const A slope = gap > 2 ? A(2) : gap;
    value = (2 * gap - slope) * slope;
    return -2 * slope * y;
}

__device__ inline A squared_error(A y, A raw, A, A &value) {
    const A residual = raw - y;
    value = A(0.5) * residual * residual;
    return residual;
}

__device__ inline A huber(A y, A raw, A epsilon, A &value) {
    const A residual = raw - y;
    const A below = residual > epsilon ? epsilon : residual;
    const A slope = below < -epsilon ? -epsilon : below;
    value = (residual - A(0.5) * slope) * slope;
    return slope;
}

__device__ inline A epsilon_insensitive(A y, A raw, A epsilon, A &value) {
    const A residual = raw - y;
    value = positive(fabs(residual) - epsilon);
    return value > 0 ? copysign(A(1), residual) : A(0);
}

__device__ inline A squared_epsilon_insensitive(A y, A raw, A epsilon, A &value) {
    const A residual = raw - y;
    const A excess = positive(fabs(residual) - epsilon);
    value = excess * excess;
    return copysign(2 * excess, residual);
}

__device__ inline A quantile(A y, A raw, A level, A &value) {
    const A residual = raw - y;
    const A slope = (residual > 0 ? A(1) : A(0)) - level;
    value = slope * residual;
    return slope;
}

__device__ inline A poisson(A y, A raw, A, A &value) {
    const A mean = exp(raw);
    value = mean - y * raw;
    return mean - y;
}

__device__ inline A gamma(A y, A raw, A, A &value) {
    const A ratio = y * exp(-raw);
    value = raw + ratio;
    return 1 - ratio;
}

}  // namespace loss
