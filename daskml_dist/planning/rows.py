"""The shape of a fit's rows, determined without computing lazy ones.

A plan must cost far less than the fit. Therefore lazy features are never computed. Sizes come from
metadata, or, if the rows are persisted, from a count on the workers; the classes come from a sample
of the labels.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.base import compute, is_dask_collection

from daskml_dist.data.collection import Collection
from daskml_dist.data.conversion import copy_to_host
from daskml_dist.data.reduce import count_rows
from daskml_dist.errors import InvalidDataError, InvalidParameterError

#: Labels that are sampled to count the classes: 16,384 for a plan, 512 for ``client="auto"``, which
#: is resolved before each fit. A rare class may be missed; this changes the predicted time a
#: little, but no result.
_SAMPLED_LABELS, _QUICK_LABELS = 1 << 14, 1 << 9
#: Bytes of the column index of a stored entry (scipy's int32).
_INDEX_BYTES = 4


@dataclass(frozen=True)
class RowsShape:
    """Shape of a fit's rows.

    Parameters
    ----------
    n_rows, n_features : int
    n_classes : int
        Number of classes; 0 for regression.
    dtype : str
        Dtype in which the features are trained.
    collection : Collection or None
        None: the rows of tiny fits, which are not made yet.
    persisted : bool
        Whether Dask rows are in the memory of workers.
    notes : tuple of str
        Assumptions of the plan.
    keys : tuple of float
        Numbers of users and items, for ratings.
    item_bytes : int or None
        Bytes of a row that has no features, such as a rating.
    entries : float or None
        Mean number of stored entries of a sparse row; None: the rows are dense.
    """

    n_rows: int
    n_features: int
    n_classes: int
    dtype: str
    collection: Collection | None = None
    persisted: bool = True
    notes: tuple[str, ...] = ()
    keys: tuple[float, ...] = ()
    item_bytes: int | None = None
    entries: float | None = None

    @property
    def row_entries(self) -> float:
        """Return the number of entries of a row that a fit reads."""
        return float(self.n_features) if self.entries is None else self.entries

    @property
    def kind(self) -> str:
        """Return where the rows are: "memory" or "dask"."""
        return "memory" if self.collection is None else self.collection.kind

    @property
    def n_parts(self) -> int:
        """Return the number of blocks of Dask rows."""
        return 1 if self.collection is None else len(self.collection.parts)

    @property
    def itemsize(self) -> int:
        """Return the bytes of an entry."""
        return int(np.dtype(self.dtype).itemsize)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the features."""
        if self.entries is not None:
            return int(self.n_rows * self.entries * (self.itemsize + _INDEX_BYTES))
        return self.n_rows * (self.item_bytes or self.n_features * self.itemsize)


def measure_shape(estimator: Any, X: Any, y: Any) -> RowsShape:
    """Return the shape of the rows that an estimator would be fitted to."""
    # A copy, since reading X sets attributes of the columns.
    collection = copy.copy(estimator)._make_collection(X, y, None, reset=True)
    return measure_collection_shape(estimator, collection)


def measure_collection_shape(estimator: Any, collection: Any, *, quick: bool = False) -> RowsShape:
    """Return the shape of the rows of a fit; `quick` reads few labels and counts no rows."""
    X, y, _ = collection.inputs
    entries = None
    if _is_sparse(X):
        if quick or is_dask_collection(X):
            raise _make_dense_error("Sparse blocks of Dask")
        entries = X.nnz / max(X.shape[0], 1)
    # Chunks of unknown length are counted on the workers if their data is already in memory;
    # otherwise a count would compute the graph.
    persisted, n_rows = _is_persisted(X) and _is_persisted(y), collection.n_rows
    if n_rows is None and persisted and not quick:
        n_rows = int(count_rows(collection).sum())
    if n_rows is None or collection.n_features is None:
        raise InvalidDataError(
            "A plan needs the number of rows, which Dask does not know here. Persist the "
            "collection of X and y (frame = frame.persist()), so that rows can be counted, or "
            "compute it: X.compute_chunk_sizes() of an array, X.to_dask_array(lengths=True) of "
            "a dataframe."
        )
    n_classes = 0
    notes: list[str] = []
    if estimator._classification:
        n_classes, notes = _count_labels(
            y, collection, persisted, _QUICK_LABELS if quick else _SAMPLED_LABELS
        )
    if collection.kind == "dask" and not persisted:
        notes.append(
            "X is lazy: the time to compute it comes on top, wherever the fit runs. Persist it "
            "to compute it once for several fits."
        )
    return RowsShape(
        n_rows, collection.n_features, n_classes, _find_trained_dtype(X), collection, persisted,
        tuple(notes), entries=entries,
    )  # fmt: skip


def check_dense(rows: RowsShape, kind: str) -> None:
    """Raise if rows are sparse, for a family that does not count the entries of sparse rows."""
    if rows.entries is not None:
        raise _make_dense_error(kind)


def _make_dense_error(rows_kind: str) -> InvalidParameterError:
    """Return the error for sparse rows without a cost model."""
    return InvalidParameterError(
        f"{rows_kind} cannot be planned: plans support dense rows, and sparse rows in memory for "
        "SGD, LogisticRegression, and Poisson, Gamma, Tweedie and Huber regression. Measure fits "
        "of a part of the rows instead."
    )


def _count_labels(
    y: Any, collection: Collection, persisted: bool, n_sampled: int
) -> tuple[int, list[str]]:
    """Return the number of classes found in a sample of the labels, and notes for the plan."""
    if collection.kind == "memory":
        labels = copy_to_host(y)
    elif persisted:
        # Three parts, distributed over the rows, since rows are often sorted by label.
        parts = collection.parts
        part_numbers = {0, len(parts) // 2, len(parts) - 1}
        labels = np.concatenate(
            [np.asarray(v) for v in compute(*(parts[i][1] for i in part_numbers))]
        )
    else:
        return 2, ["y is lazy: the plan assumes two classes."]
    labels = np.asarray(labels)
    return len(np.unique(labels[:: max(1, len(labels) // n_sampled)])), []


def _is_sparse(X: Any) -> bool:
    """Return whether rows, or the blocks of a Dask collection, are a sparse matrix."""
    return hasattr(getattr(X, "_meta", X), "tocsr")


def _is_persisted(value: Any) -> bool:
    """Return True if a Dask collection is in the workers' memory.

    Values in memory count as persisted.
    """
    if not is_dask_collection(value):
        return True
    # Without `distributed` in this process there are no futures, and loading it is slow.
    if "distributed" not in sys.modules:
        return False
    from distributed import futures_of

    # The graph of a collection persisted on a cluster has only futures.
    return len(futures_of(value)) >= len(value.__dask_keys__())


def _find_trained_dtype(X: Any) -> str:
    """Return the dtype that a fit trains in: float32 only if all columns have it."""
    dtypes = getattr(X, "dtypes", None)
    kinds = [getattr(X, "dtype", None)] if dtypes is None else list(dtypes)
    return "float32" if all(kind == np.float32 for kind in kinds) else "float64"
