"""Weights of rows: their shapes, as scikit-learn takes and refuses them."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from daskml_dist.cluster import KMeans
from daskml_dist.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from daskml_dist.errors import InvalidDataError, InvalidTypeError
from daskml_dist.linear_model import LinearRegression, Ridge, SGDClassifier
from daskml_dist.metrics import accuracy_score
from daskml_dist.naive_bayes import GaussianNB

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


WEIGHTS = np.random.default_rng(1).uniform(0.5, 2.0, size=30)
FITS: dict[str, Any] = {
    "SGDClassifier": SGDClassifier(max_iter=3, tol=None, random_state=0),
    "SGDClassifier, balanced": SGDClassifier(
        max_iter=3, tol=None, random_state=0, class_weight="balanced"
    ),
    "LinearRegression": LinearRegression(),
    "GaussianNB": GaussianNB(),
    "KMeans": KMeans(2, n_init=1, random_state=0),
}


@pytest.mark.parametrize("size", [1e-60, 1e60])
@pytest.mark.parametrize("is_lazy", [False, True])
@pytest.mark.parametrize("name", FITS)
def test_only_the_ratios_of_weights_count_beside_rows_of_float32(
    name: str, is_lazy: bool, size: float
) -> None:
    def fit(weight: Any) -> Any:
        arrays = X.astype(np.float32), Y, weight
        if is_lazy:
            arrays = tuple(da.from_array(one, chunks=(10, *one.shape[1:])) for one in arrays)
        return clone(FITS[name]).fit(*arrays[:2], sample_weight=arrays[2])

    # A power of two changes no bit of a weight's fraction.
    scaled, plain = fit(WEIGHTS * 2.0 ** round(np.log2(size))), fit(WEIGHTS)
    method = "predict_proba" if hasattr(plain, "predict_proba") else "predict"
    found, wanted = (getattr(one, method)(X.astype(np.float32)) for one in (scaled, plain))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_weights_that_float64_cannot_scale_are_refused() -> None:
    with pytest.raises(InvalidDataError, match=r"sample_weight / sample_weight.max\(\)"):
        GaussianNB().fit(X, Y, sample_weight=np.full(30, 1e-320))


@pytest.mark.parametrize("size", [1e-60, 1e60])
@pytest.mark.parametrize(
    "model",
    [RandomForestClassifier(2), HistGradientBoostingClassifier(max_iter=2)],
    ids=["forest", "boosting"],
)
def test_trees_refuse_weights_beyond_the_range_of_the_rows(model: Any, size: float) -> None:
    rows = X.astype(np.float32)
    with pytest.raises(InvalidDataError, match=r"sample_weight / sample_weight.max\(\)"):
        clone(model).fit(rows, Y, sample_weight=WEIGHTS * size)
    # Some weights may be so small that their rows do not count beside the others.
    clone(model).fit(rows, Y, sample_weight=np.where(np.arange(30) % 5, WEIGHTS, 1e-60))
