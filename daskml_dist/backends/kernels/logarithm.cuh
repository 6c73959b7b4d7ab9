// Logarithm by the operations of `daskml_dist.backends.logarithm`, in their order.
#pragma once

__device__ inline double logarithm(double x) {
    int power;
    double part = frexp(x, &power);
    if (part < 0.7071067811865476) {
        part *= 2.0;
        power -= 1;
    }
    const double f = part - 1.0;
    const double s = f / (2.0 + f);
    const double z = s * s;
    double more = 2.0 / 21.0 * z;
    more = (more + 2.0 / 19.0) * z;
    more = (more + 2.0 / 17.0) * z;
    more = (more + 2.0 / 15.0) * z;
    more = (more + 2.0 / 13.0) * z;
    more = (more + 2.0 / 11.0) * z;
    more = (more + 2.0 / 9.0) * z;
    more = (more + 2.0 / 7.0) * z;
    more = (more + 2.0 / 5.0) * z;
    more = (more + 2.0 / 3.0) * z;
    const double half = 0.5 * f * f;
    const double rest = s * (half + more) + power * 1.90821492927058770002e-10;
    return power * 0.693147180369123816490 - ((half - rest) - f);
}
