"""Several targets, quantiles of many numbers and deviances, as scikit-learn has them."""

from __future__ import annotations

import pickle
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.metrics

from daskml_dist import metrics
from daskml_dist.errors import InvalidDataError, InvalidParameterError, InvalidTypeError
from daskml_dist.metrics import METRICS, regression
from tests.metrics.rows import N, assert_equal, lazy, takes_targets, unknown

RNG = np.random.default_rng(5)
TRUTH = np.exp(RNG.normal(size=(N, 3))) * [1, 5, 20]
PREDICTED = TRUTH * np.exp(0.3 * RNG.normal(size=(N, 3)))
WEIGHT = RNG.random(N)
OF_TARGETS = [name for name in METRICS if takes_targets(name)]
EXPLAINED = ("r2_score", "explained_variance_score")


def frame(values: Any) -> Any:
    return dd.from_pandas(pd.DataFrame(values), npartitions=4)


@pytest.mark.parametrize("name", OF_TARGETS)
def test_several_targets(name: str) -> None:
    truth = getattr(sklearn.metrics, name)
    words: list[Any] = ["uniform_average", "raw_values", [0.2, 0.3, 0.5]]
    words += ["variance_weighted"] * (name in EXPLAINED)
    for multioutput in words:
        plain = truth(TRUTH, PREDICTED, multioutput=multioutput)
        weighted = truth(TRUTH, PREDICTED, multioutput=multioutput, sample_weight=WEIGHT)
        options = {"multioutput": multioutput}
        assert_equal(METRICS[name](frame(TRUTH), frame(PREDICTED), **options), plain)
        with_weight = {"sample_weight": unknown(WEIGHT), **options}
        assert_equal(METRICS[name](unknown(TRUTH), unknown(PREDICTED), **with_weight), weighted)
    assert_equal(METRICS[name](TRUTH, PREDICTED), truth(TRUTH, PREDICTED))


@pytest.mark.parametrize("name", OF_TARGETS)
def test_weights_of_targets_that_sum_to_zero(name: str) -> None:
    with pytest.raises(InvalidParameterError, match=r"multioutput=.* sums to zero"):
        METRICS[name](lazy(TRUTH), lazy(PREDICTED), multioutput=[0, 0, 0])


@pytest.mark.parametrize("name", OF_TARGETS)
def test_weights_of_targets_that_do_not_fit(name: str) -> None:
    with pytest.raises(InvalidParameterError, match=r"multioutput.*'each'"):
        METRICS[name](lazy(TRUTH), lazy(PREDICTED), multioutput="each")
    with pytest.raises(InvalidParameterError, match="weights of shape"):
        METRICS[name](lazy(TRUTH), lazy(PREDICTED), multioutput=[1.0, 2.0])


def many(n: int = 30_000) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(2)
    truth = rng.normal(size=n) + 100
    return truth, truth + rng.standard_cauchy(n), rng.integers(0, 5, n)


@pytest.mark.parametrize("margin", [regression._QUANTILE_MARGIN, 1e-12])
@pytest.mark.parametrize("weighted", [False, True])
def test_quantiles_of_more_than_a_sketch_holds(
    weighted: bool, margin: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regression, "_QUANTILE_MARGIN", margin)  # too narrow a look is made wider
    truth, predicted, weight = many()
    ours = {"sample_weight": da.from_array(weight, chunks=7013)} if weighted else {}
    theirs = {"sample_weight": weight} if weighted else {}
    columns = [da.from_array(column, chunks=7013) for column in (truth, predicted)]
    found = metrics.median_absolute_error(*columns, **ours)
    assert_equal(found, sklearn.metrics.median_absolute_error(truth, predicted, **theirs))
    for alpha in (0.0, 0.1, 1.0):
        found = metrics.d2_pinball_score(*columns, alpha=alpha, **ours)
        expected = sklearn.metrics.d2_pinball_score(truth, predicted, alpha=alpha, **theirs)
        assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("power", [-1, 0, 1, 1.5, 2, 3])
def test_deviances(power: float) -> None:
    rows = TRUTH[:, 0], PREDICTED[:, 0]
    for name in ("mean_tweedie_deviance", "d2_tweedie_score"):
        expected = getattr(sklearn.metrics, name)(*rows, power=power, sample_weight=WEIGHT)
        found = METRICS[name](*map(lazy, rows), power=power, sample_weight=lazy(WEIGHT))
        assert_equal(found, expected)


def test_numbers_that_have_no_score() -> None:
    negative = lazy(-TRUTH[:, 0])
    with pytest.raises(InvalidDataError, match="strictly positive"):
        metrics.mean_gamma_deviance(negative, negative)
    with pytest.raises(InvalidDataError, match="Logarithmic Error cannot be used"):
        metrics.mean_squared_log_error(negative, negative)
    with pytest.raises(InvalidParameterError, match="power"):
        metrics.mean_tweedie_deviance(lazy(TRUTH[:, 0]), lazy(TRUTH[:, 0]), power=0.5)
    with pytest.raises(InvalidParameterError, match="alpha"):
        metrics.mean_pinball_loss(lazy(TRUTH), lazy(TRUTH), alpha=2)
    with pytest.raises(InvalidTypeError, match=r"max_error\(\): .*sample_weight.*arguments are"):
        metrics.max_error(TRUTH[:, 0], TRUTH[:, 0], sample_weight=WEIGHT)


def test_weights_that_cancel_out_in_a_block() -> None:
    weight = np.r_[np.ones(7), np.tile([1.0, -1.0], 15), np.full(23, 2.0)]
    options = {"sample_weight": weight}
    expected = sklearn.metrics.mean_absolute_percentage_error(TRUTH, PREDICTED, **options)
    found = metrics.mean_absolute_percentage_error(
        lazy(TRUTH), lazy(PREDICTED), sample_weight=lazy(weight)
    )
    assert found == pytest.approx(expected, rel=1e-12)


def test_metrics_are_pickled_by_their_names() -> None:
    for metric in METRICS.values():
        assert pickle.loads(pickle.dumps(metric)) is metric
