"""Intervals of streams keep their coverage, whatever the data do."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.linear_model import LinearRegression, SGDRegressor

from daskml_dist.conformal import AdaptiveConformalInference
from daskml_dist.errors import InvalidDataError, InvalidParameterError, NotFittedError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3000, 2))
#: The noise grows tenfold half-way, and the slope turns.
Y = np.where(np.arange(3000) < 1500, X[:, 0], -X[:, 0]) + RNG.normal(size=3000) * np.where(
    np.arange(3000) < 1500, 1, 10
)
FROZEN = LinearRegression().fit(X[:200], Y[:200])


class Diverged(RegressorMixin, BaseEstimator):
    """Regressor that predicts NaN."""

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, X: Any, y: Any) -> Diverged:
        return self

    def predict(self, X: Any) -> Any:
        return np.full(len(X), np.nan)


@pytest.mark.parametrize("gamma", [0.005, 0.05])
def test_errors_keep_to_the_bound_of_the_paper(gamma: float) -> None:
    model = AdaptiveConformalInference(FROZEN, gamma=gamma, window=200, update=False)
    for start in range(0, 3000, 150):
        model.partial_fit(X[start : start + 150], Y[start : start + 150])
        bound = (0.9 + gamma) / (gamma * model.n_rows_)
        assert abs(model.coverage_ - 0.9) <= bound + 1e-12
    assert abs(model.coverage_ - 0.9) < 0.02


def test_levels_are_those_of_the_definition() -> None:
    model = AdaptiveConformalInference(FROZEN, gamma=0.05, window=100, update=False)
    model.partial_fit(X[:400], Y[:400])
    level, last_scores, errors = 0.1, [], 0
    for score in np.abs(Y - FROZEN.predict(X))[:400]:
        rank = len(last_scores) + 1 - int(np.floor(level * (len(last_scores) + 1) + 1e-9))
        width = np.inf if level <= 0 or rank > len(last_scores) else sorted(last_scores)[rank - 1]
        errors += score > width
        level += 0.05 * (0.1 - (score > width))
        last_scores = [*last_scores, score][-100:]
    assert_allclose(model.level_, level)
    assert model.n_errors_ == errors
    rank = 101 - int(np.floor(level * 101 + 1e-9))
    low, high = model.predict_interval(X[:5]).T
    assert_allclose((high - low) / 2, sorted(last_scores)[rank - 1])


def test_batches_of_any_size_and_lazy_blocks_are_one_stream() -> None:
    params: dict[str, Any] = {"window": 100, "update": False}
    whole = AdaptiveConformalInference(FROZEN, **params).partial_fit(X[:300], Y[:300])
    lazy = AdaptiveConformalInference(FROZEN, **params)
    rows = da.from_array(X[:300], chunks=((100, 0, 200), 2))
    lazy.partial_fit(rows, da.from_array(Y[:300], chunks=((100, 0, 200),)))
    assert lazy.level_ == whole.level_
    assert_allclose(lazy.predict_interval(rows), whole.predict_interval(X[:300]))


def test_the_model_learns_after_it_has_predicted() -> None:
    member = SGDRegressor(random_state=0)
    model = AdaptiveConformalInference(member)
    with pytest.raises(NotFittedError):
        model.predict_interval(X[:2])
    model.partial_fit(X[:100], Y[:100])
    assert model.n_rows_ == 0
    assert np.isinf(model.predict_interval(X[:2])).all()
    model.partial_fit(X[100:200], Y[100:200])
    assert model.n_rows_ == 100
    expected = SGDRegressor(random_state=0).partial_fit(X[:100], Y[:100])
    expected.partial_fit(X[100:200], Y[100:200])
    assert_allclose(model.estimator_.coef_, expected.coef_)
    assert not hasattr(member, "coef_")


def test_a_new_stream_forgets_the_columns_of_the_last_one() -> None:
    model = AdaptiveConformalInference(SGDRegressor(random_state=0))
    model.fit(pd.DataFrame(X[:50], columns=["a", "b"]), Y[:50])
    assert list(model.feature_names_in_) == ["a", "b"]
    model.fit(X[:50], Y[:50]).partial_fit(X[50:90], Y[50:90])
    assert not hasattr(model, "feature_names_in_")
    assert model.n_rows_ == 40


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(InvalidParameterError, match="has no partial_fit"):
        AdaptiveConformalInference(LinearRegression()).partial_fit(X, Y)
    with pytest.raises(InvalidParameterError, match="gamma=0: use a number > 0"):
        AdaptiveConformalInference(FROZEN, gamma=0, update=False).partial_fit(X, Y)
    model = AdaptiveConformalInference(FROZEN, update=False).partial_fit(X[:100], Y[:100])
    level = model.level_
    with pytest.raises(InvalidDataError, match="NaN"):
        model.partial_fit(X[:2], [1.0, np.nan])
    assert model.level_ == level
    with pytest.raises(InvalidDataError, match="has 1"):
        model.partial_fit(X[:2], Y[:1])
    with pytest.raises(InvalidDataError, match="predicts NaN"):
        AdaptiveConformalInference(Diverged(), update=False).partial_fit(X[:2], Y[:2])
    with pytest.raises(InvalidDataError, match="target y is None"):
        model.partial_fit(X)
