"""Errors about one value of the rows, which tell the name of its column where there is one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray

from daskml_dist.data.conversion import check_2d, check_columns, check_dtype, numbers_of_objects
from daskml_dist.data.not_rows import check_holds_rows
from daskml_dist.data.unique_names import check_unique_names
from daskml_dist.errors import DaskMLDistError, InvalidDataError

__all__ = [
    "bad_value",
    "check_no_times",
    "explain_rows",
    "holds_times",
    "name_column",
    "naming_columns",
    "telling_columns",
]


def bad_value(message: str, column: int) -> InvalidDataError:
    """An error about a value of a column; the rows are arrays here, whose columns have no names.

    Parameters
    ----------
    message : str
        With ``{column}`` where the column is to be told.
    column : int
    """
    error = InvalidDataError(message.format(column=f"column {column}"))
    error.column = column  # type: ignore[attr-defined]
    return error


def name_column(error: BaseException | None, names: Sequence[Any] | NDArray[Any] | None) -> None:
    """Put a column's name into the message of an error about one of its values.

    Parameters
    ----------
    error : BaseException or None
        Any other than that of `bad_value` stays as it is.
    names : sequence of str, or None
        Of all columns.
    """
    column = getattr(error, "column", None)
    if not isinstance(error, InvalidDataError) or column is None or names is None:
        return
    del error.column  # type: ignore[attr-defined]
    if column < len(names):
        number, named = f"column {column}", f"column {names[column]!r}"
        error.args = (str(error).replace(number, f"{named}, number {column}", 1),)


@contextmanager
def naming_columns(X: Any) -> Iterator[None]:
    """Name the column in errors about a value of a dataframe."""
    try:
        yield
    except InvalidDataError as error:
        columns = getattr(X, "columns", None)
        name_column(error, None if columns is None else list(columns))
        raise


@contextmanager
def telling_columns(X: Any, numeric: bool = True, rows: bool = True) -> Iterator[None]:
    """Tell what is wrong with rows that a transformer of scikit-learn could not take.

    Parameters
    ----------
    X : rows in memory
    numeric : bool, default=True
        Whether the transformer takes numbers alone.
    rows : bool, default=True
        Whether it takes rows of two dimensions, and no texts.
    """
    check_unique_names(X)
    if numeric:
        check_no_times(X)
    try:
        yield
    except (ValueError, TypeError) as error:
        # scikit-learn's errors may come translated, out of a method that it calls in turn.
        if rows and not (isinstance(error, DaskMLDistError) and error.__cause__ is None):
            explain_rows(X, numeric)
        raise


def check_no_times(X: Any) -> None:
    """Check that rows in memory hold no dates or spans of time.

    scikit-learn makes numbers of some, in whatever unit they are stored.

    Raises
    ------
    InvalidDataError
    """
    if is_dataframe_like(X):
        if holds_times(X):
            check_columns(zip(X.columns, X.dtypes, strict=True))
    elif holds_times(X):
        check_dtype(X.dtype, "X")


def holds_times(values: Any) -> bool:
    """Return whether values in memory, or a column of a frame, have a dtype of dates or spans."""
    dtypes = values.dtypes if is_dataframe_like(values) else [getattr(values, "dtype", None)]
    return any(getattr(dtype, "kind", "") in ("m", "M") for dtype in dtypes)


def explain_rows(X: Any, numeric: bool) -> None:
    """Raise the package's own error of rows in memory that are refused, where it has one.

    Raises
    ------
    InvalidDataError
        They are no rows, have not two dimensions, or, if they must be `numeric`, hold none.
    """
    check_holds_rows(X)
    if is_dataframe_like(X):
        if numeric:
            X = numbers_of_objects(X)
            check_columns(zip(X.columns, X.dtypes, strict=True))
    elif not hasattr(X, "tocsr"):
        try:
            rows = X if hasattr(X, "ndim") else np.asarray(X)
        except ValueError:  # of unequal length, which scikit-learn tells
            return
        check_2d(rows, given=X)
