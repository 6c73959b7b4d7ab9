"""Distances and kernels between rows, with scikit-learn's names; lazy over Dask collections.

The result has a block for each pair of a block of X and a block of Y, which scikit-learn's function
computes when it is asked for. Those of blocks on a GPU are computed there where the distance or the
kernel is written here in functions of the array API standard (`_DISTANCES`, `_KERNELS`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import sklearn.metrics.pairwise as theirs
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends.namespace import cast, namespace
from daskml_dist.dask_internals.task_graphs import ArrayBlockIdDep
from daskml_dist.data.blocks import find_first_nonfinite
from daskml_dist.data.conversion import (
    are_device_numbers,
    canonicalize_sparse,
    convert_foreign,
    convert_missing_to_nan,
    convert_to_array,
    copy_to_host,
)
from daskml_dist.data.lazy import is_dask, is_dask_frame, join_column_chunks, join_delayed
from daskml_dist.errors import InvalidDataError, InvalidParameterError, as_ours
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.inference.block_mapping import map_blocks
from daskml_dist.metrics._columns import call_sklearn_metric

__all__ = [
    "cosine_distances",
    "cosine_similarity",
    "euclidean_distances",
    "linear_kernel",
    "manhattan_distances",
    "pairwise_distances",
    "pairwise_distances_argmin",
    "pairwise_distances_argmin_min",
    "pairwise_kernels",
    "rbf_kernel",
]


#: Metrics that estimate a scale from all rows, and the argument that replaces the estimate.
_LEARNED_SCALES = {"seuclidean": "V", "mahalanobis": "VI"}


def pairwise_distances(
    X: Any, Y: Any = None, metric: str | Callable[..., Any] = "euclidean", **kwds: Any
) -> Any:
    """Measure the distance of each row of X to each row of Y.

    Parameters
    ----------
    X : dask Array or DataFrame, or array-like, of shape (n_rows, n_features)
    Y : dask Array or DataFrame, or array-like, of shape (n_others, n_features), or None
        None: X itself.
    metric : str or callable, default="euclidean"
        As in scikit-learn, except "precomputed". "seuclidean" and "mahalanobis" need their scale
        `V` or `VI` for Dask collections, since a block cannot give the scale of all rows.
    **kwds
        For the metric.

    Returns
    -------
    ndarray of float of shape (n_rows, n_others), or dask Array
        Lazy if `X` or `Y` is, with a block for each block of `X` and of `Y`.

    Raises
    ------
    InvalidParameterError
        The metric is unknown, or needs an argument.
    InvalidDataError
        The rows are no numbers, or of different widths; of a block, when it is computed.

    Examples
    --------
    >>> import dask.array as da
    >>> from daskml_dist.metrics.pairwise import pairwise_distances
    >>> X = da.arange(6.0, chunks=4).reshape(6, 1)
    >>> pairwise_distances(X, [[0.0], [5.0]], metric="manhattan").compute()[4]
    array([4., 1.])
    """
    X, Y = _read_rows(X), _read_rows(Y)
    if not (is_dask(X) or is_dask(Y)):
        return call_sklearn_metric(theirs.pairwise_distances, X, Y, metric, **kwds)
    # A scale estimated in each block would differ from block to block.
    scale = _LEARNED_SCALES.get(metric) if isinstance(metric, str) else None
    if scale is not None and scale not in kwds:
        raise InvalidParameterError(
            f"metric={metric!r} needs a statistic of all rows. Compute it first and pass {scale}=."
        )
    if metric == "precomputed":
        raise InvalidParameterError(
            "metric='precomputed' cannot be computed from rows. Name a metric."
        )
    on_device = _DISTANCES.get(metric) if isinstance(metric, str) and not kwds else None
    return _map_block_pairs(
        partial(theirs.pairwise_distances, metric=metric, **kwds), X, Y, on_device
    )


@suggest_arguments
def euclidean_distances(X: Any, Y: Any = None, *, squared: bool = False) -> Any:
    """Measure Euclidean distances.

    Inputs, results and errors are those of :func:`pairwise_distances`.

    Parameters
    ----------
    X, Y
        As in :func:`pairwise_distances`.
    squared : bool, default=False
        Whether to return the squares.

    Returns
    -------
    ndarray of float of shape (n_rows, n_others), or dask Array

    Examples
    --------
    >>> import dask.array as da
    >>> from daskml_dist.metrics.pairwise import euclidean_distances
    >>> euclidean_distances(da.eye(3), da.zeros((1, 3)), squared=True).compute().ravel()
    array([1., 1., 1.])
    """
    X, Y = _read_rows(X), _read_rows(Y)
    if not (is_dask(X) or is_dask(Y)):
        return call_sklearn_metric(theirs.euclidean_distances, X, Y, squared=squared)
    on_device = partial(_measure_euclidean, squared=squared)
    return _map_block_pairs(partial(theirs.euclidean_distances, squared=squared), X, Y, on_device)


def pairwise_kernels(
    X: Any,
    Y: Any = None,
    metric: str | Callable[..., Any] = "linear",
    *,
    filter_params: bool = False,
    **kwds: Any,
) -> Any:
    """Calculate the kernel of each row of X and each row of Y.

    Inputs, results and errors are those of :func:`pairwise_distances`.

    Parameters
    ----------
    X, Y
        As in :func:`pairwise_distances`.
    metric : str or callable, default="linear"
        "linear", "rbf", "polynomial", "sigmoid", "laplacian", "cosine", "chi2" or "additive_chi2".
    filter_params : bool, default=False
        Whether to leave out arguments that the kernel has not.
    **kwds
        For the kernel.

    Returns
    -------
    ndarray of float of shape (n_rows, n_others), or dask Array

    Examples
    --------
    >>> import dask.array as da
    >>> from daskml_dist.metrics.pairwise import pairwise_kernels
    >>> pairwise_kernels(da.eye(2), metric="rbf", gamma=0.5).compute().round(2)
    array([[1.  , 0.37],
           [0.37, 1.  ]])
    """
    X, Y = _read_rows(X), _read_rows(Y)
    kernel = partial(_compute_kernel, metric=metric, filter_params=filter_params, **kwds)
    if not (is_dask(X) or is_dask(Y)):
        return call_sklearn_metric(kernel, X, Y)
    if metric == "precomputed":
        raise InvalidParameterError(
            "metric='precomputed' cannot be computed from rows. Name a kernel."
        )
    on_device = _KERNELS.get(metric) if isinstance(metric, str) else None
    if kwds and on_device is not None:
        on_device = (
            partial(on_device, **kwds) if metric == "rbf" and set(kwds) == {"gamma"} else None
        )
    return _map_block_pairs(kernel, X, Y, on_device)


@suggest_arguments
def pairwise_distances_argmin_min(
    X: Any,
    Y: Any,
    *,
    axis: int = 1,
    metric: str = "euclidean",
    metric_kwargs: dict[str, Any] | None = None,
) -> tuple[Any, Any]:
    """Find the row of Y that is nearest to each row of X, and its distance.

    No matrix of all distances is made: a block of X needs as much memory as scikit-learn's
    ``working_memory`` allows.

    Parameters
    ----------
    X : dask Array or DataFrame, or array-like, of shape (n_rows, n_features)
    Y : array-like of shape (n_others, n_features)
        In memory; small compared with X.
    axis : {1}, default=1
        0 is supported for rows in memory.
    metric : str, default="euclidean"
    metric_kwargs : dict, optional
        For the metric.

    Returns
    -------
    argmin : ndarray of int64 of shape (n_rows,), or dask Array
        Number of the nearest row of Y.
    values : ndarray of float64 of shape (n_rows,), or dask Array
        Its distance.

    Raises
    ------
    InvalidParameterError
        Y is a Dask collection, or `axis` is 0 and X one.
    InvalidDataError
        As :func:`pairwise_distances`.

    Examples
    --------
    >>> import dask.array as da
    >>> from daskml_dist.metrics.pairwise import pairwise_distances_argmin_min
    >>> X = da.from_array([[0.0], [1.0], [7.0]], chunks=2)
    >>> nearest, distance = pairwise_distances_argmin_min(X, [[0.0], [5.0]])
    >>> nearest.compute(), distance.compute()
    (array([0, 0, 1]), array([0., 1., 2.]))
    """
    options = {"axis": axis, "metric": metric, "metric_kwargs": metric_kwargs}
    X, Y = _read_rows(X), _read_rows(Y)
    if is_dask(Y):
        raise InvalidParameterError(
            "Y is a Dask collection, and each block of X needs all of it. Pass Y.compute()."
        )
    if not is_dask(X):
        nearest, values = call_sklearn_metric(
            partial(theirs.pairwise_distances_argmin_min, **options), X, Y
        )
        return nearest, values
    # axis=0 would need the minimum over all blocks of X.
    if axis != 1:
        raise InvalidParameterError(
            f"axis={axis!r}: a Dask collection X needs axis=1 (the nearest rows of Y). For "
            "axis=0, pass rows in memory."
        )
    # Both results in one array, so that each block is compared once. Indices of rows are exact in
    # float64 up to 2**53.
    results = map_blocks(partial(_find_nearest_rows, Y, options), X, meta=np.empty((0, 2)))
    return results[:, 0].astype(np.int64), results[:, 1]


@suggest_arguments
def cosine_similarity(X: Any, Y: Any = None) -> Any:
    """Calculate the cosine of the angle between rows.

    Inputs, results and errors are those of :func:`pairwise_distances`.

    Parameters
    ----------
    X, Y
        As in :func:`pairwise_distances`.

    Returns
    -------
    ndarray of float of shape (n_rows, n_others), or dask Array

    Examples
    --------
    >>> import dask.array as da
    >>> from daskml_dist.metrics.pairwise import cosine_similarity
    >>> cosine_similarity(da.eye(2), [[3.0, 4.0]]).compute().ravel()
    array([0.6, 0.8])
    """
    return pairwise_kernels(X, Y, metric="cosine")


@suggest_arguments
def cosine_distances(X: Any, Y: Any = None) -> Any:
    """Measure 1 minus the cosine of the angle between rows.

    Inputs, results and errors are those of :func:`pairwise_distances`.

    Parameters
    ----------
    X, Y
        As in :func:`pairwise_distances`.

    Returns
    -------
    ndarray of float of shape (n_rows, n_others), or dask Array

    Examples
    --------
    >>> import dask.array as da
    >>> from daskml_dist.metrics.pairwise import cosine_distances
    >>> cosine_distances(da.eye(2), [[3.0, 4.0]]).compute().ravel().round(2)
    array([0.4, 0.2])
    """
    return pairwise_distances(X, Y, metric="cosine")


@suggest_arguments
def manhattan_distances(X: Any, Y: Any = None) -> Any:
    """Measure sums of absolute differences.

    Inputs, results and errors are those of :func:`pairwise_distances`.

    Parameters
    ----------
    X, Y
        As in :func:`pairwise_distances`.

    Returns
    -------
    ndarray of float of shape (n_rows, n_others), or dask Array

    Examples
    --------
    >>> import dask.array as da
    >>> from daskml_dist.metrics.pairwise import manhattan_distances
    >>> manhattan_distances(da.eye(2), [[3.0, 4.0]]).compute().ravel()
    array([6., 6.])
    """
    return pairwise_distances(X, Y, metric="manhattan")


@suggest_arguments
def linear_kernel(X: Any, Y: Any = None) -> Any:
    """Calculate the dot products of rows.

    Inputs, results and errors are those of :func:`pairwise_distances`.

    Parameters
    ----------
    X, Y
        As in :func:`pairwise_distances`.

    Returns
    -------
    ndarray of float of shape (n_rows, n_others), or dask Array

    Examples
    --------
    >>> import dask.array as da
    >>> from daskml_dist.metrics.pairwise import linear_kernel
    >>> linear_kernel(da.eye(2), [[3.0, 4.0]]).compute().ravel()
    array([3., 4.])
    """
    return pairwise_kernels(X, Y, metric="linear")


@suggest_arguments
def rbf_kernel(X: Any, Y: Any = None, gamma: float | None = None) -> Any:
    """Calculate the Gaussian kernel of rows.

    Inputs, results and errors are those of :func:`pairwise_distances`.

    Parameters
    ----------
    X, Y
        As in :func:`pairwise_distances`.
    gamma : float or None, default=None
        None: one over the number of features.

    Returns
    -------
    ndarray of float of shape (n_rows, n_others), or dask Array

    Examples
    --------
    >>> import dask.array as da
    >>> from daskml_dist.metrics.pairwise import rbf_kernel
    >>> rbf_kernel(da.eye(2), gamma=0.5).compute().round(2)
    array([[1.  , 0.37],
           [0.37, 1.  ]])
    """
    return pairwise_kernels(X, Y, metric="rbf", gamma=gamma)


@suggest_arguments
def pairwise_distances_argmin(
    X: Any,
    Y: Any,
    *,
    axis: int = 1,
    metric: str = "euclidean",
    metric_kwargs: dict[str, Any] | None = None,
) -> Any:
    """Find the row of Y that is nearest to each row of X.

    Parameters
    ----------
    X, Y, axis, metric, metric_kwargs
        As in :func:`pairwise_distances_argmin_min`, which also lists the errors.

    Returns
    -------
    ndarray of int64 of shape (n_rows,), or dask Array

    Examples
    --------
    >>> import dask.array as da
    >>> from daskml_dist.metrics.pairwise import pairwise_distances_argmin
    >>> X = da.from_array([[0.0], [1.0], [7.0]], chunks=2)
    >>> pairwise_distances_argmin(X, [[0.0], [5.0]]).compute()
    array([0, 0, 1])
    """
    return pairwise_distances_argmin_min(
        X, Y, axis=axis, metric=metric, metric_kwargs=metric_kwargs
    )[0]


def _find_nearest_rows(Y: Any, options: dict[str, Any], X: Any) -> NDArray[np.float64]:
    """Return the index of each row's nearest row of Y, and the distance, as two columns."""
    return np.column_stack(
        theirs.pairwise_distances_argmin_min(convert_missing_to_nan(X), Y, **options)
    )


# --- distances and kernels on a GPU, of float64 rows; `same` tells that X is Y ----------------


def _measure_euclidean(X: Any, Y: Any, is_same: bool, squared: bool = False) -> Any:
    xp = namespace(X)
    squares = xp.sum(X * X, axis=1)[:, None] + xp.sum(Y * Y, axis=1)[None, :]
    distances = xp.maximum(squares - 2 * (X @ Y.T), 0.0)
    return _clear_diagonal(distances if squared else xp.sqrt(distances), is_same)


def _measure_cosine(X: Any, Y: Any, is_same: bool) -> Any:
    return _clear_diagonal(
        namespace(X).clip(1 - _multiply_directions(X, Y, is_same), 0.0, 2.0), is_same
    )


def _clear_diagonal(distances: Any, is_same: bool) -> Any:
    """Return distances, those of rows to themselves without rounding errors."""
    if not is_same:
        return distances
    row_numbers = namespace(distances).arange(distances.shape[0])
    return namespace(distances).where(row_numbers[:, None] == row_numbers, 0.0, distances)


def _multiply_rows(X: Any, Y: Any, is_same: bool) -> Any:
    return X @ Y.T


def _multiply_directions(X: Any, Y: Any, is_same: bool) -> Any:
    xp = namespace(X)
    norms = (xp.sqrt(xp.sum(rows * rows, axis=1))[:, None] for rows in (X, Y))
    # Rows of zeros have no direction.
    x, y = (table / xp.where(n == 0, 1.0, n) for table, n in zip((X, Y), norms, strict=True))
    return x @ y.T


def _decay_with_distance(X: Any, Y: Any, is_same: bool, gamma: float | None = None) -> Any:
    gamma = 1.0 / X.shape[1] if gamma is None else gamma
    return namespace(X).exp(-gamma * _measure_euclidean(X, Y, is_same, squared=True))


#: Functions of rows that are computed on a GPU, by the names of scikit-learn's metrics.
_DISTANCES: dict[str, Callable[..., Any]] = {
    "cosine": _measure_cosine,
    "euclidean": _measure_euclidean,
    "l2": _measure_euclidean,
}
_KERNELS: dict[str, Callable[..., Any]] = {
    "linear": _multiply_rows,
    "cosine": _multiply_directions,
    "rbf": _decay_with_distance,
}


def _compute_on_device(device_function: Any, X: Any, Y: Any, is_same: bool) -> Any:
    """Return the result for a block on a GPU and another; None where the host has to look."""
    if device_function is None or not are_device_numbers(X):
        return None
    if not are_device_numbers(Y):
        # Few rows beside those of X, such as centroids, are copied to the GPU.
        if not isinstance(Y, np.ndarray) or Y.dtype.kind not in "biuf":
            return None
        Y = namespace(X).asarray(Y)
    rows = [cast(table, np.dtype(np.float64)) for table in (X, Y)]
    if X.shape[1:] != Y.shape[1:] or any(find_first_nonfinite(table) is not None for table in rows):
        return None
    return device_function(*rows, is_same)


def _read_rows(rows: Any) -> Any:
    """Return rows in memory as scikit-learn's functions take them; lazy rows as a collection."""
    if rows is None or is_dask(rows := convert_foreign(rows)):
        return rows
    rows = canonicalize_sparse(convert_missing_to_nan(copy_to_host(rows)))
    # Distances of bools and kernels with compiled code read arrays alone.
    return rows if sparse.issparse(rows) else convert_to_array(rows, "X", None)


def _compute_kernel(X: Any, Y: Any = None, *, metric: Any, **options: Any) -> Any:
    """Return scikit-learn's kernel of rows in memory, which may be read-only."""
    if isinstance(metric, str) and metric.endswith("chi2"):
        # The compiled code of these kernels refuses such rows, as Dask's frames hold them.
        X, Y = (rows if rows is None else np.require(rows, requirements="W") for rows in (X, Y))
    return theirs.pairwise_kernels(X, Y, metric, **options)


def _map_block_pairs(function: Callable[..., Any], X: Any, Y: Any, device_function: Any) -> Any:
    """Return a lazy matrix: ``function(block of X, block of Y)`` for each pair of blocks.

    ``device_function(X, Y, same)`` is the same function of rows on a GPU, or None.
    """
    rows = _convert_to_row_blocks(X, "X")
    # The same blocks, so that a block can be compared with itself.
    other_rows = rows if Y is None else _convert_to_row_blocks(Y, "Y")
    widths = rows.shape[1], other_rows.shape[1]
    if len(set(widths)) > 1 and not np.isnan(widths).any():
        raise InvalidDataError(
            f"Incompatible dimension for X and Y matrices: X.shape[1] == {widths[0]} while "
            f"Y.shape[1] == {widths[1]}. Pass the same columns in both."
        )
    # One made-up row of each gives the dtype, and raises for bad arguments before any work.
    try:
        dtype = function(np.ones((1, 2), rows.dtype), np.ones((1, 2), other_rows.dtype)).dtype
    except (ValueError, TypeError) as error:
        if not {"V", "VI"}.isdisjoint(getattr(function, "keywords", {})):
            dtype = np.dtype(np.float64)  # the given scale does not fit made-up rows of width 2
        else:
            raise InvalidParameterError(str(error)) from error
    return da.blockwise(
        partial(_apply_to_block_pair, function, device_function, dtype, Y is None),
        "ij",
        rows,
        "ik",
        other_rows,
        "jk",
        # The indices of both blocks, by which a pair of equal blocks is recognized.
        ArrayBlockIdDep(rows.chunks[:1]),
        "i",
        ArrayBlockIdDep(other_rows.chunks[:1]),
        "j",
        # Blocks come in lists along the dimension k: of one, since rows are whole
        # (`_convert_to_row_blocks`).
        concatenate=None,
        align_arrays=False,
        dtype=dtype,
        meta=np.empty((0, 0), dtype),
    )


def _convert_to_row_blocks(rows: Any, name: str) -> da.Array:
    """Return rows as a Dask Array whose blocks hold whole rows."""
    rows = join_delayed(rows, 2)
    if is_dask_frame(rows):
        rows = rows.to_dask_array()
    if not isinstance(rows, da.Array):
        if sparse.issparse(rows):
            rows = da.from_array(rows.tocsr(), chunks=-1, asarray=False)
        else:
            rows = da.from_array(rows, chunks=-1)
    if rows.ndim != 2:
        raise InvalidDataError(
            f"Expected 2D array, got {rows.ndim}D array instead: {name} has the shape "
            f"{rows.shape}. Pass rows and columns, such as {name}[:, np.newaxis]."
        )
    row_blocks: da.Array = join_column_chunks(rows)
    return row_blocks


def _apply_to_block_pair(
    function: Callable[..., Any],
    device_function: Any,
    dtype: Any,
    of_itself: bool,
    X: list[Any],
    Y: list[Any],
    x_block_id: tuple[int],
    y_block_id: tuple[int],
) -> Any:
    (rows,), (other_rows,) = X, Y
    same = of_itself and x_block_id == y_block_id
    if (matrix := _compute_on_device(device_function, rows, other_rows, same)) is not None:
        return cast(matrix, dtype)
    rows, other_rows = map(_read_rows, (rows, other_rows))
    # scikit-learn refuses blocks without rows, as a filter may leave them; sparse ones have no
    # length.
    if not rows.shape[0] or not other_rows.shape[0]:
        return np.empty((rows.shape[0], other_rows.shape[0]))
    try:
        # ``function(X)`` sets the diagonal to 0; ``function(X, X)`` may leave rounding errors.
        return function(rows) if same else function(rows, other_rows)
    except (ValueError, TypeError) as error:
        raise as_ours(error, f"Block {x_block_id[0]} of X, block {y_block_id[0]} of Y: ") from error
