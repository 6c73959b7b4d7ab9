"""Metrics of clusters, without true labels."""

from __future__ import annotations

from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import sklearn.metrics as theirs
from dask.delayed import delayed
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import check_random_state
from sklearn.utils.random import sample_without_replacement

from daskml_dist.data.blocks import check_finite_rows, make_block
from daskml_dist.data.collection import Collection, as_collection
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.diagnostics.works import reading
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.signatures import telling_arguments
from daskml_dist.inference.block_mapping import share_in_graph
from daskml_dist.metrics._columns import called, is_lazy
from daskml_dist.metrics._readers import read_labels
from daskml_dist.metrics._silhouettes import (
    ClusterSums,
    Sample,
    check_clusters,
    joined_sums,
    sums_of,
)

__all__ = ["SAMPLE_SIZE", "silhouette_samples", "silhouette_score"]

#: Rows of a Dask collection that are compared by default.
SAMPLE_SIZE = 10_000
#: Metrics whose means follow from sums of the clusters.
_BY_SUMS = ("sqeuclidean", "cosine")
#: Rows up to which a permutation of all is drawn, as scikit-learn does.
_PERMUTED = 1 << 24


@reading("silhouette_score")
@telling_arguments
def silhouette_score(
    X: Any,
    labels: Any,
    *,
    metric: Any = "euclidean",
    sample_size: int | None = None,
    random_state: Any = None,
    **kwds: Any,
) -> float:
    """Mean silhouette: how much nearer rows are to their own cluster than to the next one.

    Source: Rousseeuw (1987), "Silhouettes: a graphical aid to the interpretation and validation of
    cluster analysis".

    Parameters
    ----------
    X : dask Array or DataFrame, or array-like or sparse, of shape (n_rows, n_features)
    labels : dask Array or Series, or array-like, of shape (n_rows,)
        Clusters of the rows.
    metric : str or callable, default="euclidean"
        Of :func:`sklearn.metrics.pairwise_distances`; "precomputed" is for rows in memory.
    sample_size : int, optional
        Rows that are drawn, and compared with each other: up to 2**24 rows those that scikit-learn
        draws. By default all of rows in memory, and of a Dask collection all for "sqeuclidean" and
        "cosine", else `SAMPLE_SIZE`, 10,000, where it has more.
    random_state : int, RandomState or None
        Draws the rows.
    **kwds
        Of the metric.

    Returns
    -------
    float
        In [-1, 1].

    Raises
    ------
    InvalidParameterError
        An option has no meaning here.
    InvalidDataError
        The rows cannot be aligned or hold NaN; there is one cluster, or each row is one.

    Notes
    -----
    The sample comes to the caller, who compares 64 MiB of distances at a time. Without a sample the
    mean squared Euclidean (or cosine) distance to a cluster follows from its mean, so two passes
    are enough for all rows.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import silhouette_score
    >>> X = np.array([[0.0], [1.0], [10.0], [11.0]])
    >>> round(float(silhouette_score(X, np.array([0, 0, 1, 1]))), 4)
    0.8997
    """
    if not is_lazy(X, labels):
        options = {"metric": metric, "sample_size": sample_size, "random_state": random_state}
        return float(called(partial(theirs.silhouette_score, **options, **kwds), X, labels))
    rows = _checked(X, labels, metric, sample_size)
    if sample_size is None and metric in _BY_SUMS and not kwds:
        sums = _all_sums(rows, metric)
        weight, total = reduce_parts(
            rows, partial(_scores, share_in_graph(sums.silhouettes)), _added
        )
        return float(total / weight)
    sample = _sample(rows, metric, sample_size, random_state, kwds)
    y = np.repeat(sample.labels, np.diff(np.append(sample.starts, len(sample.numbers))))
    return float(sample.silhouettes(sample.rows, sample.numbers, y).mean())


@telling_arguments
def silhouette_samples(
    X: Any,
    labels: Any,
    *,
    metric: Any = "euclidean",
    sample_size: int | None = None,
    random_state: Any = None,
    **kwds: Any,
) -> Any:
    """Silhouette of each row; parameters and errors as :func:`silhouette_score`.

    Parameters
    ----------
    X, labels, metric, **kwds
        As of :func:`silhouette_score`.
    sample_size, random_state
        Rows of a Dask collection that each row is compared with.

    Returns
    -------
    ndarray or dask Array of float64 of shape (n_rows,)
        Lazy where an input is.

    Raises
    ------
    InvalidParameterError, InvalidDataError

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import silhouette_samples
    >>> X = np.array([[0.0], [1.0], [10.0], [11.0]])
    >>> silhouette_samples(X, np.array([0, 0, 1, 1])).round(4).tolist()
    [0.9048, 0.8947, 0.8947, 0.9048]
    """
    if not is_lazy(X, labels):
        return called(partial(theirs.silhouette_samples, metric=metric, **kwds), X, labels)
    rows = _checked(X, labels, metric, sample_size)
    if sample_size is None and metric in _BY_SUMS and not kwds:
        found: Any = _all_sums(rows, metric)
        starts = np.zeros(len(rows.parts), np.int64)
    else:
        starts = _starts(rows)[:-1]
        found = _sample(rows, metric, sample_size, random_state, kwds)
    make, once = delayed(_of_block, pure=False), share_in_graph(found.silhouettes)
    by_number = isinstance(found, Sample)
    counts: Any = rows.row_counts or [np.nan] * len(rows.parts)
    pieces = [
        da.from_delayed(
            make(once, i, X, y, int(starts[i]) if by_number else None), (n,), dtype=np.float64
        )
        for i, ((X, y, _), n) in enumerate(zip(rows.parts, counts, strict=True))
    ]
    return da.concatenate(pieces)


def _checked(X: Any, labels: Any, metric: Any, sample_size: Any) -> Collection:
    if metric == "precomputed":
        raise InvalidParameterError(
            "metric='precomputed' is for distances in memory. Pass rows, or X.compute()."
        )
    two = np.array([[0.0], [1.0], [3.0]])
    called(theirs.silhouette_score, two, [0, 0, 1], sample_size=sample_size and 3)
    if sample_size is not None and sample_size < 1:
        raise InvalidParameterError(f"sample_size={sample_size} draws no row. Raise it.")
    return as_collection(X, labels, classification=True)


def _read(index: int, X: Any, y: Any) -> tuple[Any, NDArray[Any]]:
    """Rows of a block and their labels, checked."""
    block = make_block(index, X, y, None, classification=True)
    check_finite_rows(block.X, index)
    return block.X, read_labels(block.y, "labels", index)


# --- all rows --------------------------------------------------------------------------------


def _all_sums(rows: Collection, metric: str) -> ClusterSums:
    cosine = metric == "cosine"
    sums: ClusterSums | None = reduce_parts(rows, partial(_sums, cosine=cosine), _joined)
    if sums is None:
        raise InvalidDataError("X has no rows. Look at the files or filter that it comes from.")
    check_clusters(len(sums.labels), int(sums.counts.sum()))
    return sums


def _sums(index: int, X: Any, y: Any, weight: Any, *, cosine: bool) -> ClusterSums | None:
    rows, of = _read(index, X, y)
    return sums_of(rows, of, cosine) if len(of) else None


def _joined(parts: list[ClusterSums | None]) -> ClusterSums | None:
    some = [part for part in parts if part is not None]
    return joined_sums(some) if some else None


def _scores(score: Any, index: int, X: Any, y: Any, weight: Any) -> NDArray[np.float64]:
    rows, of = _read(index, X, y)
    return np.array([len(of), score(rows, of).sum() if len(of) else 0.0])


def _added(parts: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.asarray(np.sum(parts, axis=0))


def _of_block(score: Any, index: int, X: Any, y: Any, start: int | None) -> NDArray[np.float64]:
    rows, of = _read(index, X, y)
    if not len(of):
        return np.empty(0)
    more = () if start is None else (start + np.arange(len(of)),)
    return np.asarray(score(rows, *more, of))


# --- a sample --------------------------------------------------------------------------------


def _sample(
    rows: Collection, metric: Any, size: int | None, random_state: Any, options: dict[str, Any]
) -> Sample:
    starts = _starts(rows)
    n = int(starts[-1])
    size = min(n, SAMPLE_SIZE if size is None else size)
    state = check_random_state(random_state)
    drawn = np.arange(n)
    if size < n:
        draws = n <= _PERMUTED
        drawn = state.permutation(n)[:size] if draws else _few(n, size, state)
    take = partial(_taken, np.sort(drawn), starts)
    found = [part for part in reduce_parts(rows, take, _chained) if len(part[1])]
    X, y, numbers = zip(*found, strict=True)
    table = sparse.vstack(X, format="csr") if sparse.issparse(X[0]) else np.concatenate(X)
    return Sample.of(table, np.concatenate(numbers), np.concatenate(y), metric, options)


def _few(n: int, size: int, state: Any) -> NDArray[np.int64]:
    return np.asarray(sample_without_replacement(n, size, random_state=state), np.int64)


def _starts(rows: Collection) -> NDArray[np.int64]:
    """Number of each block's first row, and of all rows."""
    counts = rows.row_counts
    counts = reduce_parts(rows, _count, _chained) if counts is None else counts
    starts = np.append(0, np.cumsum(counts)).astype(np.int64)
    if not starts[-1]:
        raise InvalidDataError("X has no rows. Look at the files or filter that it comes from.")
    return starts


def _count(index: int, X: Any, y: Any, weight: Any) -> list[int]:
    return [X.shape[0]]


def _taken(
    drawn: NDArray[np.int64], starts: NDArray[np.int64], index: int, X: Any, y: Any, weight: Any
) -> list[tuple[Any, NDArray[Any], NDArray[np.int64]]]:
    rows, of = _read(index, X, y)
    numbers = drawn[
        np.searchsorted(drawn, starts[index]) : np.searchsorted(drawn, starts[index + 1])
    ]
    at = numbers - starts[index]
    return [(rows[at], of[at], numbers)]


def _chained(parts: list[list[Any]]) -> list[Any]:
    return [one for part in parts for one in part]
