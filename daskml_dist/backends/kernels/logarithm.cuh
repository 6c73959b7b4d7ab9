// Logarithm by the operations of `daskml_dist.backends.logarithm`, in their order.
#pragma once

__device__ inline double logarithm(double x) {
    const long long bits = __double_as_longlong(x);
    const long long power = (bits - 0x3fe6a09e667f3bcdll) >> 52;
    const double f = __longlong_as_double(bits - power * (1ll << 52)) - 1.0;
    const double s = f / (2.0 + f);
    const double z = s * s;
    const double w = z * z;
    const double odd =
        ((((2.0 / 19.0 * w + 2.0 / 15.0) * w + 2.0 / 11.0) * w + 2.0 / 7.0) * w + 2.0 / 3.0) * z;
    const double even =
        ((((2.0 / 21.0 * w + 2.0 / 17.0) * w + 2.0 / 13.0) * w + 2.0 / 9.0) * w + 2.0 / 5.0) * w;
    const double half = 0.5 * f * f;
    const double rest = s * (half + (even + odd)) + power * 1.90821492927058770002e-10;
    return power * 0.693147180369123816490 - ((half - rest) - f);
}
