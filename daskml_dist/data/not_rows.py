"""Objects that are no rows, told from those that may be."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Set
from numbers import Number
from types import ModuleType
from typing import Any

from dask.base import is_dask_collection
from dask.delayed import Delayed

from daskml_dist.data.task_graphs import is_future
from daskml_dist.errors import InvalidTypeError

__all__ = ["check_holds_rows", "check_holds_values"]


def check_holds_rows(X: Any, name: str = "X") -> None:
    """Check that an object is not one of those that are often passed for rows by mistake.

    Raises
    ------
    InvalidTypeError
        It is None, the name of a file, something that can be read once only, several collections,
        or no values at all.
    """
    if X is None:
        raise InvalidTypeError(
            f"{name} is None. Pass rows: an array, a dataframe, a sparse matrix, or a Dask "
            "collection of them; does the function that made it return something?"
        )
    if isinstance(X, str | os.PathLike):
        raise InvalidTypeError(
            f"{name}={os.fspath(X)!r} is a text, and no rows. Read the files first, such as "
            f"{name} = dask.dataframe.read_parquet({os.fspath(X)!r})."
        )
    check_holds_values(X, name, single=True)  # whose dimensions are looked at later
    if isinstance(X, tuple | list) and X and _several(X):
        raise InvalidTypeError(
            f"{name} is a {type(X).__name__} of {len(X)} collections. Where they are X and y, pass "
            "these apart, fit(X, y); where all are rows, join them: dask.array.concatenate(...) "
            "or dask.dataframe.concat(...)."
        )


def check_holds_values(values: Any, name: str, *, single: bool = False) -> None:
    """Check that an object has a value for each row, and can be read more than once.

    Parameters
    ----------
    values : object
    name : str
        Named in errors.
    single : bool, default=False
        Whether one number may stand for those of all rows.

    Raises
    ------
    InvalidTypeError
    """
    kind = type(values).__name__
    if isinstance(values, Iterator):
        raise InvalidTypeError(
            f"{name} is a {kind}, which can be read once; a fit reads its rows several "
            f"times. Make an array of it, {name} = numpy.array(list({name})), or a Dask collection "
            "whose blocks are read by tasks (dask.delayed, dask.dataframe.from_map)."
        )
    if is_future(values) or _are_futures(values):
        one = "the future" if is_future(values) else "a future"
        raise InvalidTypeError(
            f"{name} is of futures, whose values Dask has and nobody here. Make a collection of "
            f"them: dask.delayed({one}) is a block of rows, a list of such is {name}, and so is "
            "dask.dataframe.from_delayed(...)."
        )
    if isinstance(values, Mapping) and not hasattr(values, "dtype"):
        is_row = all(isinstance(value, Number | str) for value in values.values())
        held = f"[{name}]" if is_row and values else name  # of columns, or of one row
        raise InvalidTypeError(
            f"{name} is a {kind}. Make a frame of it: {name} = pandas.DataFrame({held})."
        )
    if isinstance(values, Set):
        raise InvalidTypeError(
            f"{name} is a {kind}, which has no order. Pass a list or an array instead."
        )
    if not single and isinstance(values, Number):
        raise InvalidTypeError(
            f"{name} should be a 1d array, got an array of shape () instead: {name}={values!r} is "
            "a single number. Pass a value for each row: an array, or a Dask collection."
        )
    if isinstance(values, type | ModuleType) or _is_function(values):
        told = getattr(values, "__name__", kind)
        raise InvalidTypeError(
            f"{name} is {told}, a {kind}, and has no values. Pass what it returns or holds: an "
            "array, a dataframe or a Dask collection."
        )


def _several(X: tuple[Any, ...] | list[Any]) -> bool:
    """Whether all are collections or tables of their own, and none a row or a block."""
    return all(
        not isinstance(one, Delayed) and (is_dask_collection(one) or getattr(one, "ndim", 0) == 2)
        for one in X
    )


def _are_futures(values: Any) -> bool:
    return isinstance(values, tuple | list) and bool(values) and all(map(is_future, values))


def _is_function(values: Any) -> bool:
    return callable(values) and not hasattr(values, "shape") and not is_dask_collection(values)
