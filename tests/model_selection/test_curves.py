"""Learning and validation curves equal scikit-learn's, for rows in memory and in Dask."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from sklearn import linear_model as truths
from sklearn import model_selection as truth
from sklearn.naive_bayes import GaussianNB

from daskml_dist import linear_model, model_selection
from daskml_dist.errors import InvalidParameterError
from tests.quick import in_turn

RNG = np.random.default_rng(0)
N = 600
X = RNG.normal(size=(N, 5))
LABELS = np.where(X[:, 0] - X[:, 1] + RNG.logistic(size=N) > 0, "yes", "no")
OURS, THEIRS = linear_model.LogisticRegression(tol=1e-9), truths.LogisticRegression(tol=1e-9)
VALUES = {"param_name": "C", "param_range": [0.01, 1.0, 100.0], "cv": 3}


@pytest.fixture(params=["memory", "dask"])
def rows(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    if request.param == "memory":
        return X, LABELS
    request.getfixturevalue("client")
    return da.from_array(X, chunks=(250, 5)), da.from_array(LABELS, chunks=250)


@pytest.mark.parametrize("scoring", [None, "roc_auc"])
def test_validation_curves(rows: tuple[Any, Any], scoring: str | None) -> None:
    found = model_selection.validation_curve(OURS, *rows, scoring=scoring, **VALUES)
    expected = truth.validation_curve(THEIRS, X, LABELS, scoring=scoring, **VALUES)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize(
    ("sizes", "shuffle"), in_turn([[0.2, 0.5, 1.0], [100, 300]], [False, True])
)
def test_learning_curves(rows: tuple[Any, Any], sizes: list[Any], shuffle: bool) -> None:
    options = {"train_sizes": sizes, "cv": 3, "shuffle": shuffle, "random_state": 0}
    found = model_selection.learning_curve(OURS, *rows, return_times=True, **options)
    expected = truth.learning_curve(THEIRS, X, LABELS, **options)
    assert [array.shape for array in found[1:]] == [(len(sizes), 3)] * 4
    for one, other in zip(found[:3], expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_weights_are_used_in_fits_only(rows: tuple[Any, Any]) -> None:
    weights = RNG.integers(0, 5, size=N).astype(float)
    sample_weight = weights if rows[0] is X else da.from_array(weights, chunks=250)
    values = VALUES | {"param_range": [0.01, 1.0]}
    found = model_selection.validation_curve(
        OURS, *rows, params={"sample_weight": sample_weight}, **values
    )
    expected = truth.validation_curve(
        THEIRS, X, LABELS, params={"sample_weight": weights}, **values
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_estimators_that_cannot_be_batched(rows: tuple[Any, Any]) -> None:
    found = model_selection.learning_curve(GaussianNB(), *rows, train_sizes=[60, 200], cv=2)
    expected = truth.learning_curve(GaussianNB(), X, LABELS, train_sizes=[60, 200], cv=2)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other)


def test_invalid_arguments_are_refused(client: Any) -> None:
    lazy = da.from_array(X, chunks=(300, 5)), da.from_array(LABELS, chunks=300)
    with pytest.raises(InvalidParameterError, match="rows in memory"):
        model_selection.learning_curve(OURS, *lazy, exploit_incremental_learning=True)
    for sizes in ([0.0, 0.5], [0, 10], [10**6], [np.nan, 0.5], [], 0.5, ["all"]):
        with pytest.raises(InvalidParameterError, match="train_sizes"):
            model_selection.learning_curve(OURS, X, LABELS, train_sizes=sizes, cv=2)
    for some in ((X, LABELS), lazy):
        with pytest.raises(InvalidParameterError, match="param_range is empty"):
            model_selection.validation_curve(OURS, *some, param_name="C", param_range=[])
    with pytest.warns(RuntimeWarning, match="duplicate"):
        sizes, *_ = model_selection.learning_curve(OURS, X, LABELS, train_sizes=[60, 60], cv=2)
    assert sizes.tolist() == [60]
