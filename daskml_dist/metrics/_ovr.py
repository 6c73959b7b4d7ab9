"""Scores of several classes: each against the rest or against each other, and their average."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.metrics._columns import ScoredRows, check_total
from daskml_dist.metrics._readers import check_not_negative, check_one_kind, unique_labels
from daskml_dist.metrics._runs import ScoreRun, make_run, merge_runs

__all__ = [
    "Average",
    "average_pairs",
    "average_scores",
    "check_class_labels",
    "check_classes",
    "class_runs",
    "merge_each",
    "pair_runs",
    "runs_of",
]

Average: TypeAlias = Literal["macro", "weighted", "micro"] | None


def check_classes(
    n_columns: int | None, multi_class: str, max_fpr: float | None, average: Average, weighted: bool
) -> None:
    """Check the options of several classes."""
    if n_columns == 2:
        raise InvalidDataError(
            "y_score has 2 columns. Pass that of the positive label, for example y_score[:, 1]."
        )
    if multi_class not in ("ovr", "ovo"):
        raise InvalidParameterError(
            f"multi_class must be in ('ovo', 'ovr') for scores of several classes, and is "
            f"{multi_class!r}. Pass 'ovr' for each class against the rest, 'ovo' for all pairs."
        )
    averages = ("macro", "weighted", "micro", None)[: 2 if multi_class == "ovo" else 4]
    if average not in averages:
        raise InvalidParameterError(
            f"average={average!r} is none of {averages}, which multi_class={multi_class!r} has. "
            "Pass one."
        )
    if multi_class == "ovo" and weighted:
        raise InvalidParameterError(
            "sample_weight is not supported for multiclass one-vs-one ROC AUC, 'sample_weight' "
            "must be None in this case. Leave it out, or pass multi_class='ovr'."
        )
    if max_fpr not in (None, 1):
        raise InvalidParameterError(
            "Partial AUC computation not available in multiclass setting. Leave max_fpr out."
        )


def check_class_labels(labels: Any, n_columns: int | None) -> NDArray[Any]:
    """Return the labels of the columns of scores."""
    given = np.asarray(labels)
    if not np.array_equal(unique_labels(given)[0], given) or len(given) != (
        n_columns or len(given)
    ):
        raise InvalidParameterError(
            f"labels={given.tolist()} should be sorted and unique, one for each of the "
            f"{n_columns} columns of y_score. Pass np.unique(labels)."
        )
    return given


def class_runs(rows: ScoredRows, classes: NDArray[Any], limit: int | None) -> list[ScoreRun]:
    """Make the run of each class against the rest."""
    _check_probabilities(rows, classes)
    return runs_of(rows.y_true[:, np.newaxis] == classes, rows, limit)


def pair_runs(rows: ScoredRows, classes: NDArray[Any], limit: int | None) -> list[ScoreRun]:
    """Make the run of each ordered pair of classes, of the rows that have one of the two.

    Parameters, labels and errors are those of :func:`class_runs`. The positive class of a pair is
    the first one, whose column the scores are from.
    """
    _check_probabilities(rows, classes)
    found = []
    for first, second in _ordered_pairs(len(classes)):
        is_first = rows.y_true == classes[first]
        chosen = is_first | (rows.y_true == classes[second])
        weight = chosen.astype(np.float64)
        # A run has an entry at least: of a block without rows of the pair, one of no weight.
        chosen[:1] = True
        found.append(make_run(is_first[chosen], rows.y_pred[chosen, first], weight[chosen], limit))
    return found


def _ordered_pairs(n_classes: int) -> list[tuple[int, int]]:
    """Return all pairs of two classes, each beside the one in the other order."""
    both = combinations(range(n_classes), 2)
    return [pair for first, second in both for pair in ((first, second), (second, first))]


def _check_probabilities(rows: ScoredRows, classes: NDArray[Any]) -> None:
    """Check that rows have labels of these classes, and a probability of each."""
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


def runs_of(indicators: NDArray[np.bool_], rows: ScoredRows, limit: int | None) -> list[ScoreRun]:
    """Make the run of each column of indicators, of shape (n, n_columns), and its scores."""
    columns = zip(indicators.T, rows.y_pred.T, strict=True)
    return [make_run(is_there, scores, rows.weights, limit) for is_there, scores in columns]


def merge_each(parts: list[list[ScoreRun]], limit: int | None) -> list[ScoreRun]:
    """Merge the runs of each class."""
    return [merge_runs(list(runs), limit) for runs in zip(*parts, strict=True)]


def average_scores(
    runs: list[ScoreRun], average: Average, score: Callable[[ScoreRun], tuple[float, float]]
) -> tuple[Any, Any]:
    """Average the scores of the classes, and the bounds with them."""
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


def average_pairs(
    runs: list[ScoreRun], average: Average, score: Callable[[ScoreRun], tuple[float, float]]
) -> tuple[float, float]:
    """Average the scores of all pairs of classes, and the bounds with them.

    Source: Hand and Till (2001), "A simple generalisation of the area under the ROC curve for
    multiple class classification problems", Machine Learning 45.
    """
    pairs = [
        (forth, back)
        for forth, back in zip(runs[::2], runs[1::2], strict=True)
        if all(forth.weights[:, forth.labels == side].sum() > 0 for side in (True, False))
    ]
    if not pairs:
        return float("nan"), float("nan")
    # Either class of a pair is the positive one once.
    found = np.array([[score(run) for run in pair] for pair in pairs]).mean(axis=1)
    weights = [forth.weights.sum() if average == "weighted" else 1.0 for forth, _ in pairs]
    scores, bounds = np.average(found, axis=0, weights=weights)
    return float(scores), float(bounds)
