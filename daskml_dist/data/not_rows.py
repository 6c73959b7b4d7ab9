"""Objects that are no rows, told from those that may be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from daskml_dist.errors import InvalidTypeError

__all__ = ["check_holds_rows"]


def check_holds_rows(X: Any, name: str = "X") -> None:
    """Check that an object is not one of those that are often passed for rows by mistake.

    Raises
    ------
    InvalidTypeError
        It is None, the name of a file, or something that can be read once only.
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
    if isinstance(X, Iterator):
        raise InvalidTypeError(
            f"{name} is a {type(X).__name__}, which can be read once; a fit reads its rows several "
            f"times. Make an array of it, {name} = numpy.array(list({name})), or a Dask collection "
            "whose blocks are read by tasks (dask.delayed, dask.dataframe.from_map)."
        )
