"""Linear models of censored times by gradient steps: the optimum, any layout, and errors."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from scipy import optimize, sparse

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import SGDRegressor
from daskml_dist.losses import AFT, Cox
from daskml_dist.model_selection import GridSearchCV

rng = np.random.default_rng(0)
N = 2_000
X = rng.normal(size=(N, 3))
TIME = np.exp(2 + X @ [1.0, -0.5, 0.0] + 0.6 * rng.normal(size=N))
END = rng.exponential(40, N)
Y = np.where(TIME <= END, TIME, -END)
BOUNDS = np.column_stack([np.abs(Y), np.where(Y > 0, np.abs(Y), np.inf)])
GIVEN: dict[str, Any] = {"random_state": 0, "alpha": 0.0, "max_iter": 60, "tol": None}


def optimum(loss: AFT, bounds: Any = BOUNDS) -> Any:
    """Return the maximum-likelihood coefficients and intercept by SciPy."""
    y, rows = AFT.join(AFT.encode(*bounds.T), "float64"), np.column_stack([X, np.ones(N)])

    def mean(w: Any) -> tuple[float, Any]:
        values, gradient = loss.value_and_gradient(y, rows @ w)
        return float(values.mean()), rows.T @ gradient / N

    return optimize.minimize(mean, np.zeros(4), jac=True, options={"gtol": 1e-8}).x


@pytest.mark.parametrize("distribution", ["normal", "logistic", "extreme"])
def test_the_maximum_likelihood_is_found(distribution: str) -> None:
    loss = AFT(distribution, 0.6)
    model = SGDRegressor(loss, **GIVEN).fit(X, Y)
    wanted = optimum(loss)
    assert model.coef_.shape == (3,)
    np.testing.assert_allclose([*model.coef_, *model.intercept_], wanted, atol=0.03)
    np.testing.assert_allclose(model.predict(X), np.exp(X @ model.coef_ + model.intercept_))
    assert model.score(X, Y) > 0.8


def test_rows_of_any_layout(client: Client) -> None:
    loss, params = AFT(scale=0.6), {**GIVEN, "max_iter": 10}
    in_memory = SGDRegressor(loss, **params).fit(X, BOUNDS)
    wanted = in_memory.coef_
    lazy = [da.from_array(a, chunks=(500, *a.shape[1:])) for a in (X, BOUNDS)]
    fits = {
        "dask": lambda m: m.fit(*lazy),
        "float32": lambda m: m.fit(X.astype("float32"), Y),
        "sparse": lambda m: m.fit(sparse.csr_matrix(X), Y),
        "weights of 1": lambda m: m.fit(X, Y, np.ones(N)),
        "all rows": lambda m: m.set_params(batch_size=None, max_iter=80).fit(X, Y),
        "hogwild": lambda m: m.set_params(policy="hogwild").fit(X, Y),
        "rows held out": lambda m: m.set_params(early_stopping=True).fit(X, Y),
        "a constant rate": lambda m: m.set_params(learning_rate=0.05).fit(X, Y),
    }
    for name, fit in fits.items():
        model = fit(SGDRegressor(loss, **params))
        np.testing.assert_allclose(model.coef_, wanted, atol=0.1, err_msg=name)
    more = SGDRegressor(loss, random_state=0)
    for _ in range(20):
        more.partial_fit(X, Y)
    np.testing.assert_allclose(more.coef_, wanted, atol=0.1)
    assert model.score(*lazy) == pytest.approx(model.score(X, Y))


def test_invalid_times_and_settings_are_refused() -> None:
    with pytest.raises(InvalidParameterError, match=r"rows at risk.*HistGradientBoosting"):
        SGDRegressor(Cox()).fit(X, Y)
    with pytest.raises(InvalidDataError, match="All times of y are censored"):
        SGDRegressor(AFT()).fit(X, -np.abs(Y))
    with pytest.raises(InvalidDataError, match="neither positive"):
        SGDRegressor(AFT()).fit(X, np.zeros(N))
    with pytest.raises(InvalidParameterError, match="partial_fit"):
        SGDRegressor(AFT()).stream()


def test_searches_score_by_concordance() -> None:
    search = GridSearchCV(
        SGDRegressor(AFT(scale=0.6), random_state=0), {"alpha": [0.0, 10.0]}, cv=3
    )
    search.fit(X, Y)
    best, worst = search.cv_results_["mean_test_score"]
    assert best > worst
    assert best == pytest.approx(0.85, abs=0.1)
