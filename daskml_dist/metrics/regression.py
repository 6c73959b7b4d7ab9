"""Metrics of predicted numbers, of one target or several."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
import sklearn.metrics as theirs
from numpy.typing import NDArray

from daskml_dist.data.column_statistics import WeightedMoments
from daskml_dist.errors.signatures import telling_arguments
from daskml_dist.metrics._columns import Columns, ScoredRows, called, check_total, is_lazy
from daskml_dist.metrics._faces import face
from daskml_dist.metrics._means import mean_of_blocks, weighted_mean
from daskml_dist.metrics._outputs import averaged, check_outputs, explained, undefined
from daskml_dist.metrics._readers import check_not_negative, read_numbers, read_targets

__all__ = [
    "explained_variance_score",
    "max_error",
    "mean_absolute_error",
    "mean_absolute_percentage_error",
    "mean_pinball_loss",
    "mean_squared_error",
    "mean_squared_log_error",
    "r2_score",
    "root_mean_squared_error",
    "root_mean_squared_log_error",
]

COLUMNS = Columns(read_targets, read_targets, several=True)
#: Of metrics that have no several targets.
SINGLE = Columns(read_numbers, read_numbers)
#: What the columns of these metrics hold.
OF = (
    "Numbers, of shape (n_rows,) or (n_rows, n_targets); those of a Dask collection are summed as "
    "float64."
)
OF_ONE = OF.replace("n_targets", "1")


@telling_arguments
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
    return _mean(metric, _squares, y_true, y_pred, sample_weight, multioutput, compute)


@telling_arguments
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
    return _mean(metric, _squares, y_true, y_pred, sample_weight, multioutput, compute, np.sqrt)


@telling_arguments
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
    return _mean(metric, _sizes, y_true, y_pred, sample_weight, multioutput, compute)


@telling_arguments
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
    if not is_lazy(y_true, y_pred, sample_weight):
        return _plain(COLUMNS.in_memory(theirs.r2_score, y_true, y_pred, sample_weight, **options))
    finish = partial(_determination, options)
    return _of_moments(y_true, y_pred, sample_weight, multioutput, finish, compute)


@telling_arguments
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
    if not is_lazy(y_true, y_pred, sample_weight):
        metric = theirs.explained_variance_score
        return _plain(COLUMNS.in_memory(metric, y_true, y_pred, sample_weight, **options))
    finish = partial(_explained_variance, options)
    return _of_moments(y_true, y_pred, sample_weight, multioutput, finish, compute)


def _mean(
    metric: Callable[..., Any],
    values: Any,
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
    multioutput: Any,
    compute: bool,
    finish: Callable[[Any], Any] = np.asarray,
) -> Any:
    check_outputs(multioutput)
    if is_lazy(y_true, y_pred, sample_weight):
        end = partial(_averaged, finish, multioutput)
        return weighted_mean(COLUMNS, values, y_true, y_pred, sample_weight, end, compute)
    options = {"multioutput": multioutput}
    return _plain(COLUMNS.in_memory(metric, y_true, y_pred, sample_weight, **options))


def _averaged(finish: Callable[[Any], Any], multioutput: Any, means: NDArray[np.float64]) -> Any:
    return averaged(finish(means), multioutput)


def _plain(score: Any) -> Any:
    return score if np.ndim(score) else float(score)


def _squares(y_true: NDArray[Any], y_pred: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(np.subtract(y_true, y_pred, dtype="float64") ** 2)


def _sizes(y_true: NDArray[Any], y_pred: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(np.abs(np.subtract(y_true, y_pred, dtype="float64")))


# --- explained variance ----------------------------------------------------------------------


class _Moments(NamedTuple):
    n_rows: int
    targets: WeightedMoments
    errors: WeightedMoments
    squares: NDArray[np.float64]  # weighted sums of squared errors


def _of_moments(
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
    multioutput: Any,
    finish: Callable[[_Moments], Any],
    compute: bool,
) -> Any:
    check_outputs(multioutput, variance=True)
    collection = COLUMNS.align(y_true, y_pred, sample_weight)
    return COLUMNS.reduce(_moments, _merge_moments, collection, finish=finish, compute=compute)


def _determination(options: dict[str, Any], moments: _Moments) -> Any:
    if moments.n_rows < 2:
        return undefined("R^2")
    check_total(moments.targets.weight)
    return explained(moments.squares, moments.targets.squares, **options)


def _explained_variance(options: dict[str, Any], moments: _Moments) -> Any:
    check_total(moments.targets.weight)
    return explained(moments.errors.squares, moments.targets.squares, **options)


def _moments(rows: ScoredRows) -> _Moments:
    weights = rows.weights
    check_not_negative(weights)
    errors = np.subtract(rows.y_true, rows.y_pred, dtype="float64")
    squares = np.atleast_1d(weights @ errors**2)
    targets = WeightedMoments.of(rows.y_true, weights)
    return _Moments(len(errors), targets, WeightedMoments.of(errors, weights), squares)


def _merge_moments(parts: list[_Moments]) -> _Moments:
    n_rows, targets, errors, squares = zip(*parts, strict=True)
    return _Moments(sum(n_rows), reduce(add, targets), reduce(add, errors), sum(squares))


# --- means that scikit-learn has of each block -----------------------------------------------


def _of_blocks(
    source: Callable[..., Any],
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
    *,
    multioutput: Any = "uniform_average",
    finish: Callable[[Any], Any] = np.asarray,
    **options: Any,
) -> Any:
    check_outputs(multioutput)
    called(source, [1.0], [1.0], **options)  # tells of bad options before there is work
    each = partial(source, multioutput="raw_values", **options)
    return averaged(
        finish(mean_of_blocks(each, COLUMNS, y_true, y_pred, sample_weight)), multioutput
    )


def _largest(y_true: Any, y_pred: Any, sample_weight: Any) -> float:
    collection = SINGLE.align(y_true, y_pred, sample_weight)
    return float(SINGLE.reduce(_largest_of_block, max, collection))


def _largest_of_block(rows: ScoredRows) -> float:
    return float(_sizes(rows.y_true, rows.y_pred).max())


max_error = face(
    theirs.max_error, _largest, SINGLE, "Largest absolute error.", of=OF_ONE, module=__name__
)


def _metric(
    source: Callable[..., Any],
    summary: str,
    finish: Callable[[Any], Any] = np.asarray,
    of_blocks: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    lazily = partial(_of_blocks, of_blocks or source, finish=finish)
    return face(source, lazily, COLUMNS, summary, of=OF, module=__name__)


mean_absolute_percentage_error = _metric(
    theirs.mean_absolute_percentage_error,
    "Mean of the absolute errors, each as a share of the true number.",
)
mean_pinball_loss = _metric(theirs.mean_pinball_loss, "Mean loss of a predicted quantile.")
mean_squared_log_error = _metric(
    theirs.mean_squared_log_error,
    "Mean of the squared differences of the logarithms of 1 + y.",
)
root_mean_squared_log_error = _metric(
    theirs.root_mean_squared_log_error,
    "Square root of the mean squared logarithmic error of each target.",
    finish=np.sqrt,
    of_blocks=theirs.mean_squared_log_error,
)
