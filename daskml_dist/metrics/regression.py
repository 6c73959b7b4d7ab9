"""Metrics of predicted numbers, of one target or several.

Means of errors are weighted sums, made in one pass. R^2 and explained variance need moments of the
blocks, deviances scikit-learn's own sums of each block. Medians and other quantiles are exact: a
sketch tells in one pass between which two numbers a quantile lies; where the sketch left numbers
out, a second pass keeps those between the two, about a thousandth of the rows, and sums the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
import sklearn.metrics as theirs
from numpy.typing import NDArray
from scipy.special import xlogy
from sklearn.exceptions import UndefinedMetricWarning

from daskml_dist.data.collection import Collection
from daskml_dist.data.column_statistics import (
    SKETCH_SIZE,
    ColumnSketch,
    WeightedMoments,
    merge_sketches,
    sketch_columns,
)
from daskml_dist.data.reduce import add_arrays
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.metrics._columns import (
    ScoredColumns,
    ScoredRows,
    average_block_means,
    call_sklearn_metric,
    check_weight_total,
    check_weights_nonnegative,
    has_lazy_input,
    read_numbers,
    read_targets,
    reduce_weighted_sums,
    sum_block_metric,
)
from daskml_dist.metrics._metric_functions import make_metric_function

Floats = NDArray[np.float64]


TARGET_COLUMNS = ScoredColumns(read_targets, read_targets, several=True)


#: For metrics that scikit-learn has of one target alone.
SINGLE_TARGET = ScoredColumns(read_numbers, read_numbers)


#: Description of the columns in the docstrings of these metrics.
TARGETS_TEXT = (
    "Numbers, of shape (n_rows,) or (n_rows, n_targets); those of a Dask collection are summed as "
    "float64."
)


SINGLE_TARGET_TEXT = TARGETS_TEXT.replace("n_targets", "1")


@suggest_arguments
def mean_squared_error(
    y_true: Any,
    y_pred: Any,
    *,
    sample_weight: Any = None,
    multioutput: Any = "uniform_average",
    compute: bool = True,
) -> Any:
    """Mean of the squared errors.

    Parameters
    ----------
    y_true, y_pred : dask Array, Series or DataFrame, or array-like
        Of shape (n_rows,) or (n_rows, n_targets). Numbers; those of a Dask collection are summed
        as float64.
    sample_weight : of shape (n_rows,), or a float, or None
    multioutput : {"uniform_average", "raw_values"} or array-like of shape (n_targets,)
        For several targets: the mean of their scores, each, or a mean with these weights.
    compute : bool, default=True
        False gives a lazy score of Dask collections (a `dask.delayed.Delayed`): several that are
        computed together, by `dask.compute`, read the rows once.

    Returns
    -------
    float, or ndarray of float64 of shape (n_targets,) for ``multioutput="raw_values"``

    Raises
    ------
    InvalidParameterError
        `multioutput` is no such word, and no weight for each target.
    InvalidDataError
        The columns cannot be aligned, or hold NaN or infinity; the weights sum to zero.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import mean_squared_error
    >>> y_true = np.array([1.0, 2.0, 4.0])
    >>> y_pred = np.array([1.5, 2.0, 3.0])
    >>> round(float(mean_squared_error(y_true, y_pred)), 4)
    0.4167
    """
    metric = theirs.mean_squared_error
    return _score_mean(metric, _square_errors, y_true, y_pred, sample_weight, multioutput, compute)


@suggest_arguments
def root_mean_squared_error(
    y_true: Any,
    y_pred: Any,
    *,
    sample_weight: Any = None,
    multioutput: Any = "uniform_average",
    compute: bool = True,
) -> Any:
    """Square root of :func:`mean_squared_error`, which tells the parameters and errors.

    Returns
    -------
    float, or ndarray of float64 of shape (n_targets,)
        The roots are averaged, not the squares.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import root_mean_squared_error
    >>> y_true = np.array([1.0, 2.0, 4.0])
    >>> y_pred = np.array([1.5, 2.0, 3.0])
    >>> round(float(root_mean_squared_error(y_true, y_pred)), 4)
    0.6455
    """
    metric = theirs.root_mean_squared_error
    return _score_mean(
        metric, _square_errors, y_true, y_pred, sample_weight, multioutput, compute, np.sqrt
    )


@suggest_arguments
def mean_absolute_error(
    y_true: Any,
    y_pred: Any,
    *,
    sample_weight: Any = None,
    multioutput: Any = "uniform_average",
    compute: bool = True,
) -> Any:
    """Mean of the absolute errors; parameters and errors as :func:`mean_squared_error`.

    Returns
    -------
    float, or ndarray of float64 of shape (n_targets,)

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import mean_absolute_error
    >>> y_true = np.array([1.0, 2.0, 4.0])
    >>> y_pred = np.array([1.5, 2.0, 3.0])
    >>> round(float(mean_absolute_error(y_true, y_pred)), 4)
    0.5
    """
    metric = theirs.mean_absolute_error
    return _score_mean(
        metric, _measure_absolute_errors, y_true, y_pred, sample_weight, multioutput, compute
    )


def _score_mean(
    metric: Callable[..., Any],
    values: Any,
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
    multioutput: Any,
    compute: bool,
    transform: Callable[[Any], Any] = np.asarray,
) -> Any:
    """Return the mean of values of rows for each target, transformed, then averaged."""
    check_multioutput(multioutput)
    rows = y_true, y_pred, sample_weight
    if has_lazy_input(*rows):
        finish = partial(_finish_mean_of_targets, transform, multioutput)
        return reduce_weighted_sums(TARGET_COLUMNS, values, *rows, finish, compute)
    return _score_plainly(metric, *rows, multioutput=multioutput)


def _finish_mean_of_targets(
    transform: Callable[[Any], Any], multioutput: Any, weight: float, totals: Floats
) -> Any:
    check_weight_total(weight)
    return average_outputs(transform(totals / weight), multioutput)


def _score_plainly(metric: Callable[..., Any], *rows: Any, **options: Any) -> Any:
    """Return scikit-learn's score of rows in memory, one number as a float."""
    score = TARGET_COLUMNS.score_in_memory(metric, *rows, **options)
    return score if np.ndim(score) else float(score)


def _square_errors(y_true: NDArray[Any], y_pred: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(np.subtract(y_true, y_pred, dtype="float64") ** 2)


def _measure_absolute_errors(y_true: NDArray[Any], y_pred: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(np.abs(np.subtract(y_true, y_pred, dtype="float64")))


@suggest_arguments
def r2_score(
    y_true: Any,
    y_pred: Any,
    *,
    sample_weight: Any = None,
    multioutput: Any = "uniform_average",
    force_finite: bool = True,
    compute: bool = True,
) -> Any:
    """Coefficient of determination: the share of the variance of `y_true` that is predicted.

    Means and variances of the blocks are merged as in Chan, Golub and LeVeque (1983), "Algorithms
    for computing the sample variance", which loses no digits to a large mean.

    Parameters
    ----------
    y_true, y_pred
        As in :func:`mean_squared_error`.
    sample_weight : of shape (n_rows,), or a float, or None
        Not negative for a Dask collection.
    multioutput : {"uniform_average", "raw_values", "variance_weighted"} or array-like
        As in :func:`mean_squared_error`; "variance_weighted" weighs targets by their variance.
    force_finite : bool, default=True
        For a constant `y_true`, give 1.0 (all predicted) or 0.0 instead of NaN or -inf.
    compute : bool, default=True
        As in :func:`mean_squared_error`.

    Returns
    -------
    float, or ndarray of float64 of shape (n_targets,)
        NaN, with scikit-learn's warning, of fewer than two rows.

    Raises
    ------
    InvalidParameterError, InvalidDataError
        As :func:`mean_squared_error`.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import r2_score
    >>> y_true = np.array([1.0, 2.0, 4.0])
    >>> y_pred = np.array([1.5, 2.0, 3.0])
    >>> round(float(r2_score(y_true, y_pred)), 4)
    0.7321
    """
    options = {"multioutput": multioutput, "force_finite": force_finite}
    finish = partial(_finish_r2, options)
    return _score_by_moments(
        theirs.r2_score, finish, y_true, y_pred, sample_weight, options, compute
    )


@suggest_arguments
def explained_variance_score(
    y_true: Any,
    y_pred: Any,
    *,
    sample_weight: Any = None,
    multioutput: Any = "uniform_average",
    force_finite: bool = True,
    compute: bool = True,
) -> Any:
    """Share of the variance of `y_true` that the errors' variance does not take away.

    Parameters, results and errors are those of :func:`r2_score`, which counts a constant error too.

    Returns
    -------
    float, or ndarray of float64 of shape (n_targets,)

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import explained_variance_score
    >>> y_true = np.array([1.0, 2.0, 4.0])
    >>> y_pred = np.array([1.5, 2.0, 3.0])
    >>> round(float(explained_variance_score(y_true, y_pred)), 4)
    0.75
    """
    options = {"multioutput": multioutput, "force_finite": force_finite}
    finish = partial(_finish_explained_variance, options)
    return _score_by_moments(
        theirs.explained_variance_score, finish, y_true, y_pred, sample_weight, options, compute
    )


class _ErrorMoments(NamedTuple):
    """Moments of the targets and of the errors of rows."""

    n_rows: int
    targets: WeightedMoments
    errors: WeightedMoments
    squares: Floats  # weighted sums of squared errors


def _score_by_moments(
    metric: Callable[..., Any],
    finish: Callable[[_ErrorMoments], Any],
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
    options: dict[str, Any],
    compute: bool,
) -> Any:
    """Return scikit-learn's metric of rows in memory, or `finish` of the moments of lazy ones."""
    rows = y_true, y_pred, sample_weight
    if not has_lazy_input(*rows):
        return _score_plainly(metric, *rows, **options)
    check_multioutput(options["multioutput"], variance=True)
    collection = TARGET_COLUMNS.align(*rows)
    return TARGET_COLUMNS.reduce_to_score(
        _sum_block_moments, _merge_moments, collection, finish, compute=compute
    )


def _finish_r2(options: dict[str, Any], moments: _ErrorMoments) -> Any:
    if moments.n_rows < 2:
        return warn_undefined_score("R^2")
    check_weight_total(moments.targets.weight)
    return compute_explained_share(moments.squares, moments.targets.squares, **options)


def _finish_explained_variance(options: dict[str, Any], moments: _ErrorMoments) -> Any:
    check_weight_total(moments.targets.weight)
    return compute_explained_share(moments.errors.squares, moments.targets.squares, **options)


def _sum_block_moments(rows: ScoredRows) -> _ErrorMoments:
    weights = rows.weights
    check_weights_nonnegative(weights)
    errors = np.subtract(rows.y_true, rows.y_pred, dtype="float64")
    squares = np.atleast_1d(weights @ errors**2)
    targets = WeightedMoments.of(rows.y_true, weights)
    return _ErrorMoments(len(errors), targets, WeightedMoments.of(errors, weights), squares)


def _merge_moments(parts: list[_ErrorMoments]) -> _ErrorMoments:
    n_rows, targets, errors, squares = zip(*parts, strict=True)
    return _ErrorMoments(sum(n_rows), reduce(add, targets), reduce(add, errors), sum(squares))


def check_multioutput(multioutput: Any, *, variance: bool = False) -> None:
    """Raise `InvalidParameterError` for an unknown word, before there is work on the data."""
    words = ["raw_values", "uniform_average", *(["variance_weighted"] if variance else [])]
    if multioutput is None or isinstance(multioutput, str):
        if multioutput not in ([*words, None] if variance else words):
            raise InvalidParameterError(
                f"multioutput={multioutput!r} is none of {words} and no weights. Pass one of them."
            )


def average_outputs(scores: Floats, multioutput: Any, variances: Floats | None = None) -> Any:
    """Return the scores of all targets, or the mean of them that `multioutput` names."""
    if multioutput is None or isinstance(multioutput, str):
        if multioutput == "raw_values":
            return scores
        weighted = multioutput == "variance_weighted" and variances is not None and variances.any()
        return float(np.average(scores, weights=variances if weighted else None))
    weights = np.asarray(multioutput, dtype=np.float64)
    if weights.ndim != 1 or len(weights) != len(scores) or len(scores) == 1:
        raise InvalidParameterError(
            f"multioutput has weights of shape {weights.shape} for {len(scores)} targets. Pass one "
            "weight for each of several targets, or a word."
        )
    return float(np.average(scores, weights=weights))


def compute_explained_share(
    errors: Floats, spread: Floats, multioutput: Any, *, force_finite: bool = True
) -> Any:
    """Return ``1 - errors / spread`` of each target, averaged as `multioutput` says."""
    # Without spread there is nothing to explain: 1.0 where there are no errors either, else 0.0.
    finite, infinite = (0.0, 1.0), (-np.inf, np.nan)
    none = np.where(errors != 0, *(finite if force_finite else infinite))
    shares = np.where(spread > 0, 1.0 - errors / np.where(spread > 0, spread, 1.0), none)
    return average_outputs(shares, multioutput, spread)


def warn_undefined_score(name: str) -> float:
    """Return NaN, and warn that there are too few rows for a score."""
    message = f"{name} score is not well-defined with less than two samples."
    warnings.warn(message, UndefinedMetricWarning, stacklevel=user_stack_level())
    return float("nan")


def _make_target_metric(
    source: Callable[..., Any], lazily: Callable[..., Any], summary: str, notes: str = ""
) -> Callable[..., Any]:
    """Return the public function of a metric of one target or several."""
    return make_metric_function(
        source, lazily, TARGET_COLUMNS, summary, of=TARGETS_TEXT, module=__name__, notes=notes
    )


def _average_of_blocks(
    source: Callable[..., Any],
    transform: Callable[[Any], Any],
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
    *,
    multioutput: Any = "uniform_average",
    **options: Any,
) -> Any:
    """Return the mean of scikit-learn's metric of each block, by target, transformed."""
    check_multioutput(multioutput)
    call_sklearn_metric(source, [1.0], [1.0], **options)  # tells bad options before any work
    each = partial(source, multioutput="raw_values", **options)
    means = average_block_means(each, TARGET_COLUMNS, y_true, y_pred, sample_weight)
    return average_outputs(transform(means), multioutput)


def _make_mean_metric(
    source: Callable[..., Any],
    summary: str,
    transform: Callable[[Any], Any] = np.asarray,
    of_blocks: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Return the public function of a mean; of blocks it is another metric's, transformed."""
    lazily = partial(_average_of_blocks, of_blocks or source, transform)
    return _make_target_metric(source, lazily, summary)


mean_absolute_percentage_error = _make_mean_metric(
    theirs.mean_absolute_percentage_error,
    "Mean of the absolute errors, each as a share of the true number.",
)


mean_pinball_loss = _make_mean_metric(
    theirs.mean_pinball_loss, "Mean loss of a predicted quantile."
)


mean_squared_log_error = _make_mean_metric(
    theirs.mean_squared_log_error,
    "Mean of the squared differences of the logarithms of 1 + y.",
)


root_mean_squared_log_error = _make_mean_metric(
    theirs.root_mean_squared_log_error,
    "Square root of the mean squared logarithmic error of each target.",
    np.sqrt,
    theirs.mean_squared_log_error,
)


def _make_deviance_metric(
    source: Callable[..., Any], lazily: Callable[..., Any], summary: str
) -> Callable[..., Any]:
    """Return the public function of a metric of one target."""
    of = SINGLE_TARGET_TEXT
    return make_metric_function(source, lazily, SINGLE_TARGET, summary, of=of, module=__name__)


def _reduce_max_error(y_true: Any, y_pred: Any, sample_weight: Any) -> float:
    collection = SINGLE_TARGET.align(y_true, y_pred, sample_weight)
    return float(SINGLE_TARGET.reduce(_find_block_max_error, max, collection))


def _find_block_max_error(rows: ScoredRows) -> float:
    return float(_measure_absolute_errors(rows.y_true, rows.y_pred).max())


max_error = _make_deviance_metric(theirs.max_error, _reduce_max_error, "Largest absolute error.")


def _average_tweedie_deviance(
    y_true: Any, y_pred: Any, sample_weight: Any, *, power: float = 0
) -> float:
    each = _make_tweedie_deviance(power)
    return float(average_block_means(each, SINGLE_TARGET, y_true, y_pred, sample_weight)[0])


def _make_tweedie_deviance(power: float) -> Callable[..., Any]:
    """Return scikit-learn's deviance of a power, which is checked before there is work."""
    deviance = partial(theirs.mean_tweedie_deviance, power=power)
    call_sklearn_metric(deviance, [1.0], [1.0])
    return deviance


class _DevianceSums(NamedTuple):
    """Sums over rows that D^2 of a deviance follows from."""

    n_rows: int
    sums: Floats  # of weights, of deviances and of the potential of y_true
    targets: WeightedMoments


def _reduce_d2_tweedie(y_true: Any, y_pred: Any, sample_weight: Any, *, power: float = 0) -> Any:
    summarise = partial(_sum_block_deviance, _make_tweedie_deviance(power), power)
    collection = SINGLE_TARGET.align(y_true, y_pred, sample_weight)
    found = SINGLE_TARGET.reduce(summarise, _merge_deviance_sums, collection)
    if found.n_rows < 2:
        return warn_undefined_score("D^2")
    weight, deviance, potential = found.sums
    check_weight_total(weight)
    # A deviance is a Bregman divergence: the deviance of numbers from their mean is the sum of a
    # convex function (the potential) of them, less its value at the mean.
    mean = float(found.targets.mean[0])
    spread = found.targets.squares
    if power != 0:
        at_mean = float(_compute_potential(np.array(mean), power))
        spread = np.array([2 * (potential - weight * at_mean)])
    deviances = np.array([deviance])
    return compute_explained_share(deviances, np.maximum(spread, 0.0), "uniform_average")


def _sum_block_deviance(
    deviance: Callable[..., Any], power: float, rows: ScoredRows
) -> _DevianceSums:
    weights = rows.weights
    check_weights_nonnegative(weights)
    sums = sum_block_metric(deviance, rows)
    potential = weights @ _compute_potential(rows.y_true.astype("float64", copy=False), power)
    targets = WeightedMoments.of(rows.y_true, weights)
    return _DevianceSums(len(weights), np.r_[sums, potential], targets)


def _merge_deviance_sums(parts: list[_DevianceSums]) -> _DevianceSums:
    n_rows, sums, targets = zip(*parts, strict=True)
    return _DevianceSums(sum(n_rows), add_arrays(list(sums)), reduce(add, targets))


def _compute_potential(y: Floats, power: float) -> Floats:
    """Return the convex function whose Bregman divergence is half the deviance of a power."""
    if power == 0:
        return np.zeros_like(y)  # the sum of squares about the mean keeps more digits
    if power == 1:
        return np.asarray(xlogy(y, y))
    if power == 2:
        return np.asarray(-np.log(y))
    positive = np.maximum(y, 0.0) if power < 0 else y
    return np.asarray(positive ** (2 - power) / ((1 - power) * (2 - power)))


mean_tweedie_deviance = _make_deviance_metric(
    theirs.mean_tweedie_deviance,
    _average_tweedie_deviance,
    "Mean deviance of Tweedie's distributions of a power.",
)


mean_poisson_deviance = _make_deviance_metric(
    theirs.mean_poisson_deviance,
    partial(_average_tweedie_deviance, power=1),
    "Mean deviance of Poisson distributions, of counts.",
)


mean_gamma_deviance = _make_deviance_metric(
    theirs.mean_gamma_deviance,
    partial(_average_tweedie_deviance, power=2),
    "Mean deviance of gamma distributions, which relative errors make.",
)


d2_tweedie_score = _make_deviance_metric(
    theirs.d2_tweedie_score,
    _reduce_d2_tweedie,
    "Share of the deviance from the mean that is predicted.",
)


#: Share of the weight, to either side of a quantile, between which it is looked for first: more
#: than the sketches err by, which were merged a few times.
_QUANTILE_MARGIN = 4 / SKETCH_SIZE


_QUANTILE_NOTES = """
Notes
-----
Exact. Of a Dask collection it takes one pass where each target has at most 8192 distinct numbers,
else two, as a rule, of which the second keeps about a thousandth of them.
"""


class _SketchedRows(NamedTuple):
    """Summary of rows by a first pass."""

    n_rows: int
    sketches: list[ColumnSketch]
    sums: Floats  # of the weights, and of the losses of each target


class _NearQuantile(NamedTuple):
    """Numbers of a column near a quantile, their weights, and sums of the numbers beyond.

    The sums below and above are of weights, and of weighted distances from the nearer end.
    """

    values: Floats
    weights: Floats
    below: Floats
    above: Floats


def _reduce_median_error(
    y_true: Any, y_pred: Any, sample_weight: Any, *, multioutput: Any = "uniform_average"
) -> Any:
    check_multioutput(multioutput)
    collection = TARGET_COLUMNS.align(y_true, y_pred, sample_weight)
    sketch = partial(_sketch_block, alpha=None)
    first = TARGET_COLUMNS.reduce(sketch, _merge_sketched_rows, collection)
    check_weight_total(first.sums[0])
    columns = _collect_near_quantile(collection, first.sketches, 0.5, of_errors=True)
    medians = np.array([_find_median(near, sample_weight) for near in columns])
    return average_outputs(medians, multioutput)


def _find_median(near: _NearQuantile, sample_weight: Any) -> float:
    weights = near.weights.copy()
    # Which number it is depends on how much lies outside, not where.
    weights[0] += near.below[0]
    weights[-1] += near.above[0]
    if sample_weight is None:
        return float(ColumnSketch(near.values, weights).quantile(0.5))
    zeros = np.zeros(len(weights))
    metric = theirs.median_absolute_error
    return float(call_sklearn_metric(metric, zeros, near.values, sample_weight=weights))


def _reduce_d2_pinball(
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
    *,
    alpha: float = 0.5,
    multioutput: Any = "uniform_average",
) -> Any:
    check_multioutput(multioutput)
    call_sklearn_metric(theirs.mean_pinball_loss, [1.0], [1.0], alpha=alpha)  # tells a bad alpha
    collection = TARGET_COLUMNS.align(y_true, y_pred, sample_weight)
    sketch = partial(_sketch_block, alpha=alpha)
    first = TARGET_COLUMNS.reduce(sketch, _merge_sketched_rows, collection)
    if first.n_rows < 2:
        return warn_undefined_score("D^2")
    check_weight_total(first.sums[0])
    columns = _collect_near_quantile(collection, first.sketches, alpha, of_errors=False)
    least = np.array([_find_least_loss(near, alpha) for near in columns])
    return compute_explained_share(first.sums[1:], least, multioutput)


def _find_least_loss(near: _NearQuantile, alpha: float) -> float:
    """Return the pinball loss of the quantile, the constant that has the least."""
    values, weights = near.values, near.weights
    total = near.below[0] + weights.sum() + near.above[0]
    reached = near.below[0] + np.cumsum(weights)
    at = min(int(np.searchsorted(reached, alpha * total)), len(values) - 1)
    distances = values - values[at]
    # Numbers beyond the ends: their distance from the end, and the end's from the quantile.
    over = weights @ np.maximum(distances, 0.0)
    over += near.above[1] + near.above[0] * (values[-1] - values[at])
    under = weights @ np.maximum(-distances, 0.0)
    under += near.below[1] + near.below[0] * (values[at] - values[0])
    return float(alpha * over + (1 - alpha) * under)


def _select_numbers(rows: ScoredRows, of_errors: bool) -> Floats:
    """Return the absolute errors of rows, or their targets, as a table with a column a target."""
    found = rows.y_true.astype(np.float64, copy=False)
    found = np.abs(found - rows.y_pred) if of_errors else found
    return found if found.ndim == 2 else found[:, None]


def _sketch_block(rows: ScoredRows, alpha: float | None) -> _SketchedRows:
    check_weights_nonnegative(rows.weights)
    numbers = _select_numbers(rows, alpha is None)
    sums = np.array([rows.weights.sum()])
    if alpha is not None:
        loss = partial(theirs.mean_pinball_loss, alpha=alpha, multioutput="raw_values")
        sums = sum_block_metric(loss, rows)
    weight = None if rows.weight is None else rows.weights
    return _SketchedRows(len(numbers), sketch_columns(numbers, weight), sums)


def _merge_sketched_rows(parts: list[_SketchedRows]) -> _SketchedRows:
    n_rows, sketches, sums = zip(*parts, strict=True)
    merged = [merge_sketches(list(column)) for column in zip(*sketches, strict=True)]
    return _SketchedRows(sum(n_rows), merged, add_arrays(list(sums)))


def _collect_near_quantile(
    collection: Collection, sketches: list[ColumnSketch], share: float, *, of_errors: bool
) -> list[_NearQuantile]:
    """Return each column's numbers around a quantile; all of them where the sketches have all."""
    if not any(sketch.error for sketch in sketches):
        nothing = np.zeros(2)
        return [_NearQuantile(s.values, s.weights, nothing, nothing) for s in sketches]
    margin = _QUANTILE_MARGIN
    while True:
        shares = np.array([share - margin, share + margin])
        ends = np.array([_bracket_quantile(sketch, shares) for sketch in sketches])
        collect = partial(_collect_block_near_quantile, ends=ends, of_errors=of_errors)
        found = TARGET_COLUMNS.reduce(collect, _merge_near_quantiles, collection)
        if all(_contains_quantile(near, share) for near in found):
            return found
        margin *= 16  # sketches were merged more often than the margin is made for


def _bracket_quantile(sketch: ColumnSketch, shares: Floats) -> Floats:
    """Return the numbers of a sketch at two shares of the weight; infinite beyond 0 and 1."""
    reached = np.cumsum(sketch.weights)
    at = np.searchsorted(reached, shares * reached[-1])
    ends = sketch.values[np.minimum(at, len(reached) - 1)]
    return np.where(shares < 0, -np.inf, np.where(shares > 1, np.inf, ends))


def _contains_quantile(near: _NearQuantile, share: float) -> bool:
    """Return whether the quantile is one of the numbers, and so is the next where it is met."""
    inside = near.weights.sum()
    asked = share * (near.below[0] + inside + near.above[0])
    low = near.below[0] < asked or near.below[0] == 0
    return bool(inside > 0 and low and (near.below[0] + inside > asked or near.above[0] == 0))


def _collect_block_near_quantile(
    rows: ScoredRows, ends: Floats, of_errors: bool
) -> list[_NearQuantile]:
    weights, found = rows.weights, []
    for column, (low, high) in zip(_select_numbers(rows, of_errors).T, ends, strict=True):
        inside = (column >= low) & (column <= high) & (weights > 0)
        below, above = column < low, column > high
        sums = [
            np.array([weights[part].sum(), weights[part] @ np.abs(column[part] - end)])
            for part, end in ((below, low), (above, high))
        ]
        found.append(_NearQuantile(*_sum_distinct_values(column[inside], weights[inside]), *sums))
    return found


def _merge_near_quantiles(parts: list[list[_NearQuantile]]) -> list[_NearQuantile]:
    found = []
    for columns in zip(*parts, strict=True):
        values, weights, below, above = zip(*columns, strict=True)
        own = _sum_distinct_values(np.concatenate(values), np.concatenate(weights))
        found.append(_NearQuantile(*own, add_arrays(list(below)), add_arrays(list(above))))
    return found


def _sum_distinct_values(values: Floats, weights: Floats) -> tuple[Floats, Floats]:
    names, at = np.unique(values, return_inverse=True)
    return names, np.bincount(at, weights, len(names)).astype(np.float64, copy=False)


median_absolute_error = _make_target_metric(
    theirs.median_absolute_error,
    _reduce_median_error,
    "Median of the absolute errors.",
    _QUANTILE_NOTES,
)


d2_absolute_error_score = _make_target_metric(
    theirs.d2_absolute_error_score,
    _reduce_d2_pinball,
    "Share of the absolute error of the median that is predicted.",
    _QUANTILE_NOTES,
)


d2_pinball_score = _make_target_metric(
    theirs.d2_pinball_score,
    _reduce_d2_pinball,
    "Share of the pinball loss of the quantile that is predicted.",
    _QUANTILE_NOTES + "The loss of the quantile is the least that any one number has.\n",
)
