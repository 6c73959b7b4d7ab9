"""Curves over the thresholds of a score."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import sklearn.calibration
import sklearn.metrics as theirs
from numpy.typing import NDArray

from daskml_dist.data.quantiles import ColumnSketch
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.metrics._columns import Columns, ScoredRows
from daskml_dist.metrics._faces import face
from daskml_dist.metrics._means import add
from daskml_dist.metrics._readers import join_labels, read_labels, read_scores, unique_labels
from daskml_dist.metrics._runs import ScoreRun
from daskml_dist.metrics.ranking import COLUMNS, MAX_THRESHOLDS, check_limit, one_run

__all__ = ["calibration_curve", "det_curve", "precision_recall_curve", "roc_curve"]

_OF = (
    "Labels, strings, booleans or whole numbers, and scores, higher for the positive label; of "
    "shape (n_rows,) or (n_rows, 1)."
)
_LIMIT = (
    inspect.Parameter("max_thresholds", inspect.Parameter.KEYWORD_ONLY, default=MAX_THRESHOLDS),
    "Distinct scores that are kept of a Dask collection, or None for all: see Notes.",
)
_NOTES = """
Notes
-----
One pass makes the runs of :func:`daskml_dist.metrics.roc_auc_score`. Up to `max_thresholds`
distinct scores the curve is exact. Of more, neighbours are summed into bins, each a threshold; a
point's share of either label is then off by ``2 * levels / max_thresholds`` at most, levels being
how often runs were cut: once, and once for each time that up to 16 were merged.
"""


def _curve(
    source: Callable[..., Any],
    y_true: Any,
    y_score: Any,
    sample_weight: Any,
    *,
    max_thresholds: int | None = MAX_THRESHOLDS,
    **options: Any,
) -> Any:
    check_limit(max_thresholds)
    run = one_run(COLUMNS.align(y_true, y_score, sample_weight), max_thresholds)
    # Rows again, one for each score and label; those of no weight count nowhere.
    rows = np.repeat(run.labels, len(run.low)), np.tile(run.low, len(run.labels))
    return COLUMNS.in_memory(source, *rows, run.weights.T.ravel(), **options)


def _metric(source: Callable[..., Any], summary: str) -> Callable[..., Any]:
    return face(
        source,
        partial(_curve, source),
        COLUMNS,
        summary,
        of=_OF,
        module=__name__,
        own=_LIMIT,
        notes=_NOTES,
    )


det_curve = _metric(theirs.det_curve, "False positive and false negative rates by threshold.")
precision_recall_curve = _metric(
    theirs.precision_recall_curve, "Precision and recall by threshold."
)
roc_curve = _metric(theirs.roc_curve, "False and true positive rates by threshold.")


# --- calibration -----------------------------------------------------------------------------

_PROBABILITIES = Columns(read_labels, read_scores, "y_prob")
# Labels, and of each and every bin the rows and the sum of their probabilities.
_Bins = tuple[NDArray[Any], NDArray[np.float64]]


def _calibration(
    y_true: Any,
    y_prob: Any,
    sample_weight: Any,
    *,
    pos_label: Any = None,
    n_bins: int = 5,
    strategy: str = "uniform",
    max_thresholds: int | None = MAX_THRESHOLDS,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    check_limit(max_thresholds)
    if strategy not in ("uniform", "quantile"):
        raise InvalidParameterError(
            f"strategy={strategy!r} is neither 'uniform' nor 'quantile'. Pass one of them."
        )
    if n_bins < 1:
        raise InvalidParameterError(f"n_bins={n_bins} has no bin. Pass a positive number.")
    collection = _PROBABILITIES.align(y_true, y_prob, sample_weight)
    edges = np.linspace(0.0, 1.0, n_bins + 1)
    if strategy == "quantile":
        run = one_run(collection, max_thresholds)
        scores = (run.low + run.high) / 2
        _check_probabilities(scores)
        edges = ColumnSketch(scores, run.weights.sum(axis=1)).quantile(edges)
        labels, sums = run.labels, _of_run(run, scores, edges)
    else:
        summarise = partial(_binned, edges=edges)
        labels, sums = _PROBABILITIES.reduce(summarise, _join_bins, collection)
    positive = labels == _positive(labels, pos_label)
    rows, probabilities = sums.sum(axis=0).T
    some = rows != 0
    return sums[positive, :, 0].sum(axis=0)[some] / rows[some], probabilities[some] / rows[some]


def _binned(rows: ScoredRows, edges: NDArray[np.float64]) -> _Bins:
    if rows.y_pred.ndim != 1:
        raise InvalidDataError(
            f"y_prob has {rows.y_pred.shape[1]} columns. Pass that of the positive label, for "
            "example y_prob[:, 1]."
        )
    _check_probabilities(rows.y_pred)
    labels, at = unique_labels(rows.y_true)
    _check_two(labels)
    n_bins = len(edges) - 1
    cells = at * n_bins + np.searchsorted(edges[1:-1], rows.y_pred)
    size = len(labels) * n_bins
    sums = [np.bincount(cells, minlength=size), np.bincount(cells, rows.y_pred, size)]
    return labels, np.stack(sums, axis=-1).reshape(len(labels), n_bins, 2).astype(np.float64)


def _join_bins(parts: list[_Bins]) -> _Bins:
    labels = join_labels([own for own, _ in parts])
    _check_two(labels)
    wide = []
    for own, sums in parts:
        wide.append(np.zeros((len(labels), *sums.shape[1:])))
        wide[-1][np.searchsorted(labels, own)] = sums
    return labels, add(wide)


def _of_run(
    run: ScoreRun, scores: NDArray[np.float64], edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    at, n_bins = np.searchsorted(edges[1:-1], scores), len(edges) - 1
    sums = [
        [np.bincount(at, weight, n_bins), np.bincount(at, weight * scores, n_bins)]
        for weight in run.weights.T
    ]
    return np.swapaxes(np.array(sums), 1, 2)


def _positive(labels: NDArray[Any], pos_label: Any) -> Any:
    if pos_label is not None:
        return pos_label
    if labels.dtype.kind not in "biuf" or not set(labels.tolist()) <= {-1, 0, 1}:
        raise InvalidDataError(
            f"y_true takes value in {labels.tolist()} and pos_label is not specified: either make "
            "y_true take value in {0, 1} or {-1, 1} or pass pos_label explicitly."
        )
    return 1


def _check_two(labels: NDArray[Any]) -> None:
    if len(labels) > 2:
        raise InvalidDataError(
            f"Only binary classification is supported. Provided labels {labels[:10].tolist()}. "
            "Take one label at a time, with y_true == label."
        )


def _check_probabilities(values: NDArray[Any]) -> None:
    if values.min() < 0 or values.max() > 1:
        raise InvalidDataError(
            "y_prob has values outside [0, 1]. Pass what predict_proba() returns."
        )


calibration_curve = face(
    sklearn.calibration.calibration_curve,
    _calibration,
    _PROBABILITIES,
    "Share of positive rows and mean probability in bins of the probability.",
    of=_OF.replace("scores, higher for", "probabilities of"),
    module=__name__,
    own=(_LIMIT[0], 'As in :func:`roc_curve`; for `strategy` "quantile" alone.'),
)
