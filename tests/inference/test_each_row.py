"""Rows of which each is asked for alone: in one call, to the bit the answers of a call each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from daskml_dist import linear_model
from daskml_dist.inference import Predictor
from daskml_dist.inference.each_row import products_of_rows
from tests.inference.test_predictor import TABLE, D, model_of

pytestmark = pytest.mark.filterwarnings("ignore:.*failed to converge")
RANDOM = np.random.default_rng(0)
DTYPES = (np.float32, np.float64)


def scattered(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Values of many magnitudes, of which sums are rounded in each step."""
    return (RANDOM.normal(size=shape) * 10.0 ** RANDOM.integers(-3, 4, size=shape)).astype(dtype)


@pytest.mark.parametrize("weights", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_those_of_a_row_alone(dtype: Any, weights: Any) -> None:
    for width in (*range(1, 70), 127, 128, 129, 500, 1000, 5003):
        w = scattered((width, 1), weights)[:, 0]
        X = scattered((int(RANDOM.integers(2, 40)), width), dtype)
        alone = np.concatenate([X[at : at + 1].copy() @ w for at in range(len(X))])
        assert_array_equal(products_of_rows(X, w), alone, f"{width} features")


#: Methods that answer each row alone; all others are asked row by row.
EACH = {
    "logistic": {"predict_proba", "decision_function"},
    "logistic, no intercept": {"predict_proba", "decision_function"},
    "ridge": {"predict"},
    "ridge, no intercept": {"predict"},
    "scaled": {"predict_proba", "decision_function"},
    "not scaled": {"predict"},
    "standard": {"transform"},
    "standard of scikit-learn": {"transform"},
    "shrunk": {"transform"},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TABLE)
def test_answers_are_those_of_a_row_alone(name: str, dtype: Any) -> None:
    model, found = model_of(name), set()
    for method in ("predict_proba", "decision_function", "predict", "transform"):
        if not hasattr(model, method):
            continue
        predictor = Predictor(model, method)
        for n in (1, 2, 3, 17, 256):
            X = scattered((n, D), dtype)
            if (answers := predictor.each(X)) is None:
                break
            found.add(method)
            own = [getattr(model, method)(X[at : at + 1].copy()) for at in range(n)]
            assert_array_equal(answers, np.concatenate(own), method)
            assert answers.dtype == own[0].dtype
    assert found == EACH.get(name, set())


def test_rows_that_are_not_plain() -> None:
    X = scattered((3, 4), np.float64)
    predictor = Predictor(linear_model.LogisticRegression().fit(X, [0, 1, 1]))
    assert predictor.each(X) is not None
    for strange in (
        np.where(np.arange(12).reshape(3, 4) == 5, np.nan, X),
        X[:, :3].copy(),
        np.zeros((257, 4)),
        X.astype(np.int64),
        np.empty((0, 4)),
    ):
        assert predictor.each(strange) is None
