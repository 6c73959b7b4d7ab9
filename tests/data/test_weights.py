"""Weights of rows: their shapes, as scikit-learn takes and refuses them."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from daskml_dist.errors import InvalidDataError, InvalidTypeError
from daskml_dist.linear_model import Ridge
from daskml_dist.metrics import accuracy_score

X = np.random.default_rng(0).normal(size=(30, 2))
Y = (X[:, 0] > 0).astype(int)
COLUMN = np.ones((30, 1))


@pytest.mark.parametrize(
    "weight",
    [
        COLUMN, COLUMN.tolist(), pd.DataFrame(COLUMN), da.from_array(COLUMN),
        dd.from_pandas(pd.DataFrame(COLUMN, columns=["w"])),
    ],
    ids=["array", "list", "frame", "lazy array", "lazy frame"],
)  # fmt: skip
def test_weights_have_one_dimension(weight: Any) -> None:
    with pytest.raises(InvalidDataError, match="Sample weights must be 1D array or scalar, got"):
        Ridge().fit(X, Y, sample_weight=weight)
    with pytest.raises(InvalidDataError, match="Sample weights must be 1D array or scalar, got"):
        accuracy_score(da.from_array(Y, chunks=10), Y, sample_weight=weight)


def test_a_number_is_the_weight_of_every_row() -> None:
    plain = Ridge().fit(X, Y)
    for weight in (None, 1, 1.0, np.float64(1.0), np.float32(1.0)):
        np.testing.assert_array_equal(Ridge().fit(X, Y, sample_weight=weight).coef_, plain.coef_)
    for scalar in (np.array(2.0), da.from_array(np.array(2.0))):
        with pytest.raises(InvalidTypeError, match="at least 1 dimension"):
            Ridge().fit(X, Y, sample_weight=scalar)
