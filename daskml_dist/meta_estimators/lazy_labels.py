"""Labels of Dask collections: which there are, and their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from dask.utils import is_series_like
from numpy.typing import NDArray

from daskml_dist.data.collection import as_collection
from daskml_dist.data.conversion import as_column as column_of
from daskml_dist.data.conversion import check_no_missing
from daskml_dist.data.lazy import is_dask, is_dask_frame
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.errors import InvalidDataError

__all__ = ["check_indicators", "counted_labels", "encoded", "labels_of"]


def labels_of(y: Any) -> NDArray[Any]:
    """Sorted labels; one pass over those of a Dask collection."""
    return counted_labels(y)[0]


def counted_labels(y: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Labels as of :func:`labels_of`, and how many rows have each."""
    if not is_dask(y):
        labels, counts = np.unique(np.asarray(y), return_counts=True)
        return _checked_labels(labels), counts
    table = y.to_frame("y") if is_series_like(y) else y
    if getattr(table, "ndim", 2) == 1:
        table = table[:, np.newaxis]
    columns = as_collection(table, y, numeric=False, classification=True)
    labels, counts = reduce_parts(columns, _labels_of_block, _all_labels)
    return _checked_labels(labels), counts


def _labels_of_block(index: int, X: Any, y: Any, weight: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    column = column_of(y, name="y", index=index)
    check_no_missing(column, "y", index)
    labels, counts = np.unique(column, return_counts=True)
    return labels, counts


def _all_labels(
    parts: list[tuple[NDArray[Any], NDArray[Any]]],
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    filled = [part for part in parts if len(part[0])] or parts[:1]
    labels, at = np.unique(np.concatenate([own for own, _ in filled]), return_inverse=True)
    counts = np.bincount(at, np.concatenate([n for _, n in filled]), len(labels))
    return labels, counts.astype(np.int64)


def _checked_labels(labels: NDArray[Any]) -> NDArray[Any]:
    if labels.dtype.kind == "f":
        if not np.isfinite(labels).all():
            raise InvalidDataError("Input y contains NaN or infinity. Drop these rows.")
        if (labels % 1).any():
            raise InvalidDataError(
                "Unknown label type: continuous. Use a regressor for a continuous target."
            )
    return labels


def check_indicators(y: Any) -> int:
    """Check that columns of y are 0 and 1, one for each label that rows may have; how many."""
    if is_dask(y):
        values = reduce_parts(as_collection(y, None, numeric=False), _values_of_block, _all_values)
    else:
        values = np.unique(np.asarray(y))
    if strange := sorted(set(values.tolist()) - {0, 1}):
        raise InvalidDataError(
            f"y has {y.shape[1]} columns, and holds {strange[:5]}. Of several labels a row, give a "
            "column of 0 and 1 for each; of one label, one column."
        )
    return int(y.shape[1])


def _values_of_block(index: int, X: Any, y: Any, weight: Any) -> NDArray[Any]:
    return np.unique(np.asarray(X))


def _all_values(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return np.unique(np.concatenate(parts))


def encoded(y: Any, classes: NDArray[Any]) -> Any:
    """Numbers of labels among the sorted `classes`; lazy where y is."""
    if is_dask_frame(y):
        column = y if is_series_like(y) else y[y.columns[0]]
        return column.map_partitions(_codes_of_series, classes, meta=(column.name, np.int64))
    if is_dask(y):
        return y.map_blocks(_codes, classes, dtype=np.int64, meta=np.empty(0, np.int64))
    return _codes(np.asarray(y), classes)


def _codes(labels: Any, classes: NDArray[Any]) -> NDArray[np.int64]:
    return np.searchsorted(classes, np.asarray(labels)).astype(np.int64)


def _codes_of_series(labels: Any, classes: NDArray[Any]) -> Any:
    import pandas

    return pandas.Series(_codes(labels, classes), labels.index, name=labels.name)
