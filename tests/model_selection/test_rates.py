"""Learning rate range test, compared with plain gradient descent."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import LogisticRegression, SGDClassifier, SGDRegressor
from daskml_dist.model_selection import _learning_rates, learning_rate_range
from daskml_dist.neural_network import MLPClassifier

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 3)) * [1.0, 2.0, 0.5]
Y = X @ [1.0, -2.0, 3.0] + 0.1 * RNG.normal(size=400)
LABELS = np.where(Y > 0, "yes", "no")
RATES = np.logspace(-4, 1, 11)


def _descended(rate: float, n_steps: int = 32) -> float:
    """Return half the mean square before the last of some full-batch steps."""
    w, loss = np.zeros(3), np.nan
    for _ in range(n_steps):
        residual = X @ w - Y
        loss = float(residual @ residual) / (2 * len(X))
        w -= rate * X.T @ residual / len(X)
    return loss


def test_losses_equal_those_of_gradient_descent() -> None:
    model = SGDRegressor(
        penalty=None, optimizer="sgd", fit_intercept=False, batch_size=len(X), random_state=0
    )
    found = learning_rate_range(model, X, Y, rates=RATES[::-1])
    assert (found.batch_size, found.n_rows, found.parameter) == (400, 400, "learning_rate")
    np.testing.assert_array_equal(found.rates, RATES)
    expected = np.array([_descended(rate) for rate in RATES])
    stable = 2 / np.linalg.eigvalsh(X.T @ X / len(X)).max() > RATES
    np.testing.assert_allclose(found.losses[stable], expected[stable], rtol=1e-9)
    assert (found.losses[~stable] > 1e3 * found.losses[stable].max()).all()
    gains = expected[0] - expected[stable]
    assert found.suggestion == RATES[np.argmax(gains >= 0.9 * gains.max())]
    assert not hasattr(model, "coef_")


def test_a_sample_of_dask_rows_has_the_batch_size_of_all_rows(client: Client) -> None:
    rows = da.from_array(np.tile(X, (10, 1)), chunks=(500, 3))
    labels = da.from_array(np.tile(LABELS, 10), chunks=500)
    model = SGDClassifier(random_state=0, batch_size=50)
    found = learning_rate_range(model, rows, labels, n_rows=1000)
    assert found.n_rows == 1000
    fitted = SGDClassifier(
        random_state=0, batch_size=50, learning_rate=found.suggestion, tol=None, max_iter=1
    ).fit(rows, labels)
    (record,) = fitted.history_
    assert found.batch_size == pytest.approx(record["rows"] / record["steps"], abs=1)
    assert record["loss"] < 0.5 * np.log(2)


def test_a_network_and_its_plot() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    model = MLPClassifier((8,), random_state=0)
    found = learning_rate_range(model, X, LABELS, rates=[1e-6, 1e-3, 1e-1])
    assert found.parameter == "learning_rate_init"
    assert found.suggestion == 1e-1
    ax = found.plot()
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), np.c_[found.rates, found.losses])
    assert ax.lines[1].get_xdata()[0] == found.suggestion
    pyplot.close("all")


def test_no_rate_is_suggested_if_none_reduces_the_loss() -> None:
    model = SGDClassifier(learning_rate="constant", eta0=0.1, random_state=0)
    found = learning_rate_range(model, X, LABELS, rates=[1e-12, 1e-11])
    assert found.suggestion is None
    assert repr(found) == "<LearningRates: 2 from 1e-12 to 1e-11, suggestion none>"


@pytest.mark.parametrize(
    ("model", "options", "remedy"),
    [
        (LogisticRegression(), {}, "trained by gradient steps"),
        (SGDClassifier(), {"rates": [0.1, -1.0]}, "numbers > 0"),
        (SGDClassifier(), {"rates": "fast"}, "numbers > 0"),
        (SGDClassifier(), {"n_rows": 0}, ">= 1"),
    ],
)
def test_invalid_arguments_are_refused(model: Any, options: dict[str, Any], remedy: str) -> None:
    with pytest.raises(InvalidParameterError, match=remedy):
        learning_rate_range(model, X, LABELS, **options)


def test_rates_of_linear_models_are_tried_in_one_batched_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Losses equal those of separate fits, also with weights and divergence."""
    three, weight = np.digitize(Y, [-3, 3]), RNG.random(400)
    classifier = SGDClassifier(random_state=0, batch_size=32)
    regressor = SGDRegressor(random_state=0, batch_size=32, optimizer="sgd")
    for model, y in ((classifier, three), (regressor, Y)):
        with monkeypatch.context() as patch:
            patch.setattr(_learning_rates, "_fit_to_loss", None)  # no separate fit
            together = learning_rate_range(model, X, y, weight, rates=RATES)
        with monkeypatch.context() as patch:
            patch.setattr(_learning_rates, "_fit_batched_to_losses", lambda *args: None)
            alone = learning_rate_range(model, X, y, weight, rates=RATES)
        np.testing.assert_allclose(together.losses, alone.losses, rtol=1e-9)
        assert together.suggestion == alone.suggestion
