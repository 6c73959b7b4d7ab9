"""Blocks of a Dask array may be lists of lists, which Dask permits."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask import delayed
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from daskml_dist.cluster import KMeans
from daskml_dist.compose import make_column_transformer
from daskml_dist.decomposition import PCA, IncrementalPCA
from daskml_dist.errors import InvalidDataError
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.metrics import accuracy_score, mean_squared_error
from daskml_dist.model_selection import cross_val_score, train_test_split
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.preprocessing import (
    KBinsDiscretizer,
    MinMaxScaler,
    OneHotEncoder,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
    TargetEncoder,
)


def _rows() -> tuple[NDArray[Any], NDArray[Any]]:
    X = np.random.default_rng(0).integers(0, 5, size=(40, 3)).astype(float)
    return X, (X[:, 0] + X[:, 1] > 4).astype(int)


def _listed(values: NDArray[Any]) -> Any:
    """Return a Dask array of four chunks, each of which is a list."""
    chunks = [
        da.from_delayed(delayed(part.tolist(), pure=False), part.shape, meta=values[:0])
        for part in np.array_split(values, 4)
    ]
    return da.concatenate(chunks)


@pytest.mark.parametrize(
    "model",
    [
        StandardScaler(),
        StandardScaler().set_output(transform="pandas"),
        MinMaxScaler(),
        RobustScaler(),
        QuantileTransformer(n_quantiles=10),
        KBinsDiscretizer(3, strategy="uniform"),
        OneHotEncoder(),
        TargetEncoder(random_state=0),
        PCA(2),
        IncrementalPCA(2),
    ],
    ids=str,
)
def test_transformers(model: Any) -> None:
    X, y = _rows()
    expected, found = (clone(model).fit(rows, labels) for rows, labels in _both(X, y))
    for rows in (X, _listed(X)):
        of_both = [np.asarray(_dense(each.transform(rows))) for each in (expected, found)]
        np.testing.assert_allclose(of_both[1], of_both[0], atol=1e-9)


def _both(X: Any, y: Any) -> list[tuple[Any, Any]]:
    return [(X, y), (_listed(X), _listed(y))]


def _dense(values: Any) -> Any:
    values = values.compute() if hasattr(values, "compute") else values
    return values.toarray() if hasattr(values, "toarray") else values


@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(),
        GaussianNB(),
        KMeans(2, random_state=0),
        make_pipeline(StandardScaler(), GaussianNB()),
    ],
    ids=lambda model: type(model).__name__,
)
def test_models(model: Any) -> None:
    X, y = _rows()
    expected, found = (clone(model).fit(rows, labels) for rows, labels in _both(X, y))
    for lazily in (_listed(X), X):
        np.testing.assert_array_equal(np.asarray(found.predict(lazily)), found.predict(X))
    if not isinstance(model, KMeans):
        np.testing.assert_array_equal(found.predict(X), expected.predict(X))
        assert found.score(_listed(X), _listed(y)) == expected.score(X, y)
        assert accuracy_score(_listed(y), found.predict(_listed(X))) == expected.score(X, y)


def test_splits() -> None:
    X, y = _rows()
    parts = [part.compute() for part in train_test_split(_listed(X), _listed(y), random_state=0)]
    assert [part.shape for part in parts] == [(30, 3), (10, 3), (30,), (10,)]
    scores = [cross_val_score(GaussianNB(), *rows, cv=2) for rows in _both(X, y)]
    np.testing.assert_allclose(*scores)


@pytest.mark.parametrize(
    "fit",
    [
        lambda X, y: GaussianNB().fit(X[:, :2], y),
        lambda X, y: make_column_transformer((StandardScaler(), [0])).fit_transform(X),
        lambda X, y: mean_squared_error(X[:, 0], y),
    ],
    ids=["columns", "ColumnTransformer", "metric"],
)
def test_slices_of_lists_raise(fit: Any) -> None:
    """Dask itself cannot select columns of a list."""
    X, y = _rows()
    with pytest.raises(InvalidDataError, match=r"is a list.*map_blocks\(numpy\.asarray\)"):
        fit(_listed(X), _listed(y))


def test_rows_of_different_lengths_raise() -> None:
    chunk = da.from_delayed(delayed([[1.0, 2.0], [3.0]], pure=False), (2, 2), dtype=float)
    with pytest.raises(
        InvalidDataError, match=r"Block 0 of X: X is not an array|Block 0.*equal len"
    ):
        StandardScaler().fit(chunk)
