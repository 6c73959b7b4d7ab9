"""Silhouettes of rows: their distances to a sample of all rows, or to sums of the clusters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.metrics import pairwise_distances
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.preprocessing import normalize

from daskml_dist.errors import InvalidDataError
from daskml_dist.metrics._columns import called
from daskml_dist.metrics._readers import join_labels, unique_labels

__all__ = ["ClusterSums", "Sample", "check_clusters", "joined_sums", "sums_of"]

Numbers = NDArray[np.float64]

#: Bytes of distances at once.
_BYTES = 1 << 26


def check_clusters(n_labels: int, n_rows: int) -> None:
    """Check that there are clusters to compare."""
    if not 1 < n_labels < n_rows:
        raise InvalidDataError(
            f"Number of labels is {n_labels}. Valid values are 2 to n_samples - 1 (inclusive), of "
            f"{n_rows} rows. Make more clusters, or fewer; of a sample, make it larger."
        )


def _silhouettes(own: Numbers, others: Numbers) -> Numbers:
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (others - own) / np.maximum(own, others)
    return np.nan_to_num(found)  # a cluster of one row has none


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows that others are compared with. Picklable.

    Parameters
    ----------
    rows : ndarray or CSR matrix of shape (n, n_features)
        In the order of their labels.
    numbers : ndarray of int64 of shape (n,)
        Of the rows among all.
    labels : ndarray of shape (n_clusters,)
    starts : ndarray of int64 of shape (n_clusters,)
        First row of each cluster.
    metric : str or callable
    options : dict
        Of the metric.
    """

    rows: Any
    numbers: NDArray[np.int64]
    labels: NDArray[Any]
    starts: NDArray[np.int64]
    metric: Any
    options: dict[str, Any]

    @classmethod
    def of(
        cls, rows: Any, numbers: NDArray[np.int64], y: NDArray[Any], metric: Any, options: Any
    ) -> Sample:
        """Of rows with their labels, in any order."""
        labels, at = unique_labels(y)
        check_clusters(len(labels), len(y))
        order = np.lexsort((numbers, at))
        starts = np.searchsorted(at[order], np.arange(len(labels)))
        return cls(rows[order], numbers[order], labels, starts, metric, options)

    def silhouettes(self, rows: Any, numbers: NDArray[np.int64], y: NDArray[Any]) -> Numbers:
        """Silhouettes of rows, of which any may be of the sample."""
        at = np.searchsorted(self.labels, y).clip(max=len(self.labels) - 1)
        if (self.labels[at] != y).any():
            raise InvalidDataError(
                f"The sample has no row of the label {y[self.labels[at] != y][0]!r}. Raise "
                "sample_size."
            )
        order = np.argsort(self.numbers)
        place = np.searchsorted(self.numbers, numbers, sorter=order).clip(max=len(order) - 1)
        found = [self._some(rows[s], numbers[s], at[s], order[place[s]]) for s in self._slices(y)]
        return np.concatenate([np.empty(0), *found])

    def _slices(self, y: NDArray[Any]) -> Iterator[slice]:
        step = max(1, _BYTES // (8 * len(self.numbers)))
        return (slice(a, a + step) for a in range(0, len(y), step))

    def _some(self, rows: Any, numbers: Any, at: Any, place: Any) -> Numbers:
        each = partial(pairwise_distances, metric=self.metric, **self.options)
        distances = called(each, rows, self.rows)
        every = np.arange(len(at))
        itself = self.numbers[place] == numbers
        distances[every[itself], place[itself]] = 0.0
        sums = np.add.reduceat(distances, self.starts, axis=1, dtype=np.float64)
        counts = np.diff(np.append(self.starts, len(self.numbers)))
        with np.errstate(divide="ignore", invalid="ignore"):
            own = sums[every, at] / (counts[at] - itself)
        means = sums / counts
        means[every, at] = np.inf
        return _silhouettes(own, means.min(axis=1))


# --- distances whose means are those to means ------------------------------------------------


@dataclass(frozen=True, eq=False)
class ClusterSums:
    """Sums of which the mean squared Euclidean, or cosine, distance to a cluster's rows follows.

    Source: T. Chan, G. Golub, R. LeVeque (1983), "Algorithms for computing the sample variance",
    of how blocks are joined.

    Parameters
    ----------
    labels : ndarray of shape (n_clusters,)
    counts : ndarray of float64 of shape (n_clusters,)
    means : ndarray of float64 of shape (n_clusters, n_features)
    squares : ndarray of float64 of shape (n_clusters,)
        Sums of the squared distances of rows from the mean.
    cosine : bool
    """

    labels: NDArray[Any]
    counts: Numbers
    means: Numbers
    squares: Numbers
    cosine: bool

    def silhouettes(self, rows: Any, y: NDArray[Any]) -> Numbers:
        """Silhouettes of rows, all of which have been counted."""
        at, every = np.searchsorted(self.labels, y), np.arange(len(y))
        rows = _prepared(rows, self.cosine)
        if self.cosine:
            means = 1.0 - np.asarray(rows @ self.means.T)
            itself = 1.0 - np.asarray(rows.multiply(rows).sum(axis=1) if sparse.issparse(rows)
                                      else (rows**2).sum(axis=1)).ravel()  # fmt: skip
        else:
            means = _squared_distances(rows, self.means) + self.squares / self.counts
            itself = np.zeros(len(y))
        count = self.counts[at]
        with np.errstate(divide="ignore", invalid="ignore"):
            own = np.maximum(count * means[every, at] - itself, 0.0) / (count - 1)
        means[every, at] = np.inf
        return _silhouettes(own, means.min(axis=1))


def _prepared(rows: Any, cosine: bool) -> Any:
    rows = rows.astype("float64", copy=False)
    return normalize(rows) if cosine else rows


def _squared_distances(rows: Any, means: Numbers) -> Numbers:
    if sparse.issparse(rows):
        found: Numbers = euclidean_distances(rows, means, squared=True)
        return found
    # From differences: distances of rows far from the origin keep their digits.
    each = [((rows - mean) ** 2).sum(axis=1) for mean in means]
    return np.stack(each, axis=1)


def sums_of(rows: Any, y: NDArray[Any], cosine: bool) -> ClusterSums:
    """Sums of some rows, of which there is at least one."""
    labels, at = unique_labels(y)
    rows = _prepared(rows, cosine)
    member = sparse.csr_array((np.ones(len(at)), (at, np.arange(len(at)))))
    counts = np.asarray(member.sum(axis=1), np.float64).ravel()
    sums = member @ rows
    means = (sums.toarray() if sparse.issparse(sums) else sums) / counts[:, None]
    if sparse.issparse(rows):
        squares = np.asarray(member @ rows.multiply(rows).sum(axis=1)).ravel()
        squares = np.maximum(squares - counts * (means**2).sum(axis=1), 0.0)
    else:
        squares = member @ ((rows - means[at]) ** 2).sum(axis=1)
    return ClusterSums(labels, counts, means, squares, cosine)


def joined_sums(parts: list[ClusterSums]) -> ClusterSums:
    """Sums of the rows of all parts."""
    return reduce(_both, parts)


def _both(one: ClusterSums, other: ClusterSums) -> ClusterSums:
    labels = join_labels([one.labels, other.labels])
    counts = np.zeros((2, len(labels)))
    means = np.zeros((2, len(labels), one.means.shape[1]))
    squares = np.zeros(len(labels))
    for k, part in enumerate((one, other)):
        at = np.searchsorted(labels, part.labels)
        counts[k, at], means[k, at] = part.counts, part.means
        squares[at] += part.squares
    count = counts.sum(axis=0)
    step = means[1] - means[0]
    share = counts[1] / count
    squares += (step**2).sum(axis=1) * counts[0] * share
    return ClusterSums(labels, count, means[0] + step * share[:, None], squares, one.cosine)
