"""Missing values among objects and dates, where NumPy has no NaN to look for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.conversion import where
from daskml_dist.errors import InvalidDataError

__all__ = ["check_no_missing"]


def check_no_missing(values: NDArray[Any], name: str, index: int | None = None) -> None:
    """Check that objects or dates hold no None, NaN, NaT or pandas.NA; numbers are let through.

    Raises
    ------
    InvalidDataError
        Names the first row that does.
    """
    if values.dtype.kind in "mM":
        missing = np.isnat(values)
    elif values.dtype.kind == "O":
        flat = values.ravel()
        missing = np.fromiter(map(_is_missing, flat), dtype=bool, count=len(flat))
        missing = missing.reshape(values.shape)
    else:
        return
    if missing.any():
        row = int(np.argwhere(missing)[0, 0])
        whose = "" if index is None else " of the block"
        raise InvalidDataError(
            f"{where(index)}Input {name} contains NaN, a missing value (row {row}{whose}). Drop "
            f"such rows first: keep = ~{name}.isna() of a Series, and take [keep] of all inputs."
        )


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas.NA has no truth value
        return True
    except ValueError:  # an array among the values
        return False
