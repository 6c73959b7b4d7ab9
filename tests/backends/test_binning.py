"""Few values are binned by NumPy, many by a compiled loop, with the same result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from daskml_dist.backends import binning


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_both_ways_give_the_same_bins(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    d, missing = 5, 20
    for n in (1, 7, 8, 9, 15, 16, 17, 31, 33, 255, 256, 257):
        n_edges = np.array([0, 1, 7, 19, 12], np.int32)
        categorical = np.array([False, False, False, False, True])
        table = np.full((d, 256), np.inf)
        for row, m in zip(table, n_edges, strict=True):
            row[:m] = np.sort(rng.normal(size=m).astype(np.float32))
        table[4, :12] = np.arange(12)
        X = rng.normal(size=(n, d)).astype(dtype)
        X[:, 4] = rng.integers(-1, 14, n)  # some categories are unknown
        X[:, 2] = rng.choice(table[2, :7], n)  # values equal to edges
        X[rng.random((n, d)) < 0.1] = np.nan
        X[0, :2] = np.inf, -np.inf
        found = []
        for few in (binning._MAX_VALUES_IN_NUMPY, 0):
            monkeypatch.setattr(binning, "_MAX_VALUES_IN_NUMPY", few)
            rows, columns = np.zeros((n, 8), np.uint8), np.zeros((d, n), np.uint8)
            has_missing = np.zeros(d, np.uint8)
            binning.put_in_bins(X, table, n_edges, categorical, missing, rows, columns, has_missing)
            np.testing.assert_array_equal(columns.T, rows[:, :d])
            found.append((rows, has_missing))
            monkeypatch.undo()
        for by_numpy, by_loop in zip(*found, strict=True):
            np.testing.assert_array_equal(by_numpy, by_loop, f"{n} rows")
