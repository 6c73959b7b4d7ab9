"""Few rows in memory, of whatever kind, as one plain array: found out in a microsecond or two."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.conversion import RowShape

#: Rows up to which they are few: for them checks and copies, not the model, take most of the time.
MAX_FEW_ROWS = 256
#: Dtypes that models take as they are.
FLOAT_DTYPES = (np.dtype(np.float64), np.dtype(np.float32))


def convert_few_rows(X: Any, row_shape: RowShape) -> NDArray[Any] | None:
    """Return few rows as one array; None where they are many, or need another look."""
    # The cheapest checks first: this runs for every single-row request.
    kind = type(X)
    if kind is not np.ndarray:
        if kind is list:
            X = _convert_lists(X)
        else:
            X = extract_frame_floats(X) if is_small_frame(X) else None
        if X is None:
            return None
    if X.dtype not in FLOAT_DTYPES:
        return None
    if has_few_rows(X, row_shape):
        rows: NDArray[Any] = X
        return rows
    # Right in all but its layout: one small copy settles that.
    if X.ndim == 2 and X.shape[1:] == row_shape and 0 < len(X) <= MAX_FEW_ROWS:
        return np.array(X, order="C")
    return None


def has_few_rows(X: NDArray[Any], row_shape: RowShape) -> bool:
    """Return whether rows are few, of the fit's shape, contiguous and aligned."""
    flags = X.flags
    return (
        X.ndim == 2
        and X.shape[1:] == row_shape
        and 0 < len(X) <= MAX_FEW_ROWS
        and flags.c_contiguous
        and flags.aligned
    )


def is_small_frame(X: Any) -> bool:
    """Return whether X is a pandas.DataFrame of few rows, and of no class derived from it."""
    pandas = sys.modules.get("pandas")  # which is not loaded for this
    return pandas is not None and type(X) is pandas.DataFrame and len(X) <= MAX_FEW_ROWS


def extract_frame_floats(frame: Any) -> NDArray[Any] | None:
    """Return the values of a frame of float64 columns, or of float32 ones alone; else None.

    Other mixtures have other dtypes in pandas than in a fit.
    """
    values: NDArray[Any] = frame.to_numpy()
    if values.dtype == np.float64:
        # Columns that lie in one array, of which both are views, are of its dtype.
        if np.may_share_memory(values, frame.to_numpy()):
            return values
        return values if all(isinstance(d, np.dtype) for d in frame.dtypes) else None
    if values.dtype == np.float32 and all(d == np.float32 for d in frame.dtypes):
        return values
    return None


def extract_frame_words(frame: Any) -> NDArray[Any] | None:
    """Return the values of a frame of objects or strings alone; None of any other."""
    if all(str(dtype) in ("object", "str") for dtype in set(frame.dtypes)):
        values: NDArray[Any] = frame.to_numpy()
        return values
    return None


def _convert_lists(rows: list[Any]) -> NDArray[Any] | None:
    """Return an array of lists of floats; None for anything else."""
    if not (0 < len(rows) <= MAX_FEW_ROWS and type(rows[0]) is list and rows[0]):
        return None
    # Whole numbers or words may be among them: these take the longer way.
    if type(rows[0][0]) is not float:
        return None
    try:
        return np.asarray(rows)
    except ValueError:
        return None


@dataclass(frozen=True)
class RowsPlaceholder:
    """Rows in memory of a dtype that nobody has yet, without names.

    A method of rows that maps a function over them returns this function instead of answers (see
    ``map_rows``).
    """

    dtype: np.dtype[Any]
