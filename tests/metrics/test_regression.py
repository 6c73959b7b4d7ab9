"""Coefficient of determination: large means, constants, blocks without weight."""

from __future__ import annotations

import math

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
