"""Curves and metrics of probabilities: options, ties, more scores than are kept."""

from __future__ import annotations

import inspect
from typing import Any

import dask.array as da
import numpy as np
import pytest
import sklearn.calibration
import sklearn.metrics

from daskml_dist import metrics
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.metrics import METRICS
from tests.metrics.rows import (
    BINARY,
    CLASSES,
    PROBA,
    SCORES,
    TEXT,
    WEIGHTS,
    assert_equal,
    lazy,
    parameters_of,
)

CURVES = ["det_curve", "precision_recall_curve", "roc_curve"]


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_options_of_curves(name: str, weights: str) -> None:
    weight = WEIGHTS[weights]
    lazy_weight = None if weight is None else lazy(weight)
    # The oldest scikit-learn has no such option of each curve.
    dropped = [True, False] if "drop_intermediate" in parameters_of(name) else []
    for options in [{}, *({"drop_intermediate": drop} for drop in dropped)]:
        expected = getattr(sklearn.metrics, name)(BINARY, SCORES, sample_weight=weight, **options)
        found = METRICS[name](lazy(BINARY), lazy(SCORES), sample_weight=lazy_weight, **options)
        assert_equal(found, expected)
    labels = TEXT[BINARY]
    expected = getattr(sklearn.metrics, name)(labels, SCORES, sample_weight=weight, pos_label="a")
    found = METRICS[name](lazy(labels), lazy(SCORES), sample_weight=lazy_weight, pos_label="a")
    assert_equal(found, expected)
    with pytest.raises(InvalidDataError, match="pos_label is not specified"):
        METRICS[name](lazy(labels), lazy(SCORES))
    with pytest.raises(InvalidParameterError, match="max_thresholds=0"):
        METRICS[name](lazy(BINARY), lazy(SCORES), max_thresholds=0)


def test_roc_curve_of_more_scores_than_are_kept() -> None:
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 2, 20_000)
    scores = rng.normal(size=20_000) + truth
    columns = [da.from_array(column, chunks=1700) for column in (truth, scores)]
    fpr, tpr, thresholds = metrics.roc_curve(*columns, max_thresholds=200)
    assert len(fpr) <= 201
    errors = []
    for shares, label in ((fpr, 0), (tpr, 1)):
        scores_of_label = np.sort(scores[truth == label])
        exact = 1 - np.searchsorted(scores_of_label, thresholds) / len(scores_of_label)
        errors.append(np.abs(exact - shares).max())
    assert 0 < max(errors) < 2 * 2 / 200


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_calibration_curve(strategy: str) -> None:
    for labels, options in ((BINARY, {}), (TEXT[BINARY], {"pos_label": "a"})):
        options = {"strategy": strategy, "n_bins": 4, **options}
        expected = sklearn.calibration.calibration_curve(labels, SCORES, **options)
        assert_equal(metrics.calibration_curve(lazy(labels), lazy(SCORES), **options), expected)
    with pytest.raises(InvalidDataError, match="outside"):
        metrics.calibration_curve(lazy(BINARY), lazy(SCORES * 3), strategy=strategy)
    with pytest.raises(InvalidDataError, match=r"[Oo]nly binary|more than two labels"):
        metrics.calibration_curve(lazy(CLASSES), lazy(SCORES), strategy=strategy)


def test_parameters_of_calibration_curve() -> None:
    for options in ({"strategy": "even"}, {"n_bins": 0}):
        with pytest.raises(InvalidParameterError, match=str(next(iter(options)))):
            metrics.calibration_curve(lazy(BINARY), lazy(SCORES), **options)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_probabilities_of_several_classes(weights: str) -> None:
    weight = WEIGHTS[weights]
    lazy_weight = None if weight is None else lazy(weight)
    columns = lazy(CLASSES), lazy(PROBA)
    truth = np.eye(3)[CLASSES]
    expected = np.average(((PROBA - truth) ** 2).sum(axis=1), weights=weight)
    for rows, sample_weight in ((columns, lazy_weight), ((CLASSES, PROBA), weight)):
        found = metrics.brier_score_loss(*rows, sample_weight=sample_weight)
        assert found == pytest.approx(expected, rel=1e-12)
        halved = metrics.brier_score_loss(*rows, sample_weight=sample_weight, scale_by_half=True)
        assert halved == pytest.approx(expected / 2, rel=1e-12)
    for normalize in (True, False):
        options: dict[str, Any] = {"normalize": normalize}
        best = sklearn.metrics.top_k_accuracy_score(CLASSES, PROBA, sample_weight=weight, **options)
        found = metrics.top_k_accuracy_score(*columns, sample_weight=lazy_weight, **options)
        assert found == pytest.approx(best, rel=1e-12)


def test_top_k_accuracy_counts_ties_as_scikit_learn() -> None:
    ties = np.round(PROBA, 1)
    expected = sklearn.metrics.top_k_accuracy_score(CLASSES, ties)
    assert metrics.top_k_accuracy_score(lazy(CLASSES), lazy(ties)) == expected
    signed = SCORES - 0.4  # a threshold of 0, not of 0.5
    expected = sklearn.metrics.top_k_accuracy_score(BINARY, signed, k=1)
    assert metrics.top_k_accuracy_score(lazy(BINARY), lazy(signed), k=1) == expected


@pytest.mark.parametrize("labels", [[2, 1, 0], [0, 1, 1, 2]])
def test_top_k_accuracy_has_labels_in_the_order_of_columns(labels: list[int]) -> None:
    for make in (np.asarray, lazy):
        with pytest.raises(ValueError, match=r"'labels' must be (ordered|unique)"):
            metrics.top_k_accuracy_score(make(CLASSES), make(PROBA), labels=labels)


def test_brier_score_of_several_columns_takes_any_of_the_given_labels() -> None:
    if "labels" not in inspect.signature(sklearn.metrics.brier_score_loss).parameters:
        pytest.skip("this scikit-learn knows no labels here")
    truth, proba = np.array(["b", "c", "c"]), np.array([[0.2, 0.3, 0.5]] * 3)
    options: dict[str, Any] = {"labels": ["a", "b", "c"], "pos_label": "a"}
    expected = sklearn.metrics.brier_score_loss(truth, proba, **options)
    assert_equal(metrics.brier_score_loss(truth, proba, **options), expected)
    blocks = da.from_array(truth, chunks=2), da.from_array(proba, chunks=(2, 3))
    assert_equal(metrics.brier_score_loss(*blocks, **options), expected)
    with pytest.raises(InvalidDataError, match="pos_label='d' is not a valid label"):
        metrics.brier_score_loss(truth[:1], [[0.4, 0.6]], labels=["b", "c"], pos_label="d")


def test_brier_score_of_named_labels() -> None:
    labels = TEXT[BINARY]
    expected = sklearn.metrics.brier_score_loss(labels, SCORES, pos_label="a")
    for make in (np.asarray, lazy):
        found = metrics.brier_score_loss(make(labels), make(SCORES), pos_label="a")
        assert found == pytest.approx(expected, rel=1e-12)
        with pytest.raises(InvalidDataError, match="pos_label is not specified"):
            metrics.brier_score_loss(make(labels), make(SCORES))
        with pytest.raises(InvalidDataError, match="not a valid label"):
            metrics.brier_score_loss(make(labels), make(SCORES), pos_label="c")


@pytest.mark.parametrize("name", ["precision_recall_curve", "roc_curve"])
@pytest.mark.parametrize(("labels", "pos_label"), [(CLASSES, 1), (TEXT[CLASSES], "b"), (BINARY, 7)])
@pytest.mark.filterwarnings("ignore:No positive")
def test_curves_of_one_label_against_all_others(name: str, labels: Any, pos_label: Any) -> None:
    expected = getattr(sklearn.metrics, name)(labels, SCORES, pos_label=pos_label)
    assert_equal(METRICS[name](lazy(labels), lazy(SCORES), pos_label=pos_label), expected)
