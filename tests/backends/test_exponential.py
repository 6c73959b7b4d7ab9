"""The portable exponential, with the same bits on every machine."""

from __future__ import annotations

from math import factorial, ldexp

import numpy as np

from daskml_dist.backends import elementary_functions as exponential_module
from daskml_dist.backends.elementary_functions import exponential


def test_values_equal_the_exponential():
    rng = np.random.default_rng(0)
    x = np.concatenate([3 * rng.normal(size=20_000), rng.uniform(-708, 709.7, 20_000), [0.0, 1.0]])
    truth = np.exp(x.astype(np.longdouble))
    assert (np.abs(exponential(x) - truth) < 2 * np.spacing(truth.astype(np.float64))).all()


def test_underflow_and_overflow():
    x = np.array([[710.0, np.inf, 709.79, np.nan], [-745.3, -np.inf, -np.nan, -745.13]])
    np.testing.assert_array_equal(
        exponential(x), [[np.inf, np.inf, np.inf, np.nan], [0, 0, np.nan, 5e-324]]
    )
    assert exponential(np.empty((2, 0))).shape == (2, 0)


def test_bits_do_not_depend_on_neighbours():
    x = np.random.default_rng(1).normal(size=3000)
    whole = exponential(x)
    for at in (slice(0, 1), slice(5, 12), slice(1020, 1030), slice(1, None, 7)):
        np.testing.assert_array_equal(exponential(x[at]), whole[at])


def test_few_numbers_have_the_bits_of_many():
    """NumPy computes few numbers, a compiled loop many."""
    x = np.random.default_rng(3).uniform(-750, 715, exponential_module._MAX_NUMBERS_IN_NUMPY + 1)
    x[:8] = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-310, -745.2, 709.9]
    many = exponential(x)
    for n in (1, 7, 8, 9, 15, 16, 17, 31, 33, 1023, exponential_module._MAX_NUMBERS_IN_NUMPY):
        few = exponential(x[:n])
        np.testing.assert_array_equal(few, many[:n])


def _one(x):
    """Return the exponential of a number by Python's additions and products, never fused."""
    whole = float(round(x * 1.4426950408889634))
    rest = x - whole * 0.693147180369123816490 - whole * 1.90821492927058770002e-10
    total = 1 / factorial(13)
    for n in range(12, -1, -1):
        total = total * rest + 1 / factorial(n)
    return ldexp(total, int(whole))


def test_bits_equal_those_of_unfused_operations():
    x = np.random.default_rng(2).uniform(-300, 300, 2000)
    np.testing.assert_array_equal(exponential(x), [_one(float(value)) for value in x])
