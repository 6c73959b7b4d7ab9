"""Quantiles of weighted rows equal NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from daskml_dist.data.column_statistics import sketch_column

RNG = np.random.default_rng(0)
Q = np.arange(17) / 16  # products of these are exact


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_integer_weights_equal_repeated_rows(n: int, average: bool) -> None:
    method = "averaged_inverted_cdf" if average else "inverted_cdf"
    values, weight = RNG.integers(0, 12, n).astype(float), RNG.integers(0, 4, n)
    weight[0] = 1
    found = sketch_column(values, weight).weighted_quantile(Q, average)
    np.testing.assert_array_equal(found, np.quantile(np.repeat(values, weight), Q, method=method))


def test_weighted_quantiles_equal_numpy() -> None:
    values, weight = RNG.normal(size=50), RNG.random(50)
    found = sketch_column(values, weight).weighted_quantile(Q, False)
    expected = np.quantile(values, Q, weights=weight, method="inverted_cdf")
    np.testing.assert_array_equal(found, expected)
