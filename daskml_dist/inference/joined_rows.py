"""Rows of requests, made what a predictor takes; by a server, and by the workers that help it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import RequestError

__all__ = ["Rows", "joined", "n_rows_of", "told_dtype"]

#: Rows as they come: a matrix, or columns by the names of the features that the model reads, in its
#: order.
Rows = NDArray[Any] | dict[str, NDArray[Any]]


def n_rows_of(rows: Rows) -> int:
    """Number of rows that there are."""
    return len(next(iter(rows.values())) if isinstance(rows, dict) else rows)


def told_dtype(predictor: Any, at: int) -> str | None:
    """The dtype that a feature had in the fit, as far as it is known."""
    dtypes = predictor.dtypes
    if not dtypes:
        return None
    return str(dtypes[at if len(dtypes) > 1 else 0])


def joined(pieces: Sequence[Rows], predictor: Any) -> Any:
    """Rows of several requests, as what the predictor takes.

    Where the fit knew names, that is a frame: pipelines choose columns by them, but for those that
    a predictor makes bare arithmetic of. A model fitted to
    names takes a matrix where pandas is not installed.
    """
    first = pieces[0]
    if isinstance(first, dict):
        columns = {
            name: _concatenated([piece[name] for piece in pieces if isinstance(piece, dict)])
            for name in first
        }
        return _frame(columns, predictor)
    rows = _concatenated([piece for piece in pieces if not isinstance(piece, dict)])
    if predictor.names is None or rows.ndim != 2 or getattr(predictor, "bare", False):
        return rows
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows, columns=predictor.names)


def _concatenated(pieces: list[NDArray[Any]]) -> NDArray[Any]:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _frame(columns: dict[str, NDArray[Any]], predictor: Any) -> Any:
    try:
        import pandas
    except ImportError:
        raise RequestError(
            "This server has no pandas, which rows of named columns need: send one matrix, or "
            "install daskml-dist[dataframe] there.",
            422,
        ) from None
    categories = {
        name: "category"
        for name in columns
        if told_dtype(predictor, predictor.names.index(name)) == "category"
    }
    frame = pandas.DataFrame(columns)
    return frame.astype(categories) if categories else frame
