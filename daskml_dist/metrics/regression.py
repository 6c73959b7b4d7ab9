"""Metrics of regression, of one target or several.

Rows in memory are scored by scikit-learn's functions. A Dask collection is reduced to a summary
from which the same score follows:

- mean errors and deviances: the weighted sum of those of the rows, in one pass, on a GPU if they
  lie there;
- R^2 and explained variance: means and sums of squares, merged without loss of digits;
- medians and other quantiles, exactly: a sketch of the values (`ColumnSketch`) brackets the
  quantile in one pass. If the sketch dropped values, a second pass collects those within the
  bracket, about a thousandth of the rows, and sums those outside.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple, TypeVar

import numpy as np
import sklearn.metrics as theirs
from numpy.typing import NDArray
from sklearn.exceptions import UndefinedMetricWarning

from daskml_dist.backends.namespace import cast, namespace
from daskml_dist.data.collection import Collection
from daskml_dist.data.column_statistics import (
    SKETCH_SIZE,
    ColumnSketch,
    WeightedMoments,
    merge_column_sketches,
    sketch_columns,
)
from daskml_dist.data.conversion import copy_to_host
from daskml_dist.data.reduce import add_arrays
from daskml_dist.data.total_deviance import TotalDeviance
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.losses.tweedie_deviances import compute_tweedie_deviances
from daskml_dist.metrics._columns import (
    ScoredColumns,
    ScoredRows,
    call_sklearn_metric,
    check_weight_total,
    check_weights_nonnegative,
    has_lazy_input,
    read_numbers,
    read_targets,
    reduce_weighted_sums,
    sum_weighted_values,
)
from daskml_dist.metrics._metric_functions import make_metric_function

Floats = NDArray[np.float64]


#: Columns of the metrics of one target or several.
TARGET_COLUMNS = ScoredColumns(read_targets, read_targets, multi_output=True)


#: Columns of the metrics that scikit-learn defines for one target only.
SINGLE_TARGET = ScoredColumns(read_numbers, read_numbers)


#: Description of `y_true` and `y_pred` in the generated docstrings.
_TARGETS_TEXT = (
    "Numbers, of shape (n_rows,) or (n_rows, n_targets); those of a Dask collection are summed as "
    "float64."
)


@suggest_arguments
def mean_squared_error(
    y_true: Any,
    y_pred: Any,
    *,
    sample_weight: Any = None,
    multioutput: Any = "uniform_average",
    compute: bool = True,
) -> Any:
    """Return the mean of the squared errors.

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
        `multioutput` is neither one of these strings nor one weight per target.
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
    """Return the square root of :func:`mean_squared_error`; parameters and errors as there.

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
    """Return the mean absolute error; parameters and errors as :func:`mean_squared_error`.

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
    """Return the weighted mean of `values`, transformed by target, then averaged over targets.

    `metric` is scikit-learn's function, which scores rows in memory.
    """
    _check_multioutput(multioutput)
    rows = y_true, y_pred, sample_weight
    if has_lazy_input(*rows):
        finish = partial(_finish_mean_of_targets, transform, multioutput)
        return reduce_weighted_sums(TARGET_COLUMNS, values, *rows, finish, compute)
    return _score_in_memory(metric, *rows, multioutput=multioutput)


def _finish_mean_of_targets(
    transform: Callable[[Any], Any], multioutput: Any, weight: float, totals: Floats
) -> Any:
    check_weight_total(weight)
    # Roots are taken by target, before the average, as in scikit-learn.
    return _average_outputs(transform(totals / weight), multioutput)


def _score_in_memory(metric: Callable[..., Any], *rows: Any, **options: Any) -> Any:
    """Return scikit-learn's score of rows in memory; a scalar as a Python float."""
    score = TARGET_COLUMNS.score_in_memory(metric, *rows, **options)
    return score if np.ndim(score) else float(score)


def _square_errors(y_true: Any, y_pred: Any) -> Any:
    errors = _subtract(y_true, y_pred)
    return errors * errors


def _measure_absolute_errors(y_true: Any, y_pred: Any) -> Any:
    return abs(_subtract(y_true, y_pred))


def _subtract(y_true: Any, y_pred: Any) -> Any:
    """Return the errors, on the host or on a GPU."""
    # Cast before the subtraction: float32 would round.
    return cast(y_true, np.dtype(np.float64)) - cast(y_pred, np.dtype(np.float64))


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
    """Return the coefficient of determination: the predicted share of the variance of `y_true`.

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
    return _score_by_moments(theirs.r2_score, y_true, y_pred, sample_weight, options, compute)


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
    """Return 1 minus the variance of the errors over the variance of `y_true`.

    Parameters, results and errors are those of :func:`r2_score`, which unlike this score is lowered
    by a constant error.

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
    metric = theirs.explained_variance_score
    options = {"multioutput": multioutput, "force_finite": force_finite}
    return _score_by_moments(metric, y_true, y_pred, sample_weight, options, compute)


class _ErrorMoments(NamedTuple):
    """Summary of rows from which R^2 and explained variance follow."""

    n_rows: int
    targets: WeightedMoments
    errors: WeightedMoments
    squares: Floats  # weighted sums of squared errors, (n_targets,)


def _score_by_moments(
    metric: Callable[..., Any],
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
    options: dict[str, Any],
    compute: bool,
) -> Any:
    """Return R^2 or explained variance: `metric` is scikit-learn's function of it."""
    rows = y_true, y_pred, sample_weight
    if not has_lazy_input(*rows):
        return _score_in_memory(metric, *rows, **options)
    _check_multioutput(options["multioutput"], variance=True)
    collection = TARGET_COLUMNS.align(*rows)
    finish = partial(_finish_moments, metric is theirs.r2_score, options)
    return TARGET_COLUMNS.reduce_to_score(
        _sum_block_moments, _add_summaries, collection, finish, compute=compute, on_device=True
    )


def _finish_moments(is_r2: bool, options: dict[str, Any], moments: _ErrorMoments) -> Any:
    if is_r2 and moments.n_rows < 2:
        return _warn_undefined_score("R^2")
    check_weight_total(moments.targets.weight)
    # Residual over total sum of squares. Those of explained variance are taken about the errors'
    # own mean, so that a constant error does not count.
    residual = moments.squares if is_r2 else moments.errors.squares
    return _compute_explained_share(residual, moments.targets.squares, **options)


def _sum_block_moments(rows: ScoredRows) -> _ErrorMoments:
    weights = rows.weights
    check_weights_nonnegative(weights)
    errors = _subtract(rows.y_true, rows.y_pred)
    squares = np.atleast_1d(copy_to_host(weights @ (errors * errors)))
    targets = WeightedMoments.from_values(rows.y_true, weights)
    return _ErrorMoments(
        len(errors), targets, WeightedMoments.from_values(errors, weights), squares
    )


def _add_summaries(summaries: list[_Summary]) -> _Summary:
    """Return the summary of all blocks, field by field the sum of theirs."""
    # Moments add by Chan, Golub and LeVeque's pairwise update (`WeightedMoments.__add__`).
    return type(summaries[0])(*(reduce(add, field) for field in zip(*summaries, strict=True)))


def _check_multioutput(multioutput: Any, *, variance: bool = False) -> None:
    """Raise `InvalidParameterError` for an unknown string, before any work on the data."""
    names = ["raw_values", "uniform_average", *(["variance_weighted"] if variance else [])]
    # Weights are checked by `_average_outputs`, when the number of targets is known.
    if multioutput is None or isinstance(multioutput, str):
        if multioutput not in ([*names, None] if variance else names):
            raise InvalidParameterError(
                f"multioutput={multioutput!r} must be one of {names}, or an array of weights."
            )


def _average_outputs(scores: Floats, multioutput: Any, variances: Floats | None = None) -> Any:
    """Return the scores by target, or their mean: plain, by `variances`, or by given weights."""
    if multioutput is None or isinstance(multioutput, str):
        if multioutput == "raw_values":
            return scores
        # Variances that are all 0 have no weighted mean: scikit-learn then weighs alike.
        weighted = multioutput == "variance_weighted" and variances is not None and variances.any()
        return float(np.average(scores, weights=variances if weighted else None))
    weights = np.asarray(multioutput, dtype=np.float64)
    if weights.ndim != 1 or len(weights) != len(scores) or len(scores) == 1:
        raise InvalidParameterError(
            f"multioutput has weights of shape {weights.shape} for {len(scores)} targets. Pass one "
            "weight for each of several targets, or a word."
        )
    if not weights.sum():
        raise InvalidParameterError(
            f"multioutput={weights.tolist()} sums to zero, so there is no mean of the targets. "
            "Give some target a weight above 0."
        )
    return float(np.average(scores, weights=weights))


def _compute_explained_share(
    errors: Floats, spread: Floats, multioutput: Any, *, force_finite: bool = True
) -> Any:
    """Return ``1 - errors / spread`` by target, averaged as `multioutput` says."""
    # A constant target: 1.0 (NaN unless `force_finite`) if predicted exactly, else 0.0 (-inf).
    finite, infinite = (0.0, 1.0), (-np.inf, np.nan)
    of_constant = np.where(errors != 0, *(finite if force_finite else infinite))
    shares = np.where(spread > 0, 1.0 - errors / np.where(spread > 0, spread, 1.0), of_constant)
    return _average_outputs(shares, multioutput, spread)


def _warn_undefined_score(name: str) -> float:
    """Return NaN, and warn that a score needs two rows."""
    message = f"{name} score is not well-defined with less than two samples."
    warnings.warn(message, UndefinedMetricWarning, stacklevel=user_stack_level())
    return float("nan")


def _make_target_metric(
    source: Callable[..., Any], lazily: Callable[..., Any], summary: str, notes: str = ""
) -> Callable[..., Any]:
    """Return the public function of a metric of one target or several."""
    return make_metric_function(
        source,
        lazily,
        TARGET_COLUMNS,
        summary,
        column_description=_TARGETS_TEXT,
        module=__name__,
        notes=notes,
    )


def _reduce_mean(
    source: Callable[..., Any],
    values: Callable[..., Any],
    transform: Callable[[Any], Any],
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
    *,
    multioutput: Any = "uniform_average",
    **options: Any,
) -> Any:
    """Return the weighted mean of `values` of a collection, transformed by target."""
    # One made-up row: scikit-learn raises for a bad option before any block is read.
    call_sklearn_metric(source, [1.0], [1.0], **options)
    return _score_mean(
        source, partial(values, **options), y_true, y_pred, sample_weight, multioutput, True,
        transform,
    )  # fmt: skip


def _make_mean_metric(
    source: Callable[..., Any],
    values: Callable[..., Any],
    summary: str,
    transform: Callable[[Any], Any] = np.asarray,
) -> Callable[..., Any]:
    """Return the public function of a mean over rows, of `values` of each, or of its root."""
    return _make_target_metric(source, partial(_reduce_mean, source, values, transform), summary)


def _measure_relative_errors(y_true: Any, y_pred: Any) -> Any:
    # Zeros are taken for the least number that divides, as in scikit-learn.
    size = abs(cast(y_true, np.dtype(np.float64)))
    smallest = float(np.finfo(np.float64).eps)
    return _measure_absolute_errors(y_true, y_pred) / namespace(size).maximum(size, smallest)


def _measure_pinball_losses(y_true: Any, y_pred: Any, alpha: float = 0.5) -> Any:
    errors = _subtract(y_true, y_pred)
    return namespace(errors).where(errors >= 0, alpha * errors, (alpha - 1) * errors)


def _square_log_errors(y_true: Any, y_pred: Any) -> Any:
    xp = namespace(y_true)
    if xp.min(y_true) <= -1 or xp.min(y_pred) <= -1:
        # Raises scikit-learn's error.
        call_sklearn_metric(theirs.mean_squared_log_error, *map(copy_to_host, (y_true, y_pred)))
    logs = (xp.log1p(cast(values, np.dtype(np.float64))) for values in (y_true, y_pred))
    return _square_errors(*logs)


mean_absolute_percentage_error = _make_mean_metric(
    theirs.mean_absolute_percentage_error,
    _measure_relative_errors,
    "Return the mean of the absolute errors, each as a share of the true number.",
)


mean_pinball_loss = _make_mean_metric(
    theirs.mean_pinball_loss,
    _measure_pinball_losses,
    "Return the mean pinball loss of a predicted quantile.",
)


mean_squared_log_error = _make_mean_metric(
    theirs.mean_squared_log_error,
    _square_log_errors,
    "Return the mean of the squared differences of the logarithms of 1 + y.",
)


root_mean_squared_log_error = _make_mean_metric(
    theirs.root_mean_squared_log_error,
    _square_log_errors,
    "Return the square root of the mean squared logarithmic error of each target.",
    np.sqrt,
)


def _make_deviance_metric(
    source: Callable[..., Any], lazily: Callable[..., Any], summary: str
) -> Callable[..., Any]:
    """Return the public function of a metric of one target."""
    text = _TARGETS_TEXT.replace("n_targets", "1")
    return make_metric_function(
        source, lazily, SINGLE_TARGET, summary, column_description=text, module=__name__
    )


def _reduce_max_error(y_true: Any, y_pred: Any, sample_weight: Any) -> float:
    collection = SINGLE_TARGET.align(y_true, y_pred, sample_weight)
    return float(SINGLE_TARGET.reduce(_find_block_max_error, max, collection, on_device=True))


def _find_block_max_error(rows: ScoredRows) -> float:
    errors = _measure_absolute_errors(rows.y_true, rows.y_pred)
    return float(namespace(errors).max(errors))


max_error = _make_deviance_metric(
    theirs.max_error, _reduce_max_error, "Return the largest absolute error."
)


def _average_tweedie_deviance(
    y_true: Any, y_pred: Any, sample_weight: Any, *, power: float = 0
) -> float:
    finish = partial(_finish_mean_of_targets, np.asarray, "uniform_average")
    deviances, rows = _make_deviance(power), (y_true, y_pred, sample_weight)
    return float(reduce_weighted_sums(SINGLE_TARGET, deviances, *rows, finish))


def _make_deviance(power: float) -> Callable[..., Any]:
    """Return the function of rows to their deviances of a power, which is checked."""
    call_sklearn_metric(theirs.mean_tweedie_deviance, [1.0], [1.0], power=power)
    return partial(_measure_deviances, power=power)


def _measure_deviances(y_true: Any, y_pred: Any, power: float) -> Any:
    """Return the Tweedie deviance of each row, as scikit-learn defines it."""
    xp = namespace(y_true)
    y, mean = (cast(values, np.dtype(np.float64)) for values in (y_true, y_pred))
    if power == 0:
        return _square_errors(y, mean)
    smallest = xp.min(y) if power >= 1 else 1.0
    if xp.min(mean) <= 0 or smallest < 0 or (power >= 2 and smallest == 0):
        # Raises scikit-learn's error.
        deviance = partial(theirs.mean_tweedie_deviance, power=power)
        call_sklearn_metric(deviance, *map(copy_to_host, (y, mean)))
    return compute_tweedie_deviances(y, mean, y - mean, power)


class _DevianceSums(NamedTuple):
    """Summary of rows from which D^2 of a Tweedie deviance follows."""

    n_rows: int
    sums: Floats  # of weights, and of the weighted deviances of y_true from y_pred
    total: TotalDeviance


#: Summaries whose fields are added.
_Summary = TypeVar("_Summary", _ErrorMoments, _DevianceSums)


def _reduce_d2_tweedie(y_true: Any, y_pred: Any, sample_weight: Any, *, power: float = 0) -> Any:
    """Return 1 minus the deviance of the predictions over that of the mean of y_true."""
    summarise = partial(_sum_block_deviance, _make_deviance(power), power)
    collection = SINGLE_TARGET.align(y_true, y_pred, sample_weight)
    summary = SINGLE_TARGET.reduce(summarise, _add_summaries, collection, on_device=True)
    if summary.n_rows < 2:
        return _warn_undefined_score("D^2")
    weight, deviance = summary.sums
    check_weight_total(weight)
    spread = np.array([summary.total.deviance])
    return _compute_explained_share(np.array([deviance]), spread, "uniform_average")


def _sum_block_deviance(
    deviance: Callable[..., Any], power: float, rows: ScoredRows
) -> _DevianceSums:
    weights = rows.weights
    check_weights_nonnegative(weights)
    total = TotalDeviance.from_values(rows.y_true, weights, power)
    return _DevianceSums(len(weights), sum_weighted_values(deviance, rows), total)


mean_tweedie_deviance = _make_deviance_metric(
    theirs.mean_tweedie_deviance,
    _average_tweedie_deviance,
    "Return the mean deviance of Tweedie distributions of a given power.",
)


mean_poisson_deviance = _make_deviance_metric(
    theirs.mean_poisson_deviance,
    partial(_average_tweedie_deviance, power=1),
    "Return the mean deviance of Poisson distributions, for counts.",
)


mean_gamma_deviance = _make_deviance_metric(
    theirs.mean_gamma_deviance,
    partial(_average_tweedie_deviance, power=2),
    "Return the mean deviance of gamma distributions, which depends on relative errors.",
)


d2_tweedie_score = _make_deviance_metric(
    theirs.d2_tweedie_score,
    _reduce_d2_tweedie,
    "Return the share of the deviance from the mean that is predicted.",
)


#: Half width of the bracket around a quantile, as a share of the weight. A sketch errs by about
#: ``(levels + 1) / (2 * SKETCH_SIZE)``, levels being how often sketches were merged: this covers 7.
#: A bracket that misses the quantile is widened.
_QUANTILE_MARGIN = 4 / SKETCH_SIZE


_QUANTILE_NOTES = """
Notes
-----
Exact. Of a Dask collection it takes one pass where each target has at most 8192 distinct numbers,
else two, as a rule, of which the second keeps about a thousandth of them.
"""


class _SketchedRows(NamedTuple):
    """Summary of rows by the first pass of a quantile."""

    n_rows: int
    sketches: list[ColumnSketch]  # one a target
    sums: Floats  # of the weights, and of the weighted losses of each target


class _BracketedValues(NamedTuple):
    """Values of a column within a bracket, with their weights, and sums over those outside.

    `below` and `above` are of shape (2,): the weight, and the weighted distance from the nearer end
    of the bracket.
    """

    values: Floats  # sorted and distinct
    weights: Floats
    below: Floats
    above: Floats


def _reduce_median_error(
    y_true: Any, y_pred: Any, sample_weight: Any, *, multioutput: Any = "uniform_average"
) -> Any:
    """Return the median of the absolute errors by target, averaged."""
    _check_multioutput(multioutput)
    collection = TARGET_COLUMNS.align(y_true, y_pred, sample_weight)
    sketch = partial(_sketch_block, alpha=None)
    sketched = TARGET_COLUMNS.reduce(sketch, _merge_sketched_rows, collection)
    check_weight_total(sketched.sums[0])
    columns = _collect_bracketed_values(collection, sketched.sketches, 0.5, of_errors=True)
    medians = np.array([_find_median(column, sample_weight) for column in columns])
    return _average_outputs(medians, multioutput)


def _find_median(column: _BracketedValues, sample_weight: Any) -> float:
    weights = column.weights.copy()
    # Values outside the bracket may lie anywhere on their side: they are put at its ends.
    weights[0] += column.below[0]
    weights[-1] += column.above[0]
    if sample_weight is None:
        return float(ColumnSketch(column.values, weights).quantile(0.5))
    # Weighted medians have several definitions: scikit-learn's own is called. Targets of 0 make
    # the values absolute errors.
    zeros = np.zeros(len(weights))
    metric = theirs.median_absolute_error
    return float(call_sklearn_metric(metric, zeros, column.values, sample_weight=weights))


def _reduce_d2_pinball(
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
    *,
    alpha: float = 0.5,
    multioutput: Any = "uniform_average",
) -> Any:
    """Return 1 minus the pinball loss of the predictions over that of the quantile of y_true."""
    _check_multioutput(multioutput)
    call_sklearn_metric(theirs.mean_pinball_loss, [1.0], [1.0], alpha=alpha)  # raises for bad alpha
    collection = TARGET_COLUMNS.align(y_true, y_pred, sample_weight)
    sketch = partial(_sketch_block, alpha=alpha)
    sketched = TARGET_COLUMNS.reduce(sketch, _merge_sketched_rows, collection)
    if sketched.n_rows < 2:
        return _warn_undefined_score("D^2")
    check_weight_total(sketched.sums[0])
    columns = _collect_bracketed_values(collection, sketched.sketches, alpha, of_errors=False)
    quantile_losses = np.array([_compute_quantile_loss(column, alpha) for column in columns])
    return _compute_explained_share(sketched.sums[1:], quantile_losses, multioutput)


def _compute_quantile_loss(column: _BracketedValues, alpha: float) -> float:
    """Return the summed pinball loss of the alpha-quantile, the least of any constant."""
    # Of all constants a quantile has the least pinball loss (Koenker and Bassett, "Regression
    # quantiles", Econometrica 1978).
    values, weights = column.values, column.weights
    total = column.below[0] + weights.sum() + column.above[0]
    cumulative_weights = column.below[0] + np.cumsum(weights)
    index = min(int(np.searchsorted(cumulative_weights, alpha * total)), len(values) - 1)
    distances = values - values[index]
    # A value outside the bracket: its distance from the end, plus the end's from the quantile.
    loss_above = weights @ np.maximum(distances, 0.0)
    loss_above += column.above[1] + column.above[0] * (values[-1] - values[index])
    loss_below = weights @ np.maximum(-distances, 0.0)
    loss_below += column.below[1] + column.below[0] * (values[index] - values[0])
    return float(alpha * loss_above + (1 - alpha) * loss_below)


def _select_values(rows: ScoredRows, of_errors: bool) -> Floats:
    """Return the absolute errors of rows, or their targets, of shape (n, n_targets)."""
    values = rows.y_true.astype(np.float64, copy=False)
    values = np.abs(values - rows.y_pred) if of_errors else values
    return values if values.ndim == 2 else values[:, None]


def _sketch_block(rows: ScoredRows, alpha: float | None) -> _SketchedRows:
    """Return the sketches of a block's errors (`alpha` None), or of its targets with its loss."""
    check_weights_nonnegative(rows.weights)
    values = _select_values(rows, alpha is None)
    sums = np.array([rows.weights.sum()])
    # The loss of the predictions, in the same pass.
    if alpha is not None:
        sums = sum_weighted_values(partial(_measure_pinball_losses, alpha=alpha), rows)
    # None rather than ones: the sketch then sorts the values alone, without an argsort.
    weight = None if rows.weight is None else rows.weights
    return _SketchedRows(len(values), sketch_columns(values, weight), sums)


def _merge_sketched_rows(block_sketches: list[_SketchedRows]) -> _SketchedRows:
    n_rows, sketches, sums = zip(*block_sketches, strict=True)
    return _SketchedRows(sum(n_rows), merge_column_sketches(sketches), add_arrays(list(sums)))


def _collect_bracketed_values(
    collection: Collection, sketches: list[ColumnSketch], quantile: float, *, of_errors: bool
) -> list[_BracketedValues]:
    """Return each column's values in a bracket around a quantile, by passes over the rows.

    Sketches that dropped nothing are returned as they are, without a pass.
    """
    if not any(sketch.error for sketch in sketches):
        no_sums = np.zeros(2)
        return [_BracketedValues(s.values, s.weights, no_sums, no_sums) for s in sketches]
    margin = _QUANTILE_MARGIN
    while True:
        shares = np.array([quantile - margin, quantile + margin])
        ends = np.array([_bracket_quantile(sketch, shares) for sketch in sketches])
        collect = partial(_collect_from_block, brackets=ends, of_errors=of_errors)
        columns = TARGET_COLUMNS.reduce(collect, _merge_bracketed_values, collection)
        if all(_contains_quantile(column, quantile) for column in columns):
            return columns
        # The sketches erred by more than the margin: another pass, with a wider bracket.
        # The loop ends: a bracket from below 0 to above 1 is infinite, and holds every value.
        margin *= 16


def _bracket_quantile(sketch: ColumnSketch, shares: Floats) -> Floats:
    """Return a sketch's values at two shares of the weight; -inf below 0 and inf above 1."""
    # The sketch's distribution function, times its total weight.
    cumulative_weights = np.cumsum(sketch.weights)
    positions = np.searchsorted(cumulative_weights, shares * cumulative_weights[-1])
    ends = sketch.values[np.minimum(positions, len(cumulative_weights) - 1)]
    return np.where(shares < 0, -np.inf, np.where(shares > 1, np.inf, ends))


def _contains_quantile(column: _BracketedValues, quantile: float) -> bool:
    """Return whether the quantile, and the next value if it is interpolated, are in the bracket."""
    inside = column.weights.sum()
    rank = quantile * (column.below[0] + inside + column.above[0])
    low = column.below[0] < rank or column.below[0] == 0
    # Strictly more: at equality the quantile may be the mean of two values.
    return bool(inside > 0 and low and (column.below[0] + inside > rank or column.above[0] == 0))


def _collect_from_block(
    rows: ScoredRows, brackets: Floats, of_errors: bool
) -> list[_BracketedValues]:
    weights, bracketed = rows.weights, []
    for column, (low, high) in zip(_select_values(rows, of_errors).T, brackets, strict=True):
        # A row of weight 0 has no part in a quantile.
        inside = (column >= low) & (column <= high) & (weights > 0)
        below, above = column < low, column > high
        sums = [
            np.array([weights[outside].sum(), weights[outside] @ np.abs(column[outside] - end)])
            for outside, end in ((below, low), (above, high))
        ]
        distinct = _sum_distinct_values(column[inside], weights[inside])
        bracketed.append(_BracketedValues(*distinct, *sums))
    return bracketed


def _merge_bracketed_values(block_values: list[list[_BracketedValues]]) -> list[_BracketedValues]:
    merged = []
    # One list a block becomes one tuple a column.
    for columns in zip(*block_values, strict=True):
        values, weights, below, above = zip(*columns, strict=True)
        distinct = _sum_distinct_values(np.concatenate(values), np.concatenate(weights))
        merged.append(_BracketedValues(*distinct, add_arrays(list(below)), add_arrays(list(above))))
    return merged


def _sum_distinct_values(values: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Return the sorted distinct values, and the summed weight of each."""
    distinct, positions = np.unique(values, return_inverse=True)
    # Of no values at all `bincount` returns integers.
    return distinct, np.bincount(positions, weights, len(distinct)).astype(np.float64, copy=False)


median_absolute_error = _make_target_metric(
    theirs.median_absolute_error,
    _reduce_median_error,
    "Return the median of the absolute errors.",
    _QUANTILE_NOTES,
)


d2_absolute_error_score = _make_target_metric(
    theirs.d2_absolute_error_score,
    _reduce_d2_pinball,
    "Return 1 minus the absolute error over that of the median of y_true.",
    _QUANTILE_NOTES,
)


d2_pinball_score = _make_target_metric(
    theirs.d2_pinball_score,
    _reduce_d2_pinball,
    "Return 1 minus the pinball loss over that of the quantile of y_true.",
    _QUANTILE_NOTES + "No other constant has a smaller pinball loss than the quantile.\n",
)
