"""Errors about one value of the rows, which tell the name of its column where there is one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dask.utils import is_dataframe_like
from numpy.typing import NDArray

from daskml_dist.data.conversion import check_columns
from daskml_dist.data.unique_names import check_unique_names
from daskml_dist.errors import InvalidDataError

__all__ = ["bad_value", "name_column", "naming_columns", "telling_columns"]


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
def telling_columns(X: Any) -> Iterator[None]:
    """Name the columns of a dataframe that scikit-learn could make no numbers of, and a remedy."""
    check_unique_names(X)
    try:
        yield
    except ValueError:
        if is_dataframe_like(X):
            check_columns(zip(X.columns, X.dtypes, strict=True))
        raise
