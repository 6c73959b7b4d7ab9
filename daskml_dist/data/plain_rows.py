"""Fast conversion (a microsecond or two) of a few rows in memory to one plain array."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.conversion import RowShape

#: Up to this many rows, checks and copies rather than the model take most of the time.
MAX_FEW_ROWS = 256
#: Dtypes that models accept without conversion.
FLOAT_DTYPES = (np.dtype(np.float64), np.dtype(np.float32))


def convert_few_rows(X: Any, row_shape: RowShape) -> NDArray[Any] | None:
    """Return a few rows as one array; None if there are many, or other checks are needed."""
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
    # Correct except for its memory layout: one small copy is enough.
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
    """Return whether X is a small pandas.DataFrame, and not of a derived class."""
    pandas = sys.modules.get("pandas")  # not imported for this check
    return pandas is not None and type(X) is pandas.DataFrame and len(X) <= MAX_FEW_ROWS


def extract_frame_floats(frame: Any) -> NDArray[Any] | None:
    """Return the values of a frame of only float64 or only float32 columns; else None.

    Other mixtures get a different dtype in pandas than in a fit.
    """
    values: NDArray[Any] = frame.to_numpy()
    if values.dtype == np.float64:
        # If both are views of one array, its dtype is that of all columns.
        if np.may_share_memory(values, frame.to_numpy()):
            return values
        return values if all(isinstance(d, np.dtype) for d in frame.dtypes) else None
    if values.dtype == np.float32 and all(d == np.float32 for d in frame.dtypes):
        return values
    return None


def extract_frame_words(frame: Any) -> NDArray[Any] | None:
    """Return the values of a frame of only objects or strings; None for any other frame."""
    if all(str(dtype) in ("object", "str") for dtype in set(frame.dtypes)):
        values: NDArray[Any] = frame.to_numpy()
        return values
    return None


def _convert_lists(rows: list[Any]) -> NDArray[Any] | None:
    """Return lists of floats as an array; None for anything else."""
    if not (0 < len(rows) <= MAX_FEW_ROWS and type(rows[0]) is list and rows[0]):
        return None
    # Integers or words may be among them: then use the general conversion.
    if type(rows[0][0]) is not float:
        return None
    try:
        return np.asarray(rows)
    except ValueError:
        return None


@dataclass(frozen=True)
class RowsPlaceholder:
    """Placeholder for rows in memory whose dtype is not yet known, without column names.

    A method that maps a function over rows then returns this function instead of results (see
    ``map_rows``).
    """

    dtype: np.dtype[Any]
