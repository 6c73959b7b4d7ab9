// Losses of one row: what `Loss.evaluate_row` of daskml_dist/losses computes, in type A.
//
// Each takes the target y (-1 or +1 for classification), the raw prediction and the loss's one
// parameter (0 where it has none), sets `value` and returns the derivative. Comparisons are
// written so that NaN stays NaN, which fmax and fmin do not do.
#pragma once

namespace loss {

__device__ inline A positive(A x) { return x < 0 ? A(0) : x; }

#ifdef __CUDA_ARCH__
__device__ inline float reciprocal(float x) { return __fdividef(1.0f, x); }
#else
__device__ inline float reciprocal(float x) { return 1 / x; }
#endif
__device__ inline double reciprocal(double x) { return 1 / x; }

// atanh(s) / s as a polynomial in z = s^2, for s from 0 to 1/3: relative errors of 4e-9 and 5e-17.
__device__ inline float atanh_ratio(float z) {
    return (((0.1407888918f * z + 0.1398257887f) * z + 0.2001229762f) * z + 0.3333316082f) * z +
           1.0f;
}
__device__ inline double atanh_ratio(double z) {
    double ratio = 0.08890381913056651447;
    ratio = ratio * z + 0.0494039452438239312;
    ratio = ratio * z + 0.06795652742789946918;
    ratio = ratio * z + 0.07681838124445817129;
    ratio = ratio * z + 0.09091429900236955479;
    ratio = ratio * z + 0.1111109543067314202;
    ratio = ratio * z + 0.1428571455582858011;
    ratio = ratio * z + 0.199999999976438;
    ratio = ratio * z + 0.3333333333334128716;
    return ratio * z + 1.0;
}

// With e = exp(-|margin|), log(1 + e) is 2 atanh(e / (2 + e)): a short polynomial, where log1p has
// branches. One reciprocal serves that quotient and the slope's, e / (1 + e) or 1 / (1 + e).
__device__ inline A log_loss(A y, A raw, A, A &value) {
    const A margin = y * raw;
    const A e = exp(-fabs(margin));
    const A one = 1 + e, two = 2 + e;
    const A both = reciprocal(one * two);
    const A s = e * (one * both);
    value = 2 * s * atanh_ratio(s * s) - (margin < 0 ? margin : A(0));
    return -y * ((margin > 0 ? e : A(1)) * (two * both));
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
