"""One class against the rest: a run for each class, and the average of their scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.metrics._columns import ScoredRows, check_total
from daskml_dist.metrics._readers import check_not_negative, check_one_kind, unique_labels
from daskml_dist.metrics._runs import Run, make_run, merge_runs

__all__ = ["Average", "average_scores", "check_classes", "class_runs", "merge_each", "runs_of"]

Average: TypeAlias = Literal["macro", "weighted", "micro"] | None


def check_classes(
    labels: Any, n_columns: int | None, multi_class: str, max_fpr: float | None, average: Average
) -> NDArray[Any]:
    """Check the arguments of several classes.

    Returns
    -------
    ndarray of shape (n_classes,)
        The labels of the columns.

    Raises
    ------
    InvalidParameterError, InvalidDataError
        They have no meaning together.
    """
    if n_columns == 2:
        raise InvalidDataError(
            "y_score has 2 columns. Pass that of the positive label, for example y_score[:, 1]."
        )
    if multi_class != "ovr":
        raise InvalidParameterError(
            f"multi_class={multi_class!r} is not available for a Dask collection of several "
            "classes. Pass multi_class='ovr'."
        )
    if average not in ("macro", "weighted", "micro", None):
        raise InvalidParameterError(
            f"average={average!r} is none of 'macro', 'weighted', 'micro' and None. Pass one."
        )
    if max_fpr not in (None, 1):
        raise InvalidParameterError(
            "Partial AUC computation not available in multiclass setting. Leave max_fpr out."
        )
    return _check_labels(labels, n_columns)


def _check_labels(labels: Any, n_columns: int | None) -> NDArray[Any]:
    if labels is None:
        raise InvalidParameterError(
            "One pass over a Dask collection of several classes needs their labels beforehand. "
            "Pass labels, for example the classes_ of the classifier."
        )
    given = np.asarray(labels)
    if not np.array_equal(unique_labels(given)[0], given) or len(given) != (
        n_columns or len(given)
    ):
        raise InvalidParameterError(
            f"labels={given.tolist()} should be sorted and unique, one for each of the "
            f"{n_columns} columns of y_score. Pass np.unique(labels)."
        )
    return given


def class_runs(rows: ScoredRows, classes: NDArray[Any], limit: int | None) -> list[Run]:
    """Make the run of each class against the rest.

    Parameters
    ----------
    rows : ScoredRows
    classes : ndarray of shape (n_classes,)
    limit : int or None
        As in `make_run`.

    Returns
    -------
    list of Run
        With the labels False and True.

    Raises
    ------
    InvalidDataError
        The scores are no probabilities of these classes, or another label is there.
    """
    check_not_negative(rows.weights)
    check_one_kind(rows.y_true, classes)
    unknown = np.setdiff1d(rows.y_true, classes)
    if len(unknown):
        raise InvalidDataError(
            f"y_true contains values {unknown[:10].tolist()} not in the parameter labels. Add "
            "them, with a column of y_score each."
        )
    if rows.y_pred.shape[1:] != classes.shape or not np.allclose(1, rows.y_pred.sum(axis=1)):
        raise InvalidDataError(
            f"y_score should have a probability of each of the {len(classes)} classes, which sum "
            "up to 1.0 in each row. Pass what predict_proba() returns."
        )
    return runs_of(rows.y_true[:, np.newaxis] == classes, rows, limit)


def runs_of(indicators: NDArray[np.bool_], rows: ScoredRows, limit: int | None) -> list[Run]:
    """Make the run of each column of indicators, of shape (n, n_columns), and its scores."""
    columns = zip(indicators.T, rows.y_pred.T, strict=True)
    return [make_run(is_there, scores, rows.weights, limit) for is_there, scores in columns]


def merge_each(parts: list[list[Run]], limit: int | None) -> list[Run]:
    """Merge the runs of each class."""
    return [merge_runs(list(runs), limit) for runs in zip(*parts, strict=True)]


def average_scores(
    runs: list[Run], average: Average, score: Callable[[Run], tuple[float, float]]
) -> tuple[Any, Any]:
    """Average the scores of the classes, and the bounds with them.

    Parameters
    ----------
    runs : list of Run
        Of each class.
    average : {"macro", "weighted", "micro"} or None
    score : callable
        Score of a run, and bound of its error.

    Returns
    -------
    score, bound : float, or ndarray of shape (n_classes,)

    Raises
    ------
    InvalidDataError
        The weights sum to zero.
    """
    check_total(runs[0].weights.sum())
    if average == "micro":
        return score(merge_runs(runs, None))
    scores, bounds = np.array([score(run) for run in runs]).T
    if average is None:
        return scores, bounds
    weights = np.ones(len(runs))
    if average == "weighted":
        weights = np.array([run.weights[:, run.labels].sum() for run in runs])
        scores = np.where(weights > 0, scores, 0.0)  # a class without rows has none
        bounds = np.where(weights > 0, bounds, 0.0)
    return float(np.average(scores, weights=weights)), float(np.average(bounds, weights=weights))
