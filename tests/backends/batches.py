"""Rows of each kind, from which backend tests take batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

N, P = 30, 12
ROWS = {
    "gathered": np.array([5, 0, 29, 5, 7]),  # a row may appear twice
    "slice": slice(3, 20),
    "none": np.empty(0, np.intp),
}
WIDTH = pytest.mark.parametrize("width", [1, 3])
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
CONTAINERS = pytest.mark.parametrize(
    "container", [np.asarray, sparse.csr_array, sparse.csr_matrix], ids=lambda c: c.__name__
)


def make_rows(dtype: Any = np.float64) -> NDArray[Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, P)) * (rng.random((N, P)) < 0.3)
    X[4] = X[7] = 0  # rows without entries
    X[:, 2] = 0
    return X.astype(dtype)


def draw_floats(*shape: int, dtype: Any = np.float64) -> NDArray[Any]:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


def rounding(dtype: Any) -> float:
    return 1e-5 if dtype is np.float32 else 1e-12
