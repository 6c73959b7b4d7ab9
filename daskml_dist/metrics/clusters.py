"""Silhouette scores of clusterings.

A silhouette needs the mean distance of a row to the rows of each cluster. For squared Euclidean and
cosine distances this follows from sums over the cluster, so a Dask collection is scored exactly, in
two passes (`_ClusterSums`). For other metrics its rows are compared with a random sample of all
rows (`_ComparisonSample`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
import sklearn.metrics as theirs
from dask.delayed import delayed
from numpy.typing import NDArray
from scipy import sparse
from sklearn.metrics import pairwise_distances
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.preprocessing import normalize
from sklearn.utils import check_random_state
from sklearn.utils.random import sample_without_replacement

from daskml_dist.data.blocks import check_finite_rows, make_block
from daskml_dist.data.collection import Collection, as_collection, join_lazy_blocks
from daskml_dist.data.reduce import add_arrays, concatenate_lists, count_rows, reduce_parts
from daskml_dist.diagnostics.operation_progress import report_reading
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.inference.block_mapping import share_in_graph
from daskml_dist.metrics._columns import (
    call_sklearn_metric,
    find_unique_labels,
    has_lazy_input,
    merge_labels,
    read_labels,
)

Numbers = NDArray[np.float64]


#: Default number of rows of the sample: 800 MB of distances between them, which are computed in
#: slices.
SAMPLE_SIZE = 10_000


#: Metrics whose mean distance to a cluster follows from sums over it.
_METRICS_OF_SUMS = ("sqeuclidean", "cosine")


#: Up to this number of rows a whole permutation (128 MiB) is drawn, which gives scikit-learn's
#: sample. For more rows only the sample is drawn.
_MAX_PERMUTED_ROWS = 1 << 24


#: Bytes of distances that are in memory at a time, 64 MiB: rows are compared in slices.
_MAX_DISTANCE_BYTES = 1 << 26


@report_reading("silhouette_score")
@suggest_arguments
def silhouette_score(
    X: Any,
    labels: Any,
    *,
    metric: Any = "euclidean",
    sample_size: int | None = None,
    random_state: Any = None,
    **kwds: Any,
) -> float:
    """Return the mean silhouette: the relative nearness of rows to their own and the next cluster.

    Source: Rousseeuw (1987), "Silhouettes: a graphical aid to the interpretation and validation of
    cluster analysis".

    Parameters
    ----------
    X : dask Array or DataFrame, or array-like or sparse, of shape (n_rows, n_features)
    labels : dask Array or Series, or array-like, of shape (n_rows,)
        Cluster of each row.
    metric : str or callable, default="euclidean"
        A metric of :func:`sklearn.metrics.pairwise_distances`; "precomputed" only in memory.
    sample_size : int, optional
        Number of rows that are drawn and compared with each other (up to 2**24 rows the sample is
        scikit-learn's). Default: all rows in memory; for a Dask collection all rows for
        "sqeuclidean" and "cosine", else at most 10,000.
    random_state : int, RandomState or None
        Seed of the sample.
    **kwds
        Options of the metric.

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
    The sample is gathered in the calling process, which computes 64 MiB of distances at a time.
    Without a sample, the mean squared Euclidean (or cosine) distance to a cluster follows from its
    mean and its spread, so two passes are enough for all rows.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import silhouette_score
    >>> X = np.array([[0.0], [1.0], [10.0], [11.0]])
    >>> round(float(silhouette_score(X, np.array([0, 0, 1, 1]))), 4)
    0.8997
    """
    if not has_lazy_input(X, labels):
        options = {"metric": metric, "sample_size": sample_size, "random_state": random_state}
        score = partial(theirs.silhouette_score, **options, **kwds)
        return float(call_sklearn_metric(score, X, labels))
    rows = _align_labelled_rows(X, labels, metric, sample_size)
    if sample_size is None and metric in _METRICS_OF_SUMS and not kwds:
        # First the sums of the clusters, then the silhouettes of all rows from these.
        sums = _reduce_cluster_sums(rows, metric)
        total_of_block = partial(_sum_block_silhouettes, share_in_graph(sums.compute_silhouettes))
        weight, total = reduce_parts(rows, total_of_block, add_arrays)
        return float(total / weight)
    sample = _draw_comparison_sample(rows, metric, sample_size, random_state, kwds)
    y = np.repeat(sample.labels, np.diff(np.append(sample.starts, len(sample.row_numbers))))
    return float(sample.compute_silhouettes(sample.rows, sample.row_numbers, y).mean())


@suggest_arguments
def silhouette_samples(
    X: Any,
    labels: Any,
    *,
    metric: Any = "euclidean",
    sample_size: int | None = None,
    random_state: Any = None,
    **kwds: Any,
) -> Any:
    """Return the silhouette of each row; parameters and errors as :func:`silhouette_score`.

    Parameters
    ----------
    X, labels, metric, **kwds
        As of :func:`silhouette_score`.
    sample_size, random_state
        Size of the sample with which each row of a Dask collection is compared.

    Returns
    -------
    ndarray or dask Array of float64 of shape (n_rows,)
        Lazy if an input is.

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
    if not has_lazy_input(X, labels):
        score = partial(theirs.silhouette_samples, metric=metric, **kwds)
        return call_sklearn_metric(score, X, labels)
    rows = _align_labelled_rows(X, labels, metric, sample_size)
    starts: Any = [None] * len(rows.parts)
    if sample_size is None and metric in _METRICS_OF_SUMS and not kwds:
        reference: Any = _reduce_cluster_sums(rows, metric)
    else:
        # A row is found in the sample by its number among all rows.
        starts = _find_block_starts(rows)[:-1].tolist()
        reference = _draw_comparison_sample(rows, metric, sample_size, random_state, kwds)
    # The sums or the sample are one object of the graph, not a copy in each task.
    make_task = delayed(_score_block_silhouettes, pure=False)
    shared_score = share_in_graph(reference.compute_silhouettes)
    pieces = [
        make_task(shared_score, i, X, y, start)
        for i, ((X, y, _), start) in enumerate(zip(rows.parts, starts, strict=True))
    ]
    return join_lazy_blocks(pieces, rows, np.empty(0))


def _align_labelled_rows(X: Any, labels: Any, metric: Any, sample_size: Any) -> Collection:
    """Return rows and labels as aligned blocks, after checks of the options."""
    if metric == "precomputed":
        raise InvalidParameterError(
            "metric='precomputed' needs distances in memory. Pass rows, or X.compute()."
        )
    # Three made-up rows: scikit-learn raises for a sample_size of the wrong type.
    made_up = np.array([[0.0], [1.0], [3.0]])
    call_sklearn_metric(theirs.silhouette_score, made_up, [0, 0, 1], sample_size=sample_size and 3)
    if sample_size is not None and sample_size < 1:
        raise InvalidParameterError(f"sample_size={sample_size} draws no row. Raise it.")
    return as_collection(X, labels, classification=True)


def _read_labelled_block(index: int, X: Any, y: Any) -> tuple[Any, NDArray[Any]]:
    """Return the rows of a block and their labels, checked."""
    block = make_block(index, X, y, None, classification=True)
    check_finite_rows(block.X, index)
    return block.X, read_labels(block.y, "labels", index)


def _score_block_silhouettes(
    score: Any, index: int, X: Any, y: Any, start: int | None
) -> NDArray[np.float64]:
    rows, labels = _read_labelled_block(index, X, y)
    if not len(labels):
        return np.empty(0)
    numbers = () if start is None else (start + np.arange(len(labels)),)
    return np.asarray(score(rows, *numbers, labels))


def _compute_silhouettes(own_means: Numbers, other_means: Numbers) -> Numbers:
    """Return ``(b - a) / max(a, b)``, a and b the mean distances to the own and next cluster."""
    with np.errstate(divide="ignore", invalid="ignore"):
        silhouettes = (other_means - own_means) / np.maximum(own_means, other_means)
    return np.nan_to_num(silhouettes)  # 0 by definition for the row of a cluster of one


def _check_cluster_count(n_labels: int, n_rows: int) -> None:
    """Raise `InvalidDataError` for a single cluster, or for one cluster per row."""
    if not 1 < n_labels < n_rows:
        raise InvalidDataError(
            f"Number of labels is {n_labels}. Valid values are 2 to n_samples - 1 (inclusive), of "
            f"{n_rows} rows. Make more clusters, or fewer; of a sample, make it larger."
        )


# --- distances to a sample -------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _ComparisonSample:
    """Sample of all rows, with which rows are compared. Picklable.

    Parameters
    ----------
    rows : ndarray or CSR matrix of shape (n, n_features)
        In the order of their labels.
    row_numbers : ndarray of int64 of shape (n,)
        Positions of the rows among all rows.
    labels : ndarray of shape (n_clusters,)
        Sorted.
    starts : ndarray of int64 of shape (n_clusters,)
        Index of the first row of each cluster in `rows`.
    metric : str or callable
    options : dict
        Options of the metric.
    """

    rows: Any
    row_numbers: NDArray[np.int64]
    labels: NDArray[Any]
    starts: NDArray[np.int64]
    metric: Any
    options: dict[str, Any]

    @classmethod
    def from_rows(
        cls, rows: Any, row_numbers: NDArray[np.int64], y: NDArray[Any], metric: Any, options: Any
    ) -> _ComparisonSample:
        """Return the sample of given rows and labels, in any order."""
        labels, clusters = find_unique_labels(y)
        _check_cluster_count(len(labels), len(y))
        order = np.lexsort((row_numbers, clusters))
        starts = np.searchsorted(clusters[order], np.arange(len(labels)))
        return cls(rows[order], row_numbers[order], labels, starts, metric, options)

    def compute_silhouettes(
        self, rows: Any, row_numbers: NDArray[np.int64], y: NDArray[Any]
    ) -> Numbers:
        """Return the silhouettes of rows, which may be in the sample, given their row numbers."""
        clusters = np.searchsorted(self.labels, y).clip(max=len(self.labels) - 1)
        if (self.labels[clusters] != y).any():
            raise InvalidDataError(
                f"The sample has no row of the label {y[self.labels[clusters] != y][0]!r}. Raise "
                "sample_size."
            )
        # The index of each row in the sample; for a row that is not in it, its insertion point.
        order = np.argsort(self.row_numbers)
        insertion = np.searchsorted(self.row_numbers, row_numbers, sorter=order).clip(
            max=len(order) - 1
        )
        step = max(1, _MAX_DISTANCE_BYTES // (8 * len(self.row_numbers)))
        slices = [slice(start, start + step) for start in range(0, len(y), step)]
        silhouettes = [
            self._compare(rows[s], row_numbers[s], clusters[s], order[insertion[s]]) for s in slices
        ]
        return np.concatenate([np.empty(0), *silhouettes])

    def _compare(
        self, rows: Any, row_numbers: Any, clusters: Any, sample_positions: Any
    ) -> Numbers:
        """Return the silhouettes of a slice of rows, by their distances to the whole sample."""
        measure = partial(pairwise_distances, metric=self.metric, **self.options)
        distances = call_sklearn_metric(measure, rows, self.rows)
        row_indices = np.arange(len(clusters))
        # A row is not compared with itself: rounding may have given a distance above 0.
        is_itself = self.row_numbers[sample_positions] == row_numbers
        distances[row_indices[is_itself], sample_positions[is_itself]] = 0.0
        # The sample is sorted by cluster, so sums by cluster are sums of adjacent columns.
        sums = np.add.reduceat(distances, self.starts, axis=1, dtype=np.float64)
        counts = np.diff(np.append(self.starts, len(self.row_numbers)))
        # A row of the sample has one fewer other row in its cluster.
        with np.errstate(divide="ignore", invalid="ignore"):
            own_means = sums[row_indices, clusters] / (counts[clusters] - is_itself)
        means = sums / counts
        means[row_indices, clusters] = np.inf
        return _compute_silhouettes(own_means, means.min(axis=1))


def _draw_comparison_sample(
    rows: Collection, metric: Any, size: int | None, random_state: Any, options: dict[str, Any]
) -> _ComparisonSample:
    """Return a random sample of `size` rows, or of all rows if there are no more."""
    starts = _find_block_starts(rows)
    n = int(starts[-1])
    size = min(n, SAMPLE_SIZE if size is None else size)
    state = check_random_state(random_state)
    sampled = np.arange(n)
    # scikit-learn's draw, if a permutation of all rows is small enough.
    if size < n <= _MAX_PERMUTED_ROWS:
        sampled = state.permutation(n)[:size]
    elif size < n:
        sampled = np.asarray(sample_without_replacement(n, size, random_state=state), np.int64)
    take = partial(_take_drawn_rows, np.sort(sampled), starts)
    parts = [part for part in reduce_parts(rows, take, concatenate_lists) if len(part[1])]
    X, y, numbers = zip(*parts, strict=True)
    table = sparse.vstack(X, format="csr") if sparse.issparse(X[0]) else np.concatenate(X)
    columns = np.concatenate(numbers), np.concatenate(y)
    return _ComparisonSample.from_rows(table, *columns, metric, options)


def _find_block_starts(rows: Collection) -> NDArray[np.int64]:
    """Return the number of each block's first row among all rows, followed by their count."""
    starts = np.append(0, np.cumsum(count_rows(rows)))
    if not starts[-1]:
        raise InvalidDataError("X has no rows. Check the files or the filter that it comes from.")
    return starts


def _take_drawn_rows(
    drawn_numbers: NDArray[np.int64],
    starts: NDArray[np.int64],
    index: int,
    X: Any,
    y: Any,
    weight: Any,
) -> list[tuple[Any, NDArray[Any], NDArray[np.int64]]]:
    """Return the drawn rows of a block, their labels and their numbers."""
    rows, labels = _read_labelled_block(index, X, y)
    low, high = np.searchsorted(drawn_numbers, starts[index : index + 2])
    numbers = drawn_numbers[low:high]
    positions = numbers - starts[index]
    return [(rows[positions], labels[positions], numbers)]


# --- distances whose means follow from sums of the clusters ----------------------------------


@dataclass(frozen=True, eq=False)
class _ClusterSums:
    """Sums for the mean squared Euclidean, or cosine, distance of a row to a cluster's rows.

    The mean of ``|x - y|**2`` over the rows y of a cluster is ``|x - mean|**2`` plus the cluster's
    variance; that of ``1 - x @ y`` over rows of norm 1 is ``1 - x @ mean``. Blocks are merged as in
    T. Chan, G. Golub, R. LeVeque (1983), "Algorithms for computing the sample variance".

    Parameters
    ----------
    labels : ndarray of shape (n_clusters,)
    counts : ndarray of float64 of shape (n_clusters,)
    means : ndarray of float64 of shape (n_clusters, n_features)
    squares : ndarray of float64 of shape (n_clusters,)
        Sums of the squared distances of rows from the mean.
    cosine : bool
        Whether rows are scaled to norm 1.
    """

    labels: NDArray[Any]
    counts: Numbers
    means: Numbers
    squares: Numbers
    cosine: bool

    def compute_silhouettes(self, rows: Any, y: NDArray[Any]) -> Numbers:
        """Return the silhouettes of rows, which must be among those that were summed."""
        clusters, row_indices = np.searchsorted(self.labels, y), np.arange(len(y))
        rows = _prepare_rows(rows, self.cosine)
        if self.cosine:
            means = 1.0 - np.asarray(rows @ self.means.T)
            to_self = 1.0 - _sum_squares_of_rows(rows)
        else:
            means = _measure_center_distances(rows, self.means) + self.squares / self.counts
            to_self = np.zeros(len(y))
        # Mean over the other rows of the cluster: the row's distance to itself is excluded.
        count = self.counts[clusters]
        with np.errstate(divide="ignore", invalid="ignore"):
            own_means = np.maximum(count * means[row_indices, clusters] - to_self, 0.0) / (
                count - 1
            )
        # The minimum is over the other clusters.
        means[row_indices, clusters] = np.inf
        return _compute_silhouettes(own_means, means.min(axis=1))


def _reduce_cluster_sums(rows: Collection, metric: str) -> _ClusterSums:
    cosine = metric == "cosine"
    sums: _ClusterSums | None = reduce_parts(
        rows, partial(_sum_block_clusters, cosine=cosine), partial(reduce, _merge_two_sums)
    )
    if sums is None:
        raise InvalidDataError("X has no rows. Check the files or the filter that it comes from.")
    _check_cluster_count(len(sums.labels), int(sums.counts.sum()))
    return sums


def _sum_block_clusters(
    index: int, X: Any, y: Any, weight: Any, *, cosine: bool
) -> _ClusterSums | None:
    rows, y = _read_labelled_block(index, X, y)
    if not len(y):
        return None
    labels, clusters = find_unique_labels(y)
    rows = _prepare_rows(rows, cosine)
    # Sums by cluster as products with a sparse matrix: row i has a 1 for each row of cluster i.
    membership = sparse.csr_array((np.ones(len(clusters)), (clusters, np.arange(len(clusters)))))
    counts = np.asarray(membership.sum(axis=1), np.float64).ravel()
    sums = membership @ rows
    means = (sums.toarray() if sparse.issparse(sums) else sums) / counts[:, None]
    if sparse.issparse(rows):
        # Differences from the mean would be dense: sum |x|**2 - n |mean|**2 instead, which loses
        # digits if the mean is large.
        squares = np.asarray(membership @ _sum_squares_of_rows(rows)).ravel()
        squares = np.maximum(squares - counts * (means**2).sum(axis=1), 0.0)
    else:
        squares = membership @ _sum_squares_of_rows(rows - means[clusters])
    return _ClusterSums(labels, counts, means, squares, cosine)


def _merge_two_sums(first_sums: _ClusterSums, second_sums: _ClusterSums) -> _ClusterSums:
    labels = merge_labels([first_sums.labels, second_sums.labels])
    counts = np.zeros((2, len(labels)))
    means = np.zeros((2, len(labels), first_sums.means.shape[1]))
    squares = np.zeros(len(labels))
    for k, part in enumerate((first_sums, second_sums)):
        positions = np.searchsorted(labels, part.labels)
        counts[k, positions], means[k, positions] = part.counts, part.means
        squares[positions] += part.squares
    # Pairwise update of Chan, Golub and LeVeque: the distance between the two means adds to the
    # squares about the merged one.
    count = counts.sum(axis=0)
    difference = means[1] - means[0]
    share = counts[1] / count
    squares += (difference**2).sum(axis=1) * counts[0] * share
    return _ClusterSums(
        labels, count, means[0] + difference * share[:, None], squares, first_sums.cosine
    )


def _sum_block_silhouettes(
    score: Any, index: int, X: Any, y: Any, weight: Any
) -> NDArray[np.float64]:
    """Return the number of a block's rows, and the sum of their silhouettes."""
    rows, labels = _read_labelled_block(index, X, y)
    return np.array([len(labels), score(rows, labels).sum() if len(labels) else 0.0])


def _prepare_rows(rows: Any, cosine: bool) -> Any:
    """Return rows as float64, scaled to norm 1 for cosine distances."""
    rows = rows.astype("float64", copy=False)
    return normalize(rows) if cosine else rows


def _sum_squares_of_rows(rows: Any) -> Numbers:
    squares = rows.multiply(rows) if sparse.issparse(rows) else rows**2
    return np.asarray(squares.sum(axis=1)).ravel()


def _measure_center_distances(rows: Any, means: Numbers) -> Numbers:
    """Return the squared Euclidean distance of each row to each mean."""
    if sparse.issparse(rows):
        distances: Numbers = euclidean_distances(rows, means, squared=True)
        return distances
    # From differences, not from the expanded square: rows far from the origin keep their digits.
    columns = [((rows - mean) ** 2).sum(axis=1) for mean in means]
    return np.stack(columns, axis=1)
