"""Columns as arrays: labels, numbers, scores and weights of one block, checked."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.blocks import find_first_nonfinite
from daskml_dist.data.column_statistics import count_whole_numbers
from daskml_dist.data.conversion import (
    as_column,
    as_rows,
    check_no_missing,
    check_not_complex,
    convert_to_numbers,
    describe_block,
)
from daskml_dist.data.row_checks import check_weight_shape
from daskml_dist.errors import InvalidDataError

__all__ = [
    "MissingValues",
    "check_finite",
    "check_not_negative",
    "check_one_kind",
    "join_labels",
    "read_labels",
    "read_numbers",
    "read_scores",
    "read_targets",
    "read_weights",
    "unique_labels",
]


class MissingValues(InvalidDataError):
    """A column holds NaN or infinity, of which no metric has a value."""


def read_labels(values: Any, name: str, index: int | None) -> NDArray[Any]:
    """Read a column of labels."""
    labels = as_column(values, name=name, index=index)
    _check_no_missing(labels, name, index)
    if labels.dtype.kind == "O":
        return labels
    check_not_complex(labels.dtype, name, index)
    if labels.dtype.kind == "f":
        check_finite(labels, name, index)
        if (labels != np.trunc(labels)).any():
            raise InvalidDataError(
                f"{describe_block(index)}{name} holds continuous values, not labels. Pass labels, "
                "for example what predict() returns instead of predict_proba()."
            )
    return labels


def read_numbers(values: Any, name: str, index: int | None) -> NDArray[Any]:
    """Read a column of finite numbers; parameters and errors as `read_labels`."""
    column = as_column(values, name=name, index=index)
    _check_no_missing(column, name, index)
    return _finite_numbers(column, name, index)


def read_targets(values: Any, name: str, index: int | None) -> NDArray[Any]:
    """Read one or more columns of finite numbers; parameters and errors as `read_labels`."""
    shape = np.shape(values)
    if len(shape) != 2 or shape[1] == 1:
        return read_numbers(values, name, index)
    columns = as_column(values, name=name, index=index, several=True)
    return _finite_numbers(columns, name, index)


def read_scores(values: Any, name: str, index: int | None) -> NDArray[Any]:
    """Read scores or probabilities, of one column or one a class."""
    shape = np.shape(values)
    if len(shape) != 2 or shape[1] == 1:
        return read_numbers(values, name, index)
    scores: NDArray[Any] = as_rows(values, index=index)
    if not isinstance(scores, np.ndarray):
        raise InvalidDataError(
            f"{describe_block(index)}{name} is sparse. Pass {name}.toarray(), or of a Dask Array "
            f"{name}.map_blocks(lambda block: block.toarray())."
        )
    check_finite(scores, name, index)
    return scores


def read_weights(values: Any, n_rows: int, index: int | None) -> NDArray[Any] | None:
    """Read sample weights."""
    if values is None:
        return None
    if isinstance(values, Real):
        values = np.full(n_rows, values)
    check_weight_shape(values)
    weights = as_column(values, name="sample_weight", index=index)
    _check_no_missing(weights, "sample_weight", index)
    # Whole weights stay so, because a confusion matrix has their dtype.
    dtype = "int64" if weights.dtype.kind in "biu" else "float64"
    weights = convert_to_numbers(weights, dtype, "sample_weight", index)
    check_finite(weights, "sample_weight", index)
    return weights


def check_not_negative(weights: NDArray[Any]) -> None:
    """Check that no weight is negative."""
    if (weights < 0).any():
        raise InvalidDataError(
            "Negative values in sample_weight, which this metric of a Dask collection has no "
            "meaning for. Make them zero or more."
        )


# --- labels ----------------------------------------------------------------------------------


def unique_labels(labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Sorted labels, and the position of each row's label among them."""
    if (counted := count_whole_numbers(labels)) is not None:
        return counted
    try:
        found, at = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise InvalidDataError(
            f"The labels are of different types ({error}). Make them one type, for example "
            "y_true.astype(str)."
        ) from error
    return found, at


def join_labels(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Sorted union of labels."""
    parts = [part for part in parts if len(part)]
    check_one_kind(*parts)
    return unique_labels(np.concatenate(parts))[0]


def check_one_kind(*parts: NDArray[Any]) -> None:
    """Check that the labels of all parts are strings, or of none."""
    # NumPy would turn numbers next to strings into strings, which then match by chance.
    if len({_is_text(part) for part in parts}) > 1:
        raise InvalidDataError(
            "Mix of label input types (string and number). Make y_true and the predictions one "
            "type, for example with .astype(str)."
        )


def _is_text(labels: NDArray[Any]) -> bool:
    return labels.dtype.kind in "UT" or (labels.dtype.kind == "O" and isinstance(labels[0], str))


# --- checks ----------------------------------------------------------------------------------


def _finite_numbers(values: NDArray[Any], name: str, index: int | None) -> NDArray[Any]:
    dtype = "float32" if values.dtype == np.float32 else "float64"
    numbers = convert_to_numbers(values, dtype, name, index)
    check_finite(numbers, name, index)
    return numbers


def _check_no_missing(values: Any, name: str, index: int | None) -> None:
    try:
        check_no_missing(values, name, index)
    except InvalidDataError as error:
        raise MissingValues(str(error)) from error


def check_finite(values: NDArray[Any], name: str, index: int | None) -> None:
    """Check that no number is NaN or infinite; parameters as of :func:`read_labels`."""
    position = find_first_nonfinite(values)
    if position is not None:
        row = position // math.prod(values.shape[1:])
        raise _unusable(row, "NaN or infinity", name, index)


def _unusable(row: int, what: str, name: str, index: int | None) -> MissingValues:
    return MissingValues(
        f"{describe_block(index)}Input {name} contains {what} (row {row} of the block). Drop such "
        "rows from y_true, the predictions and sample_weight."
    )
