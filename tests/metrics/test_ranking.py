"""Areas under curves: their bound, ties, runs, several classes."""

from __future__ import annotations

import math
from typing import Any

import dask.array as da
import numpy as np
import pytest
import sklearn.metrics
from sklearn.exceptions import UndefinedMetricWarning

from daskml_dist import metrics
from daskml_dist.errors import InvalidDataError
from daskml_dist.metrics import METRICS
from daskml_dist.metrics._runs import make_score_run, merge_score_runs
from tests.metrics.rows import (
    BINARY,
    CLASSES,
    PROBA,
    RANKING,
    SCORES,
    TEXT,
    WEIGHTS,
    N,
    assert_equal,
    lazy,
    unknown,
)


def many_rows(n: int = 20_000, *, sorted_rows: bool = False) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(8)
    truth = (rng.random(n) < 0.2).astype(int)
    scores = rng.normal(size=n) + truth
    if sorted_rows:
        scores.sort()
    return truth, scores, rng.random(n)


@pytest.mark.parametrize("name", RANKING)
@pytest.mark.parametrize("sorted_rows", [False, True])
@pytest.mark.parametrize("limit", [20, 300])
@pytest.mark.parametrize("n_blocks", [1, 7, 40])
def test_bound_holds(name: str, sorted_rows: bool, limit: int, n_blocks: int) -> None:
    truth, scores, weight = many_rows(sorted_rows=sorted_rows)
    expected = getattr(sklearn.metrics, name)(truth, scores, sample_weight=weight)
    columns = [da.from_array(c, chunks=-(-len(c) // n_blocks)) for c in (truth, scores, weight)]
    found, bound = METRICS[name](
        *columns[:2], sample_weight=columns[2], max_thresholds=limit, return_bound=True
    )
    assert abs(found - expected) <= bound
    levels = 1 + math.ceil(math.log(n_blocks, 16)) if n_blocks > 1 else 1
    assert 0 < bound < 3 * levels / limit * (1 if name == "roc_auc_score" else 4)


@pytest.mark.parametrize("name", RANKING)
@pytest.mark.parametrize("limit", [None, 20_000])
def test_exact_without_bins(name: str, limit: int | None) -> None:
    truth, scores, weight = many_rows()
    expected = getattr(sklearn.metrics, name)(truth, scores, sample_weight=weight)
    columns = [da.from_array(c, chunks=501) for c in (truth, scores, weight)]
    found, bound = METRICS[name](
        *columns[:2], sample_weight=columns[2], max_thresholds=limit, return_bound=True
    )
    assert_equal(found, expected)
    assert bound == 0.0


@pytest.mark.parametrize("name", RANKING)
def test_ties_are_exact_with_few_scores(name: str) -> None:
    truth, scores, _ = many_rows()
    scores = np.round(scores, 1)
    found, bound = METRICS[name](
        da.from_array(truth, chunks=501),
        da.from_array(scores, chunks=501),
        max_thresholds=len(np.unique(scores)),
        return_bound=True,
    )
    assert_equal(found, getattr(sklearn.metrics, name)(truth, scores))
    assert bound == 0.0


@pytest.mark.parametrize("name", RANKING)
def test_error_bound_holds_with_ties_across_bins(name: str) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        truth, scores = rng.integers(0, 2, 200), rng.integers(0, 30, 200).astype(float)
        columns = [da.from_array(c, chunks=13) for c in (truth, scores)]
        found, bound = METRICS[name](*columns, max_thresholds=9, return_bound=True)
        expected = getattr(sklearn.metrics, name)(truth, scores)
        assert abs(found - expected) <= bound + 1e-14


def test_bound_in_memory() -> None:
    assert metrics.roc_auc_score(BINARY, SCORES, return_bound=True) == (
        sklearn.metrics.roc_auc_score(BINARY, SCORES),
        0.0,
    )


def test_runs_stay_short() -> None:
    truth, scores, weight = many_rows()
    runs = [make_score_run(truth[i::20], scores[i::20], weight[i::20], 100) for i in range(20)]
    merged = merge_score_runs(runs, 100)
    assert all(len(run.low) <= 100 for run in [*runs, merged])
    np.testing.assert_allclose(merged.weights.sum(axis=0), np.bincount(truth, weight))
    assert (merged.low <= merged.high).all()
    assert (np.diff(merged.low) > 0).all()


def test_partial_roc_auc() -> None:
    found = metrics.roc_auc_score(lazy(BINARY), lazy(SCORES), max_fpr=0.3)
    assert_equal(found, sklearn.metrics.roc_auc_score(BINARY, SCORES, max_fpr=0.3))


@pytest.mark.parametrize("average", ["macro", "weighted", "micro", None])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_roc_auc_of_several_classes(average: Any, weights: str) -> None:
    weight = WEIGHTS[weights]
    expected = sklearn.metrics.roc_auc_score(
        CLASSES, PROBA, average=average, multi_class="ovr", sample_weight=weight
    )
    for make in (np.asarray, lazy, unknown):
        for labels in ([0, 1, 2], None):
            found = metrics.roc_auc_score(
                make(CLASSES),
                make(PROBA),
                average=average,
                multi_class="ovr",
                labels=labels,
                sample_weight=None if weight is None else make(weight),
            )
            assert_equal(found, expected)


@pytest.mark.parametrize("average", ["macro", "weighted"])
@pytest.mark.parametrize("names", [["a", "b", "c"], [3, 5, 9]])
@pytest.mark.parametrize("labels", ["given", "found"])
def test_roc_auc_of_pairs_of_classes(average: Any, names: list[Any], labels: str) -> None:
    truth = np.array(names)[CLASSES]
    options = {"average": average, "multi_class": "ovo"}
    expected = sklearn.metrics.roc_auc_score(truth, PROBA, **options)
    label_names = names if labels == "given" else None
    for make in (np.asarray, lazy, unknown):
        found = metrics.roc_auc_score(make(truth), make(PROBA), labels=label_names, **options)
        assert_equal(found, expected)


def test_roc_auc_of_pairs_leaves_out_classes_without_rows() -> None:
    rows = CLASSES < 2
    options = {"multi_class": "ovo", "labels": [0, 1, 2]}
    truth, scores = CLASSES[rows], PROBA[rows]
    found = metrics.roc_auc_score(
        da.from_array(truth, chunks=5), da.from_array(scores, chunks=(5, 3)), **options
    )
    assert_equal(found, sklearn.metrics.roc_auc_score(truth, scores, **options))


@pytest.mark.parametrize("multi_class", ["ovr", "ovo"])
def test_bound_of_several_classes(multi_class: str) -> None:
    expected = sklearn.metrics.roc_auc_score(CLASSES, PROBA, multi_class=multi_class)
    found, bound = metrics.roc_auc_score(
        lazy(CLASSES),
        lazy(PROBA),
        multi_class=multi_class,
        labels=[0, 1, 2],
        max_thresholds=5,
        return_bound=True,
    )
    assert 0 < abs(found - expected) <= bound


def test_one_class() -> None:
    ones = np.ones(N, int)
    for make in (np.asarray, lazy):
        with pytest.warns(UndefinedMetricWarning, match="Only one class is present"):
            assert math.isnan(metrics.roc_auc_score(make(ones), make(SCORES)))
        with pytest.warns(UserWarning, match="No positive class found"):
            assert metrics.average_precision_score(make(ones * 0), make(SCORES)) == 0.0


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("labels", [CLASSES, TEXT[CLASSES]], ids=["numbers", "text"])
def test_average_precision_of_several_classes_equals_scikit_learn(
    labels: Any, weights: str
) -> None:
    weight = WEIGHTS[weights]
    for average in ("macro", "weighted", "micro", "samples", None):
        expected = sklearn.metrics.average_precision_score(
            labels, PROBA, average=average, sample_weight=weight
        )
        for make in (lazy, unknown):
            found = metrics.average_precision_score(
                make(labels), make(PROBA), average=average,
                sample_weight=None if weight is None else make(weight),
            )  # fmt: skip
            assert_equal(found, expected)
    with pytest.raises(InvalidDataError, match="pos_label is fixed to 1"):
        metrics.average_precision_score(lazy(labels), lazy(PROBA), pos_label=2)
    with pytest.raises(InvalidDataError, match="number of output"):
        metrics.average_precision_score(lazy(labels), lazy(PROBA[:, :2]))
