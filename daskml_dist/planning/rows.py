"""The shape of a fit's rows, told without reading them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.base import compute, is_dask_collection

from daskml_dist.data.collection import Collection
from daskml_dist.data.conversion import to_host
from daskml_dist.errors import InvalidDataError, InvalidParameterError

__all__ = ["RowsShape", "shape_of"]

#: Labels that are looked at.
_LABELS = 1 << 14


@dataclass(frozen=True)
class RowsShape:
    """Shape of a fit's rows.

    Parameters
    ----------
    n_rows, n_features : int
    n_classes : int
        0 for regression.
    dtype : str
        Of the features, as they are trained.
    collection : Collection
    persisted : bool
        Whether Dask rows are in the memory of workers.
    notes : tuple of str
        What was taken for granted.
    """

    n_rows: int
    n_features: int
    n_classes: int
    dtype: str
    collection: Collection
    persisted: bool
    notes: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the features."""
        return self.n_rows * self.n_features * np.dtype(self.dtype).itemsize


def shape_of(estimator: Any, X: Any, y: Any) -> RowsShape:
    """Shape of the rows that an estimator would be fitted to.

    Raises
    ------
    InvalidDataError
        Nobody knows how many rows there are.
    InvalidParameterError
        The rows are sparse.
    """
    collection = estimator._aligned(*estimator._taken(X, y, None))
    X, y, _ = collection.inputs
    if _is_sparse(X):
        raise InvalidParameterError(
            "Plans are made of dense rows: what a sparse one costs depends on where its entries "
            "are. Measure fits of a part of the rows instead."
        )
    if collection.n_rows is None or collection.n_features is None:
        raise InvalidDataError(
            "A plan needs the number of rows, which Dask does not know here. Tell it: "
            "X.compute_chunk_sizes() of an array, X.to_dask_array(lengths=True) of a dataframe."
        )
    persisted = _persisted(X) and _persisted(y)
    n_classes = 0
    notes: list[str] = []
    if estimator._classification:
        n_classes, notes = _classes(y, collection, persisted)
    if collection.kind == "dask" and not persisted:
        notes.append(
            "X is lazy: the time of its graph comes on top, wherever it is trained. Persist it to "
            "read it once for several fits."
        )
    return RowsShape(
        collection.n_rows, collection.n_features, n_classes, _dtype(X), collection, persisted,
        tuple(notes),
    )  # fmt: skip


def _classes(y: Any, collection: Collection, persisted: bool) -> tuple[int, list[str]]:
    """Number of labels, of some of them."""
    if collection.kind == "memory":
        labels = to_host(y)
    elif persisted:
        parts = collection.parts
        some = {0, len(parts) // 2, len(parts) - 1}
        labels = np.concatenate([np.asarray(v) for v in compute(*(parts[i][1] for i in some))])
    else:
        return 2, ["y is lazy: two classes are taken for granted."]
    labels = np.asarray(labels)
    return len(np.unique(labels[:: max(1, len(labels) // _LABELS)])), []


def _is_sparse(X: Any) -> bool:
    return hasattr(getattr(X, "_meta", X), "tocsr")


def _persisted(value: Any) -> bool:
    """Whether a Dask collection is in the memory of workers; what is no collection is at hand."""
    if not is_dask_collection(value):
        return True
    if "distributed" not in sys.modules:
        return False
    from distributed import futures_of

    # Persisted on a cluster, a graph is nothing but its futures.
    return len(futures_of(value)) >= len(value.__dask_keys__())


def _dtype(X: Any) -> str:
    dtypes = getattr(X, "dtypes", None)
    kinds = [getattr(X, "dtype", None)] if dtypes is None else list(dtypes)
    return "float32" if all(kind == np.float32 for kind in kinds) else "float64"
