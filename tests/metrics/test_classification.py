"""Labels of any kind: accuracy and confusion matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.metrics

from daskml_dist import metrics
from daskml_dist.metrics import METRICS
from daskml_dist.metrics._columns import ScoredRows
from tests.metrics.rows import (
    BINARY,
    CLASSES,
    GUESSES,
    SCORES,
    TEXT,
    assert_equal,
    lazy,
    series,
    unknown,
    with_empty_partition,
)


@pytest.mark.parametrize("make", [lazy, unknown, series, with_empty_partition])
@pytest.mark.parametrize("dtype", ["U", "O"])
def test_strings(make: Callable[[Any], Any], dtype: str) -> None:
    y_true, y_pred = TEXT[CLASSES].astype(dtype), TEXT[GUESSES].astype(dtype)
    for name in ("accuracy_score", "confusion_matrix"):
        expected = getattr(sklearn.metrics, name)(y_true, y_pred)
        assert_equal(METRICS[name](make(y_true), make(y_pred)), expected)
    binary = TEXT[BINARY].astype(dtype)
    for name in ("log_loss", "roc_auc_score"):
        expected = getattr(sklearn.metrics, name)(binary, SCORES)
        assert_equal(METRICS[name](make(binary), make(SCORES)), expected)
    found = metrics.average_precision_score(make(binary), make(SCORES), pos_label="a")
    expected = sklearn.metrics.average_precision_score(binary, SCORES, pos_label="a")
    assert_equal(found, expected)


def test_booleans_and_categories() -> None:
    truth = BINARY.astype(bool)
    assert_equal(
        metrics.roc_auc_score(lazy(truth), lazy(SCORES)),
        sklearn.metrics.roc_auc_score(truth, SCORES),
    )
    named = pd.Series(TEXT[CLASSES], dtype="category")
    assert metrics.accuracy_score(dd.from_pandas(named, npartitions=3), series(named)) == 1.0


@pytest.mark.parametrize("normalize", ["true", "pred", "all", None])
@pytest.mark.parametrize("labels", [None, [2, 0], [0, 1, 2, 7]])
def test_confusion_matrix_options(normalize: str | None, labels: Any) -> None:
    expected = sklearn.metrics.confusion_matrix(
        CLASSES, GUESSES, labels=labels, normalize=normalize
    )
    found = metrics.confusion_matrix(
        lazy(CLASSES), lazy(GUESSES), labels=labels, normalize=normalize
    )
    assert_equal(found, expected)


def test_confusion_matrix_keeps_labels_without_weight() -> None:
    weight = (CLASSES != 1).astype(int) * (GUESSES != 1)
    expected = sklearn.metrics.confusion_matrix(CLASSES, GUESSES, sample_weight=weight)
    found = metrics.confusion_matrix(lazy(CLASSES), lazy(GUESSES), sample_weight=lazy(weight))
    assert found.shape == (3, 3)
    assert_equal(found, expected)


def test_confusion_matrix_of_many_labels_in_a_block_is_sparse() -> None:
    many = np.arange(50_000)
    _, counts = metrics.classification.count_label_pairs(ScoredRows(many, many, None))
    assert counts.nnz == len(many)


def test_accuracy_as_a_sum() -> None:
    found = metrics.accuracy_score(lazy(CLASSES), lazy(GUESSES), normalize=False)
    assert found == sklearn.metrics.accuracy_score(CLASSES, GUESSES, normalize=False)
