"""Inputs that metrics refuse, and their error messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest

from daskml_dist import metrics
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.metrics import METRICS
from tests.metrics.rows import (
    BINARY,
    CHUNKS,
    CLASSES,
    GUESSES,
    PROBA,
    RANKING,
    SCORES,
    TEXT,
    N,
    data_for,
    lazy,
    metric_of,
    series,
    takes_scores,
    takes_targets,
    takes_weights,
    truth_of,
    unknown,
)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("make", [np.asarray, lazy])
def test_nan(name: str, make: Callable[[Any], Any]) -> None:
    y_true, y_pred = (column.astype(float) for column in data_for(name))
    block = "Block 2: " if make is lazy else ""
    row = "row 3" if make is lazy else "row 10"
    for which in (0, 1):
        columns = [y_true.copy(), y_pred.copy()]
        columns[which][10] = np.nan
        with pytest.raises(InvalidDataError, match=rf"^{block}Input y_\w+ contains NaN.*{row}"):
            metric_of(name)(*map(make, columns))
    if not takes_weights(name):
        return
    weight = np.ones(N)
    weight[10] = np.nan
    with pytest.raises(InvalidDataError, match=f"^{block}Input sample_weight contains NaN"):
        metric_of(name)(make(y_true), make(y_pred), sample_weight=make(weight))


@pytest.mark.parametrize("name", METRICS)
def test_missing_labels_and_lengths(name: str) -> None:
    y_true, y_pred = data_for(name)
    with pytest.raises(InvalidDataError, match="inconsistent numbers of samples"):
        metric_of(name)(y_true[:-1], y_pred)
    with pytest.raises(InvalidDataError, match="inconsistent numbers of samples"):
        metric_of(name)(lazy(y_true[:-1], (30, 29)), lazy(y_pred))
    other = (8, 0, 29, 1, 22)
    with pytest.raises(InvalidDataError, match=r"Block \d: .*y_true has \d+ rows.*compute_chunk"):
        metric_of(name)(unknown(y_true, other), unknown(y_pred))
    with pytest.raises(InvalidDataError, match=r"cannot be aligned.*y_true has"):
        metric_of(name)(unknown(y_true, (30, 30)), unknown(y_pred))


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("make", [np.asarray, lazy])
def test_several_targets(name: str, make: Callable[[Any], Any]) -> None:
    y_true, y_pred = data_for(name)
    two = np.column_stack([y_true, y_true])
    one, other = r"1d array.*Pass one column", r"y_pred should be a 1d.*Pass one column"
    if takes_targets(name):
        one, other = r"number of output \(2!=1\).*Pass one", r"number of output \(1!=2\).*Pass one"
    if name == "log_loss" and make is np.asarray:  # indicators of labels, in scikit-learn
        assert metric_of(name)(two, y_pred) == truth_of(name)(two, y_pred)
        return
    with pytest.raises(InvalidDataError, match=one):
        metric_of(name)(make(two), make(y_pred))
    if not takes_scores(name):
        with pytest.raises(InvalidDataError, match=other):
            metric_of(name)(make(y_true), make(two))


@pytest.mark.parametrize("name", METRICS)
def test_no_rows(name: str) -> None:
    y_true, y_pred = data_for(name)
    nothing = da.from_array(np.zeros(N, bool), chunks=(CHUNKS,))
    with pytest.raises(InvalidDataError, match="no rows"):
        metric_of(name)(lazy(y_true)[nothing], lazy(y_pred)[nothing])


@pytest.mark.parametrize("name", [*filter(takes_weights, METRICS)])
@pytest.mark.parametrize("make", [np.asarray, lazy])
def test_no_weight(name: str, make: Callable[[Any], Any]) -> None:
    y_true, y_pred = data_for(name)
    with pytest.raises(InvalidDataError, match="sum to zero"):
        metric_of(name)(make(y_true), make(y_pred), sample_weight=make(np.zeros(N)))


def test_mixed_labels() -> None:
    for name in ("accuracy_score", "confusion_matrix"):
        with pytest.raises(InvalidDataError, match="Mix of label input types"):
            METRICS[name](lazy(TEXT[CLASSES]), lazy(GUESSES))
    with pytest.raises(InvalidDataError, match="continuous values, not labels"):
        metrics.accuracy_score(lazy(BINARY), lazy(SCORES))
    mixed = lazy(np.array([1, "a"] * (N // 2), dtype=object))
    with pytest.raises(InvalidDataError, match="different types"):
        metrics.confusion_matrix(mixed, mixed)


def _dates(values: Any) -> Any:
    return np.datetime64("2024-01-01") + np.asarray(values * 10).astype("timedelta64[D]")


#: Dates and spans of time as users have them.
TIMES: dict[str, Callable[[Any], Any]] = {
    "dates": _dates,
    "Series of dates": lambda v: pd.Series(_dates(v)),
    "Series of zoned dates": lambda v: pd.Series(_dates(v)).dt.tz_localize("UTC"),
    "list of dates": lambda v: _dates(v).tolist(),
    "spans of time": lambda v: _dates(v) - np.datetime64("2024-01-01"),
    "periods": lambda v: pd.Series(_dates(v)).dt.to_period("D"),
    "frame of dates": lambda v: pd.DataFrame({"a": _dates(v)}),
    "Dask Array of dates": lambda v: lazy(_dates(v)),
    "Dask Series of dates": lambda v: series(_dates(v)),
}
#: Metrics of two numeric columns, or of numbers and labels.
OF_NUMBERS = [name for name in METRICS if METRICS[name].__module__.endswith("regression")]
OF_SCORES = [*filter(takes_scores, METRICS)]


@pytest.mark.parametrize("kind", TIMES)
@pytest.mark.parametrize("name", [*OF_NUMBERS, *OF_SCORES])
def test_dates_are_no_numbers(name: str, kind: str) -> None:
    """They have no error in any unit: scikit-learn's errors of dates are 0.0, or spans of time."""
    y_true, y_pred = data_for(name)
    dates = TIMES[kind](y_pred)
    alike = {"Dask Series of dates": series, "Dask Array of dates": lazy}.get(kind, np.asarray)
    truth = dates if name in OF_NUMBERS else alike(y_true)
    with pytest.raises(
        InvalidDataError, match=r"numbers? instead|Convert each to a number|Extract numbers"
    ):
        metric_of(name)(truth, dates)


def test_missing_strings() -> None:
    named = pd.Series(TEXT[CLASSES])
    named[3] = None
    for make in (series, np.asarray):
        with pytest.raises(InvalidDataError, match="y_true contains NaN"):
            metrics.accuracy_score(make(named), make(TEXT[GUESSES]))


@pytest.mark.parametrize("make", [np.asarray, lazy])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("confusion_matrix", {"normalize": "rows"}),
        ("confusion_matrix", {"labels": []}),
        ("roc_auc_score", {"max_thresholds": 0}),
        ("average_precision_score", {"max_thresholds": -1}),
        ("roc_auc_score", {"average": "binary"}),
        ("average_precision_score", {"average": "binary"}),
        ("log_loss", {"labels": [1]}),
    ],
)
def test_parameters(make: Callable[[Any], Any], name: str, options: dict[str, Any]) -> None:
    y_true, y_pred = data_for(name)
    with pytest.raises(InvalidParameterError):
        METRICS[name](make(y_true), make(y_pred), **options)


@pytest.mark.parametrize(
    "options",
    [
        {"multi_class": "raise"},
        {"multi_class": "ovo", "average": "micro"},
        {"multi_class": "ovo", "sample_weight": lazy(np.ones(N))},
        {"labels": [0, 1]},
        {"labels": [2, 1, 0]},
        {"average": "samples"},
        {"max_fpr": 0.5},
    ],
)
def test_parameters_of_several_classes(options: dict[str, Any]) -> None:
    options = {"multi_class": "ovr", "labels": [0, 1, 2]} | options
    with pytest.raises(InvalidParameterError):
        metrics.roc_auc_score(lazy(CLASSES), lazy(PROBA), **options)


@pytest.mark.parametrize("make", [np.asarray, lazy])
def test_pairs_of_classes_without_an_average_are_refused(make: Callable[[Any], Any]) -> None:
    with pytest.raises(InvalidParameterError):
        metrics.roc_auc_score(make(CLASSES), make(PROBA), multi_class="ovo", average=None)


def test_scores_that_do_not_fit() -> None:
    fit = {"multi_class": "ovr", "labels": [0, 1, 2]}
    with pytest.raises(InvalidDataError, match=r"y_score\[:, 1\]"):
        metrics.roc_auc_score(lazy(BINARY), lazy(PROBA[:, :2]))
    with pytest.raises(InvalidDataError, match=r"y_score\[:, 1\]"):
        metrics.average_precision_score(lazy(BINARY), lazy(PROBA))
    with pytest.raises(InvalidDataError, match="more than two labels"):
        metrics.roc_auc_score(lazy(CLASSES), lazy(SCORES))
    with pytest.raises(InvalidDataError, match="sum up to 1"):
        metrics.roc_auc_score(lazy(CLASSES), lazy(PROBA * 2), **fit)
    with pytest.raises(InvalidDataError, match=r"Number of classes in y_true \(2\)"):
        metrics.roc_auc_score(lazy(BINARY), lazy(PROBA), multi_class="ovr")
    with pytest.raises(InvalidDataError, match=r"contains values \[3\]"):
        metrics.roc_auc_score(lazy(CLASSES + 1), lazy(PROBA), **fit)
    for name in (*RANKING, "r2_score"):
        with pytest.raises(InvalidDataError, match="Negative values in sample_weight"):
            METRICS[name](lazy(BINARY), lazy(SCORES), sample_weight=lazy(-np.ones(N)))


def test_positive_label_that_is_not_there() -> None:
    for make in (np.asarray, lazy):
        with pytest.raises(InvalidDataError, match="pos_label=5 is not a valid label"):
            metrics.average_precision_score(make(BINARY), make(SCORES), pos_label=5)


def test_probabilities_that_do_not_fit() -> None:
    with pytest.raises(InvalidDataError, match="not probabilities"):
        metrics.log_loss(lazy(BINARY), lazy(SCORES * 3))
    with pytest.raises(InvalidDataError, match="only one label"):
        metrics.log_loss(lazy(BINARY * 0), lazy(SCORES))
    with pytest.raises(InvalidDataError, match="Pass one column per label"):
        metrics.log_loss(lazy(CLASSES), lazy(SCORES))
    with pytest.raises(InvalidDataError, match="Pass one column per label"):
        metrics.log_loss(lazy(BINARY), lazy(PROBA))
    with pytest.raises(InvalidDataError, match=r"contains values \[2\]"):
        metrics.log_loss(lazy(CLASSES), lazy(SCORES), labels=[0, 1])
