"""Copies from array to array, in loops that numba compiles.

Of ``a[:] = b`` numba compiles what it says of shapes that differ, too: two seconds of a first run.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

from daskml_dist.backends.compiled import compiled_inside

__all__ = ["copy_rows", "copy_values"]

_inside = compiled_inside(error_model="numpy")


@_inside
def copy_values(out: Any, values: Any) -> None:
    """Fill a vector with as many values."""
    for i in range(len(out)):
        out[i] = values[i]


@_inside
def copy_rows(out: Any, rows: Any) -> None:
    """Fill a matrix with one of its shape."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = rows[i, j]
