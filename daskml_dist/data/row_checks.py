"""Checks of rows by what metadata tells of them: kind, dtype and shape."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import dask.array as da
import numpy as np
from dask.utils import is_dataframe_like, is_series_like
from numpy.typing import NDArray

from daskml_dist.data.conversion import (
    check_2d,
    check_columns,
    check_dtype,
    device_of,
    numbers_of_objects,
    where,
)
from daskml_dist.data.foreign import convert_foreign
from daskml_dist.data.lazy import is_dask, is_dask_frame, join_delayed
from daskml_dist.data.not_rows import check_holds_rows
from daskml_dist.errors import InvalidDataError, InvalidTypeError

__all__ = [
    "RowShape",
    "check_row_shape",
    "check_rows",
    "check_told_shape",
    "check_weight_shape",
    "row_shape",
    "unsupported",
]

#: Shape of a row: ``(n_features,)``, or more dimensions of tensors; None where it is not known.
RowShape = tuple[int, ...] | None


def check_rows(
    X: Any, *, numeric: bool = True, tensors: bool = False, any_shape: bool = False
) -> Any:
    """Check what metadata tells of X.

    Parameters
    ----------
    X : as in `as_collection`
    numeric : bool, default=True
        Whether it must hold numbers.
    tensors : bool, default=False
        Whether rows may be arrays of any shape.
    any_shape : bool, default=False
        Whether X may also have one dimension: an array of values, or a series.

    Returns
    -------
    dask Array, dask DataFrame, pandas.DataFrame, CSR matrix or ndarray
        `X` itself, or what an array-like or another sparse format holds.

    Raises
    ------
    InvalidTypeError
        `X` is None, the name of a file, or an iterator.
    InvalidDataError
        `X` is no such object, is not two-dimensional, or has columns that are not numbers.
    """
    X = convert_foreign(X)
    check_holds_rows(X)
    X = join_delayed(X, 2)
    if is_dask(X) and not isinstance(X, da.Array) and not is_dask_frame(X):
        raise unsupported(X, "X")
    if is_dataframe_like(X):
        if numeric:
            X = X if is_dask(X) else numbers_of_objects(X)
            check_columns(zip(X.columns, X.dtypes, strict=True))
        return X
    if any_shape and is_series_like(X):
        return X
    given = X
    if hasattr(X, "tocsr"):
        X = X.tocsr()  # the one format that is cut by rows
    elif not is_dask(X) and device_of(X) == "cpu":
        X = _as_array(X)
    if not (any_shape and X.ndim):
        check_2d(X, tensors=tensors, given=given)
    if numeric:
        check_dtype(X.dtype, "X")
    return X


def row_shape(X: Any) -> RowShape:
    """Shape of a row of what `check_rows` returned; None where Dask does not know."""
    shape = (len(X.columns),) if is_dataframe_like(X) else X.shape[1:]
    return None if np.isnan(shape).any() else tuple(map(int, shape))


def check_row_shape(
    found: RowShape, expected: RowShape, name: str = "estimator", index: int | None = None
) -> None:
    """Check that rows are of the shape of those of a fit, where both are known.

    Raises
    ------
    InvalidDataError
        They are not.
    """
    if found is None or expected is None or found == expected:
        return
    if len(found) == len(expected) == 1:
        raise InvalidDataError(
            f"{where(index)}X has {found[0]} features, but {name} is expecting {expected[0]} "
            "features as input. Select the columns that it was fitted on."
        )
    raise InvalidDataError(
        f"{where(index)}X has rows of shape {found}, but {name} is expecting rows of shape "
        f"{expected}. Bring them to the shape that it was fitted on: X.reshape(-1, "
        f"{', '.join(map(str, expected))}), if no more has changed."
    )


def check_told_shape(found: tuple[int, ...], told: RowShape, index: int | None = None) -> None:
    """Check that a block has the columns that its collection tells, by which all else goes.

    Raises
    ------
    InvalidDataError
        It has not.
    """
    if told is not None and found != told:
        raise InvalidDataError(
            f"{where(index)}X has rows of shape {found}, and its collection says {told}. Tell Dask "
            f"what a function makes of its blocks, such as "
            f"X.map_blocks(f, chunks=(X.chunks[0], {found})), or let it keep their columns."
        )


def unsupported(value: Any, name: str) -> InvalidDataError:
    """Error of an input whose rows nobody knows."""
    return InvalidDataError(
        f"{name} is a {type(value).__module__}.{type(value).__name__}, which has no rows that Dask "
        "knows of. Pass a dask Array or DataFrame, for example dask.array.from_delayed(...), "
        "or bag.to_dataframe()."
    )


def _as_array(X: Any) -> NDArray[Any]:
    try:
        return np.asarray(X)
    except ValueError as error:
        raise InvalidDataError(f"X is not an array: {error}. Pass rows of equal length.") from error


def check_weight_shape(weights: Any) -> None:
    """Check that sample weights, where they are no single number, have one dimension.

    Raises
    ------
    InvalidDataError, InvalidTypeError
    """
    ndim = getattr(weights, "ndim", None)
    if ndim is None:
        with suppress(ValueError):  # rows of unequal length, which whoever reads them tells
            ndim = np.asarray(weights).ndim
    if ndim == 0:
        shown = weights.astype(np.float64) if weights.dtype.kind in "biuf" else weights
        raise InvalidTypeError(
            "Input should have at least 1 dimension i.e. satisfy `len(x.shape) > 0`, got scalar "
            f"`{shown!r}` instead. Pass sample_weight as a number, or one for each row."
        )
    if ndim not in (None, 1):
        raise InvalidDataError(
            f"Sample weights must be 1D array or scalar, got {ndim}D array. Expected either a "
            "scalar value or a 1D array of length n_rows: pass a number, or one column such as "
            "sample_weight[:, 0]."
        )
