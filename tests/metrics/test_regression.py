"""Coefficient of determination: large means, constants, blocks without weight."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import sklearn.metrics
from sklearn.exceptions import UndefinedMetricWarning

from daskml_dist import metrics
from daskml_dist.metrics import METRICS
from tests.metrics.rows import CLASSES, GUESSES, N, assert_equal, lazy


def test_r2_with_a_large_mean() -> None:
    y_true = 1e8 + np.random.default_rng(0).normal(size=N)
    y_pred = y_true + 0.1 * np.random.default_rng(1).normal(size=N)
    expected = sklearn.metrics.r2_score(y_true - 1e8, y_pred - 1e8)
    assert metrics.r2_score(lazy(y_true), lazy(y_pred)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("force_finite", [True, False])
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_r2_of_a_constant(force_finite: bool, shift: float) -> None:
    constant = np.full(N, 0.1)
    found = metrics.r2_score(lazy(constant), lazy(constant + shift), force_finite=force_finite)
    if force_finite:
        assert found == (0.0 if shift else 1.0)
    else:
        assert found == -math.inf if shift else math.isnan(found)


def test_r2_of_one_row() -> None:
    with pytest.warns(UndefinedMetricWarning, match="less than two samples"):
        assert math.isnan(metrics.r2_score(lazy([1.0], (1,)), lazy([2.0], (1,))))


def test_r2_of_a_block_without_weight() -> None:
    weight = np.r_[np.zeros(7), np.ones(N - 7)]
    expected = sklearn.metrics.r2_score(CLASSES[7:], GUESSES[7:])
    found = metrics.r2_score(lazy(CLASSES), lazy(GUESSES), sample_weight=lazy(weight))
    assert_equal(found, expected)


def test_negative_weights_as_scikit_learn_in_sums() -> None:
    weight = np.r_[-1.0, np.ones(N - 1)]
    for name in ("accuracy_score", "mean_squared_error", "confusion_matrix"):
        expected = getattr(sklearn.metrics, name)(CLASSES, GUESSES, sample_weight=weight)
        found = METRICS[name](lazy(CLASSES), lazy(GUESSES), sample_weight=lazy(weight))
        assert_equal(found, expected)


def _deviance_from(y: np.ndarray, means: list[Decimal], power: float) -> Decimal:
    """Return the summed deviance by its definition, for powers from 1 on."""
    p, total = Decimal(power), Decimal(0)
    for value, mean in zip(map(Decimal, y.tolist()), means, strict=True):
        ratio = value / mean
        if power == 1:
            total += value * ratio.ln() - value + mean
        elif power == 2:
            total += ratio - 1 - ratio.ln()
        else:
            slope = value * mean ** (1 - p) / (1 - p)
            total += value ** (2 - p) / ((1 - p) * (2 - p)) - slope + mean ** (2 - p) / (2 - p)
    return 2 * total


@pytest.mark.parametrize("power", [1, 1.5, 2, 3])
@pytest.mark.parametrize("spread", [1e5, 100.0, 1.0, 1e-3])
def test_deviances_of_rows_near_their_mean(power: float, spread: float) -> None:
    rng = np.random.default_rng(0)
    y_true = 1e6 + spread * rng.normal(size=N)
    y_pred = 1e6 + (y_true - 1e6) / 2 + spread / 4 * rng.normal(size=N)
    with localcontext() as context:
        context.prec = 50
        means = [sum(map(Decimal, y_true.tolist())) / N] * N
        errors = _deviance_from(y_true, [*map(Decimal, y_pred.tolist())], power)
        expected = float(1 - errors / _deviance_from(y_true, means, power)), float(errors / N)
    options = {"power": power}
    found = metrics.d2_tweedie_score(lazy(y_true), lazy(y_pred), **options)
    assert found == pytest.approx(expected[0], rel=1e-11)
    found = metrics.mean_tweedie_deviance(lazy(y_true), lazy(y_pred), **options)
    assert found == pytest.approx(expected[1], rel=1e-11)


def test_d2_of_targets_that_are_zero_in_a_block() -> None:
    y_true = np.r_[np.zeros(20), np.arange(N - 20)]
    weight = np.r_[np.zeros(7), np.ones(N - 7)]
    for power in (-1, 1, 1.5):
        options = {"power": power, "sample_weight": weight}
        expected = sklearn.metrics.d2_tweedie_score(y_true, y_true + 1, **options)
        options["sample_weight"] = lazy(weight)
        assert_equal(metrics.d2_tweedie_score(lazy(y_true), lazy(y_true + 1), **options), expected)
