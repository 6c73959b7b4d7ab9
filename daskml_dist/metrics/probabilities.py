"""Log loss, Brier score and top-k accuracy of a column of scores for each label.

The columns are in the order of all sorted labels. A block that lacks some labels cannot tell which
column belongs to which of its labels. So it sums, for the rows of each label, the loss under the
assumption of every column (`_ColumnSums`); when all blocks are merged and all labels known, the sum
under each label's own column is picked.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import sklearn.metrics as theirs
from numpy.typing import NDArray
from scipy import sparse
from sklearn.exceptions import UndefinedMetricWarning

from daskml_dist.backends.namespace import cast, is_host, namespace, one_hot, ones, total
from daskml_dist.data.conversion import copy_to_host
from daskml_dist.errors import InvalidDataError, InvalidParameterError, InvalidTypeError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.metrics._columns import (
    ScoredColumns,
    ScoredRows,
    call_sklearn_metric,
    check_label_kinds,
    check_weight_total,
    find_unique_labels,
    has_lazy_input,
    hold_indicators,
    merge_labels,
    read_indicators,
    read_labels,
    read_scores,
)
from daskml_dist.metrics._metric_functions import make_metric_function
from daskml_dist.metrics.ranking import SCORE_COLUMNS

PROBABILITY_COLUMNS = ScoredColumns(read_labels, read_scores, "y_proba")


INDICATED_PROBABILITIES = ScoredColumns(read_indicators, read_scores, "y_proba", multi_output=True)


# --- log loss --------------------------------------------------------------------------------


@suggest_arguments
def log_loss(
    y_true: Any,
    y_proba: Any = None,
    *,
    normalize: bool = True,
    sample_weight: Any = None,
    labels: Any = None,
    y_pred: Any = "deprecated",
    compute: bool = True,
) -> Any:
    """Return the mean negative logarithm of the probability given to the true label.

    Source: Bishop (2006), "Pattern Recognition and Machine Learning", p. 209.

    Parameters
    ----------
    y_true : dask Array, Series or DataFrame, or array-like
        Labels, of shape (n_rows,) or (n_rows, 1): strings, booleans or whole numbers. Or
        indicators of labels, of shape (n_rows, n_labels), whose logarithms are summed.
    y_proba : dask Array, Series or DataFrame, or array-like
        Of shape (n_rows,), the probability of the larger of two labels, or of shape
        (n_rows, n_classes), with columns in the order of the sorted labels. Clipped to
        [eps, 1 - eps] of its dtype, float32 or float64.
    normalize : bool, default=True
        False gives the sum over the rows instead of the mean.
    sample_weight : like `y_true`, or a float, or None
    labels : array-like of shape (n_classes,), optional
        All labels, where `y_true` may lack some.
    y_pred : like `y_proba`
        Its name in older versions of scikit-learn.
    compute : bool, default=True
        False gives a lazy score of Dask collections (a `dask.delayed.Delayed`): several that are
        computed together, by `dask.compute`, read the rows once.

    Returns
    -------
    float, or Delayed of a float without `compute`
        The logarithms of a Dask collection are summed as float64.

    Raises
    ------
    InvalidParameterError
        `labels` has fewer than two.
    InvalidDataError
        The columns cannot be aligned, hold NaN, or probabilities outside [0, 1]; there are other
        labels than `y_proba` has columns; the weights sum to zero.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import log_loss
    >>> y_true = np.array([0, 1, 1, 0, 1])
    >>> scores = np.array([0.1, 0.8, 0.3, 0.4, 0.9])
    >>> round(float(log_loss(y_true, scores)), 4)
    0.4297
    """
    y_proba = _resolve_renamed_argument(y_proba, y_pred)
    # Sorted, as the columns are.
    classes = _check_given_classes(labels)
    rows = y_true, y_proba, sample_weight
    if not has_lazy_input(*rows):
        options = {"normalize": normalize, "labels": labels}
        return float(PROBABILITY_COLUMNS.score_in_memory(theirs.log_loss, *rows, **options))
    if classes is not None and not np.array_equal(classes, np.asarray(labels)):
        warnings.warn(
            f"Labels passed were {np.asarray(labels).tolist()}, but the columns of y_proba are "
            f"taken in the order {classes.tolist()}.",
            UserWarning,
            stacklevel=user_stack_level(),
        )
    is_indicated = hold_indicators(y_true, y_proba)
    columns = INDICATED_PROBABILITIES if is_indicated else PROBABILITY_COLUMNS
    summarise = (
        _sum_indicated_losses if is_indicated else partial(_sum_block_losses, classes=classes)
    )
    # In pieces: the logarithms of a block are temporary arrays of its size.
    return columns.reduce_to_score(
        summarise,
        _merge_column_sums,
        columns.align(*rows),
        partial(_finish_log_loss, is_indicated, classes, normalize),
        in_pieces=True,
        compute=compute,
        on_device=not is_indicated,
    )


def _finish_log_loss(
    indicated: bool, classes: NDArray[Any] | None, normalize: bool, losses: _ColumnSums
) -> float:
    # scikit-learn's warning, once for all blocks.
    if not losses.sums_to_one:
        message = "The y_prob values do not sum to one. Make sure to pass probabilities."
        warnings.warn(message, UserWarning, stacklevel=user_stack_level())
    loss_sum = float(losses.sums[0, 0]) if indicated else _sum_own_columns(losses, classes)
    return _finish_mean(losses, loss_sum, normalize)


def _resolve_renamed_argument(y_proba: Any, y_pred: Any) -> Any:
    """Return `y_proba`, or `y_pred`, the argument's name in older versions of scikit-learn."""
    if isinstance(y_pred, str) and y_pred == "deprecated":
        if y_proba is None:
            raise InvalidTypeError("log_loss() misses the argument y_proba. Pass probabilities.")
        return y_proba
    if y_proba is not None:
        raise InvalidDataError(
            "Cannot use both `y_pred` and `y_proba`. `y_pred` is deprecated, use `y_proba`."
        )
    message = (
        "`y_pred` was renamed to `y_proba` in version 1.9 and will be removed when scikit-learn "
        "removes it. Pass `y_proba`."
    )
    warnings.warn(message, FutureWarning, stacklevel=user_stack_level())
    return y_pred


def _sum_block_losses(rows: ScoredRows, classes: NDArray[Any] | None) -> _ColumnSums:
    """Return a block's sums of -log p by label and column."""
    proba = rows.y_pred
    _check_probabilities(proba)
    # One column holds the probability of the larger of two labels.
    if proba.ndim == 1:
        proba = namespace(proba).stack([1 - proba, proba], axis=1)
    labels, codes = find_unique_labels(rows.y_true)
    _check_block_labels(labels, classes, proba.shape[1])
    # Clipped to the precision of the dtype, as in scikit-learn, so that p = 0 has a finite loss.
    eps = np.finfo(proba.dtype).eps
    sums_to_one = _do_rows_sum_to_one(proba)
    if len(labels) < proba.shape[1] or not is_host(codes):
        logs = partial(_compute_negative_logs, eps=eps)
        sums = _sum_by_label_column(rows, proba, logs, classes)
        return sums._replace(sums_to_one=sums_to_one)
    # The block has all labels, so each one's column is known: one logarithm a row instead of one a
    # cell. `_sum_own_columns` adds the diagonal, where it does not matter which entry has the sum.
    weight = float(len(codes) if rows.weight is None else rows.weight.sum())
    by_label = np.zeros((len(labels), len(labels)))
    by_label[0, 0] = _sum_known_losses(proba, codes, rows.weight, eps)
    return _ColumnSums(labels, by_label, weight, sums_to_one)


def _sum_known_losses(
    proba: NDArray[Any], label_columns: NDArray[np.intp], weight: NDArray[Any] | None, eps: Any
) -> float:
    """Return the summed loss of rows, given the column `label_columns` of each row's label."""
    n_columns = proba.shape[1]
    # A flat `take` needs half the time of two-dimensional indexing (15,000 rows of 10 columns).
    label_proba = proba.ravel().take(
        np.arange(0, proba.size, n_columns) + label_columns, mode="clip"
    )
    # In place: `label_proba` is a copy.
    logs = np.log(np.clip(label_proba, eps, 1 - eps, out=label_proba), out=label_proba)
    return -float(logs.sum(dtype=np.float64) if weight is None else weight @ logs.astype("f8"))


def _sum_indicated_losses(rows: ScoredRows) -> _ColumnSums:
    """Return the summed losses of rows of indicators, as those of one label with one column."""
    _check_probabilities(rows.y_pred)
    # Columns are known here. A row's loss is the sum over the labels that it has.
    logs = _compute_negative_logs(rows.y_pred, np.finfo(rows.y_pred.dtype).eps)
    loss_sum = rows.weights @ (logs * rows.y_true).sum(axis=1, dtype=np.float64)
    sums_to_one = _do_rows_sum_to_one(rows.y_pred)
    sums = np.full((1, 1), loss_sum)
    return _ColumnSums(np.zeros(1), sums, float(rows.weights.sum()), sums_to_one)


def _do_rows_sum_to_one(proba: NDArray[Any]) -> bool:
    # A product with ones: row sums by BLAS. The tolerance is scikit-learn's.
    xp, totals = namespace(proba), proba @ ones(proba.shape[1:], proba.dtype, like=proba)
    return bool(xp.max(abs(totals - 1)) <= np.sqrt(np.finfo(proba.dtype).eps))


def _compute_negative_logs(proba: Any, eps: Any) -> Any:
    xp = namespace(proba)
    return -xp.log(xp.clip(proba, eps, 1 - eps))


def _finish_mean(column_sums: _ColumnSums, summed: float, normalize: bool) -> float:
    """Return a sum over all rows, divided by their weight with `normalize`."""
    if not normalize:
        return summed
    check_weight_total(column_sums.weight)
    return summed / column_sums.weight


# --- Brier score -----------------------------------------------------------------------------


@suggest_arguments
def brier_score_loss(
    y_true: Any,
    y_proba: Any,
    *,
    sample_weight: Any = None,
    pos_label: Any = None,
    labels: Any = None,
    scale_by_half: bool | str = "auto",
) -> float:
    """Return the mean squared distance of probabilities from 1 (true label) and 0 (all others).

    Source: Brier (1950), "Verification of forecasts expressed in terms of probability".

    Parameters
    ----------
    y_true : dask Array, Series or DataFrame, or array-like
        Labels, of shape (n_rows,) or (n_rows, 1): strings, booleans or whole numbers. Or
        indicators of labels, of shape (n_rows, n_labels), whose squared distances are summed.
    y_proba : dask Array, Series or DataFrame, or array-like
        Of shape (n_rows,), the probability of the positive label, or of shape
        (n_rows, n_classes), with columns in the order of the sorted labels.
    sample_weight : like `y_true`, or a float, or None
    pos_label : label, optional
        The positive one of two, which must be there; by default 1 of numbers from -1, 0 and 1,
        else the larger number.
    labels : array-like of shape (n_classes,), optional
        All labels, where `y_true` may lack some.
    scale_by_half : bool or "auto", default="auto"
        Halve the distance, so that it is at most 1; "auto" does it for two classes.

    Returns
    -------
    float

    Raises
    ------
    InvalidParameterError
        `labels` has fewer than two, or `scale_by_half` is no bool.
    InvalidDataError
        As :func:`log_loss`; the labels are strings and `pos_label` is not given.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import brier_score_loss
    >>> y_true = np.array([0, 1, 1, 0, 1])
    >>> scores = np.array([0.1, 0.8, 0.3, 0.4, 0.9])
    >>> round(float(brier_score_loss(y_true, scores)), 4)
    0.142
    """
    metric, rows = theirs.brier_score_loss, (y_true, y_proba, sample_weight)
    options = {"labels": labels, "scale_by_half": scale_by_half}
    # scikit-learn 1.7 knows no `labels`: there rows in memory are scored like lazy ones.
    knows_labels = set(options) <= set(inspect.signature(metric).parameters)
    if knows_labels and not has_lazy_input(*rows):
        score = PROBABILITY_COLUMNS.score_in_memory(metric, *rows, pos_label=pos_label, **options)
        if pos_label is not None:  # which scikit-learn does not look for among several columns
            _resolve_positive_label(np.unique(y_true if labels is None else labels), pos_label)
        return float(score)
    if scale_by_half not in ("auto", True, False):
        raise InvalidParameterError(f"scale_by_half={scale_by_half!r}: pass 'auto' or a bool.")
    classes = _check_given_classes(labels)
    is_indicated = hold_indicators(y_true, y_proba)
    column_sums, n_columns = _reduce_distances(*rows, classes, is_indicated)
    if is_indicated:
        distance_sum = float(column_sums.sums[0, 0])
    elif n_columns == 1:
        # One column of probabilities: `pos_label` decides whether it is the second label's.
        positive = _resolve_positive_label(column_sums.labels, pos_label)
        columns = (column_sums.labels == positive).astype(int)
        distance_sum = float(column_sums.sums[np.arange(len(columns)), columns].sum())
    else:
        distance_sum = _sum_own_columns(column_sums, classes)
    is_halved = n_columns <= 2 if scale_by_half == "auto" else bool(scale_by_half)
    return _finish_mean(column_sums, distance_sum, True) * (0.5 if is_halved else 1.0)


def _reduce_distances(
    y_true: Any,
    y_proba: Any,
    sample_weight: Any,
    classes: NDArray[Any] | None,
    is_indicated: bool,
) -> tuple[_ColumnSums, int]:
    """Return the sums of squared distances, and the number of columns of probabilities."""
    columns = INDICATED_PROBABILITIES if is_indicated else PROBABILITY_COLUMNS
    summarise = (
        _sum_indicated_distances if is_indicated else partial(_sum_block_distances, classes=classes)
    )
    if not has_lazy_input(y_true, y_proba, sample_weight):
        rows = columns.read_block(None, y_proba, y_true, sample_weight)
        if not len(rows.y_true):
            raise InvalidDataError("y_true and y_proba have no rows. Check where they come from.")
        return summarise(rows), rows.y_pred.shape[1] if rows.y_pred.ndim == 2 else 1
    collection = columns.align(y_true, y_proba, sample_weight)
    sums = columns.reduce(
        summarise, _merge_column_sums, collection, in_pieces=True, on_device=not is_indicated
    )
    # The width of delayed blocks is known from their sums only.
    return sums, collection.n_features or sums.sums.shape[1]


def _sum_indicated_distances(rows: ScoredRows) -> _ColumnSums:
    """Return the summed distances of rows of indicators, as those of one label with one column."""
    _check_probabilities(rows.y_pred)
    distances = rows.y_true - rows.y_pred.astype(np.float64, copy=False)
    distance_sum = rows.weights @ (distances * distances).sum(axis=1)
    sums = np.full((1, 1), distance_sum)
    return _ColumnSums(np.zeros(1), sums, float(rows.weights.sum()))


def _sum_block_distances(rows: ScoredRows, classes: NDArray[Any] | None) -> _ColumnSums:
    _check_probabilities(rows.y_pred)
    table = cast(rows.y_pred, np.dtype(np.float64))
    if table.ndim == 1:
        table = namespace(table).stack([1 - table, table], axis=1)
    return _sum_by_label_column(rows, table, _measure_squared_distances, classes)


def _measure_squared_distances(table: Any) -> Any:
    """Return the squared distance of each row from each corner of the simplex."""
    # The distance from corner j, as a sum of terms >= 0: expanded, |p|^2 - 2 p_j + 1 would lose the
    # digits of a small distance.
    xp, squares, complements = namespace(table), table * table, 1 - table
    other_squares = xp.sum(squares, axis=1, keepdims=True) - squares
    return xp.maximum(other_squares, 0.0) + complements * complements


def _resolve_positive_label(labels: NDArray[Any], pos_label: Any) -> Any:
    """Return the positive label: the given one, or 1 of -1, 0 and 1, or the larger number."""
    if pos_label is not None:
        if len(labels) == 2 and pos_label not in labels.tolist():
            raise InvalidDataError(
                f"pos_label={pos_label!r} is not a valid label. It should be one of "
                f"{labels.tolist()}."
            )
        return pos_label
    if labels.dtype.kind not in "biuf":
        raise InvalidDataError(
            f"y_true takes value in {labels.tolist()} and pos_label is not specified: either make "
            "y_true take value in {0, 1} or {-1, 1} or pass pos_label explicitly."
        )
    return 1 if set(labels.tolist()) <= {-1, 0, 1} else labels[-1]


# --- accuracy of the k best scores -----------------------------------------------------------


class _TopKHits(NamedTuple):
    """Summary of rows for top-k accuracy.

    One column of scores of two labels may hold decisions, with a threshold of 0, or probabilities,
    with one of 0.5. Which it is follows from the range of all rows' scores, so a block counts both.
    """

    column_sums: (
        _ColumnSums  # weighted hits; of one column of scores: two columns for each threshold
    )
    of_one: bool
    probabilities: bool  # whether all scores are from 0 to 1


def _reduce_top_k_accuracy(
    y_true: Any,
    y_score: Any,
    sample_weight: Any,
    *,
    k: int = 2,
    normalize: bool = True,
    labels: Any = None,
) -> float:
    # Three made-up rows: scikit-learn raises for a bad `k` (and warns of one of 3 or more).
    call_sklearn_metric(theirs.top_k_accuracy_score, [0, 1, 2], np.eye(3), k=min(k, 2))
    classes = _check_label_order(labels)
    collection = SCORE_COLUMNS.align(y_true, y_score, sample_weight)
    summarise = partial(_count_top_k_hits, k=k, classes=classes)
    hits = SCORE_COLUMNS.reduce(summarise, _merge_top_k_hits, collection)
    column_sums = hits.column_sums
    if hits.of_one:
        # Columns 0 and 1 were counted with a threshold of 0, columns 2 and 3 with one of 0.5.
        start = 2 if hits.probabilities else 0
        column_sums = column_sums._replace(sums=column_sums.sums[:, start : start + 2])
        if len(column_sums.labels) > 2:
            raise InvalidDataError(
                "`y_score` needs to be of shape `(n_samples, n_classes)`, since `y_true` contains "
                "multiple classes. Pass a column of each."
            )
    if k >= (n_classes := column_sums.sums.shape[1]):
        warnings.warn(
            f"'k' ({k}) greater than or equal to 'n_classes' ({n_classes}) will result in a "
            "perfect score and is therefore meaningless.",
            UndefinedMetricWarning,
            stacklevel=user_stack_level(),
        )
    return _finish_mean(column_sums, _sum_own_columns(column_sums, classes), normalize)


def _check_label_order(labels: Any) -> NDArray[Any] | None:
    """Return the given labels as an array; raise unless they are sorted and distinct."""
    classes = _check_given_classes(labels)
    if classes is not None and classes.tolist() != np.asarray(labels).tolist():
        raise InvalidParameterError(
            "Parameter 'labels' must be ordered, each label once, and the columns of y_score in "
            "that order. Sort both."
        )
    return classes


def _count_top_k_hits(rows: ScoredRows, k: int, classes: NDArray[Any] | None) -> _TopKHits:
    scores = rows.y_pred
    if scores.ndim == 2:
        mark = partial(_mark_best_scores, k=k)
        return _TopKHits(_sum_by_label_column(rows, scores, mark, classes), False, False)
    if k > 1:  # of two labels, both are among the best
        table = np.ones((len(scores), 4))
    else:
        table = np.column_stack([scores <= 0, scores > 0, scores <= 0.5, scores > 0.5])
    sums = _sum_by_label_column(rows, table.astype(np.float64), np.asarray, classes)
    return _TopKHits(sums, True, bool(scores.min() >= 0 and scores.max() <= 1))


def _mark_best_scores(scores: NDArray[Any], k: int) -> NDArray[np.float64]:
    """Return a table of 1 at the k best scores of each row, and 0 elsewhere."""
    # A stable sort, reversed: of equal scores the later column is the better, as in scikit-learn.
    best = np.argsort(scores, axis=1, kind="stable")[:, ::-1][:, :k]
    marks = np.zeros(scores.shape)
    np.put_along_axis(marks, best, 1.0, axis=1)
    return marks


def _merge_top_k_hits(block_hits: list[_TopKHits]) -> _TopKHits:
    sums, of_one, probabilities = zip(*block_hits, strict=True)
    # A single score outside 0 to 1 shows that all are decisions.
    return _TopKHits(_merge_column_sums(list(sums)), all(of_one), all(probabilities))


top_k_accuracy_score = make_metric_function(
    theirs.top_k_accuracy_score,
    _reduce_top_k_accuracy,
    SCORE_COLUMNS,
    "Return the share of the rows whose label is among those of the k best scores.",
    column_description="Labels, of shape (n_rows,), and scores of each, of shape "
    "(n_rows, n_classes), in the order "
    "of the sorted labels; or, of two, of the larger alone.",
    module=__name__,
)


# --- sums by label and column ----------------------------------------------------------------


class _ColumnSums(NamedTuple):
    """Weighted sums over the rows of each label, under the assumption that its column is column j.

    Once all labels are known, `_sum_own_columns` picks the column that is each label's.
    """

    labels: NDArray[Any]
    sums: NDArray[np.float64]  # (n_labels, n_columns)
    weight: float  # of all rows
    sums_to_one: bool = True  # whether the probabilities of each row do


def _sum_by_label_column(
    rows: ScoredRows,
    table: NDArray[Any],
    values: Callable[[NDArray[Any]], NDArray[Any]],
    classes: NDArray[Any] | None,
) -> _ColumnSums:
    """Return the weighted sums of ``values(table)`` of a block, by label and column."""
    labels, codes = find_unique_labels(rows.y_true)
    _check_block_labels(labels, classes, table.shape[1])
    cells = cast(values(table), np.dtype(np.float64))
    if is_host(codes):
        # A grouped sum as one sparse product: row i of the matrix has the weights of label i's
        # rows.
        coordinates = (codes, np.arange(len(codes)))
        weights = sparse.csr_array((rows.weights, coordinates), shape=(len(labels), len(codes)))
        sums = weights @ cells
    else:
        weighted = rows.weights[:, None] * cells
        sums = copy_to_host(one_hot(codes, len(labels), cells.dtype).T @ weighted)
    return _ColumnSums(labels, sums, float(total(rows.weights)))


def _merge_column_sums(block_sums: list[_ColumnSums]) -> _ColumnSums:
    """Return the sums of all blocks, whose labels may differ."""
    labels = merge_labels([part.labels for part in block_sums])
    sums = np.zeros((len(labels), block_sums[0].sums.shape[1]))
    # `labels` holds every part's labels: the search finds each one's place.
    for part in block_sums:
        sums[np.searchsorted(labels, part.labels)] += part.sums
    weight = sum(part.weight for part in block_sums)
    return _ColumnSums(labels, sums, weight, all(part.sums_to_one for part in block_sums))


def _sum_own_columns(column_sums: _ColumnSums, classes: NDArray[Any] | None) -> float:
    """Return the sum over all rows, of each label under the column that is its own."""
    n_columns = column_sums.sums.shape[1]
    expected = column_sums.labels if classes is None else classes
    if classes is None and len(expected) == 1:
        raise InvalidDataError(
            f"y_true contains only one label ({expected[0]}). Provide the list of all expected "
            "class labels through the labels argument."
        )
    if len(expected) != n_columns:
        raise _make_label_count_error(expected, n_columns)
    column = np.searchsorted(expected, column_sums.labels)
    return float(column_sums.sums[np.arange(len(column)), column].sum())


def _check_probabilities(proba: NDArray[Any]) -> None:
    """Raise `InvalidDataError` for numbers outside [0, 1]."""
    xp = namespace(proba)
    low, high = (copy_to_host(extremum(proba)) for extremum in (xp.min, xp.max))
    if low < 0 or high > 1:
        raise InvalidDataError(
            f"y_proba holds {low} to {high}, which are not probabilities. Pass "
            "the result of predict_proba()."
        )


def _check_block_labels(labels: NDArray[Any], classes: NDArray[Any] | None, n_columns: int) -> None:
    """Raise `InvalidDataError` for labels that `classes` lacks; if None, for more than columns."""
    if classes is None:
        # Found at the end too; but then regression targets, taken for labels, would have made
        # summaries as large as the blocks.
        if len(labels) > n_columns:
            raise _make_label_count_error(labels, n_columns)
        return
    check_label_kinds(labels, classes)
    unknown = np.setdiff1d(labels, classes)
    if len(unknown):
        raise InvalidDataError(
            f"y_true contains values {unknown.tolist()} not belonging to the passed labels "
            f"{classes.tolist()}. Add them to `labels`."
        )


def _check_given_classes(labels: Any) -> NDArray[Any] | None:
    """Return the argument `labels`, sorted and distinct; raise if there are fewer than two."""
    if labels is None:
        return None
    classes, _ = find_unique_labels(np.asarray(labels))
    if len(classes) < 2:
        raise InvalidParameterError(
            f"The labels array needs to contain at least two labels, got {classes.tolist()}. "
            "Name one label per column."
        )
    return classes


def _make_label_count_error(labels: NDArray[Any], n_columns: int) -> InvalidDataError:
    return InvalidDataError(
        f"There are {len(labels)} labels or more, {labels[:10].tolist()}, while the predictions "
        f"have {n_columns} columns. Pass one column per label, and if y_true may lack some "
        "labels, all of them as labels."
    )
