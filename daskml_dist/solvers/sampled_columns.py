"""Columns of a sample of rows, each trainer's own range of them, of dense rows or sparse ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends.csr_rows import CSRRows
from daskml_dist.solvers.own_rows import OwnRows

__all__ = ["dealt_columns"]

Array = NDArray[Any]


def dealt_columns(
    rows: OwnRows, parts: Sequence[Any], ranges: Sequence[slice]
) -> Callable[[int, Array], Array]:
    """Give each trainer its range of the columns of all trainers' sampled rows.

    Parameters
    ----------
    rows : OwnRows
    parts : sequence of ndarray or CSRRows of shape (n, n_features)
        The own rows.
    ranges : sequence of slice
        Of the columns of each trainer.

    Returns
    -------
    callable
        The values of a column of the own range, of chosen rows: of all trainers' behind each other.
        Sparse ones are dense one column at a time.
    """
    if rows.largest(np.array([float(any(isinstance(X, CSRRows) for X in parts))]))[0]:
        return _sparse_columns(rows, parts, ranges)
    X = np.concatenate(parts or [np.empty((0, ranges[-1].stop), np.float32)])
    own = np.concatenate(rows.deal([np.ascontiguousarray(X[:, at]) for at in ranges]))
    return lambda j, at: own[at, j]


def _sparse_columns(
    rows: OwnRows, parts: Sequence[Any], ranges: Sequence[slice]
) -> Callable[[int, Array], Array]:
    n_features = ranges[-1].stop
    blocks = [sparse.csr_array((0, n_features)), *map(_matrix, parts)]
    X = sparse.csc_array(sparse.vstack(blocks))
    given = [X[:, at] for at in ranges]
    ends = rows.deal([part.indptr.astype(np.int64) for part in given])
    indices = rows.deal([part.indices.astype(np.int64) for part in given])
    values = rows.deal([part.data for part in given])
    counts = [int(n) for (n,) in rows.deal([np.array([X.shape[0]])] * len(ranges))]
    starts = np.append(0, np.cumsum(counts))

    def column(j: int, at: Array) -> Array:
        found = np.zeros(starts[-1], np.result_type(*values))
        for (first, _), end, index, value in zip(
            pairwise(starts), ends, indices, values, strict=True
        ):
            stored = slice(end[j], end[j + 1])
            found[first + index[stored]] = value[stored]
        return np.asarray(found[at])

    return column


def _matrix(X: Any) -> Any:
    return sparse.csr_array(X.X[X.rows] if isinstance(X, CSRRows) else X)
