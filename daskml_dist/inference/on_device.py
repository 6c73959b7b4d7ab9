"""Predictions of rows that lie on a GPU: made there, and brought to the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import get_backend
from daskml_dist.backends.devices import device_memory
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.data.blocks import check_finite_rows, find_first_nonfinite
from daskml_dist.data.conversion import choose_float_dtype, copy_to_host, describe_block

__all__ = ["results_on_device"]

#: Bytes of dense float64 rows that are worked on at once, since some are copied to be so; and
#: how many rows, since the host goes on with what is made of them.
_BYTES, _MOST_ROWS = 2**28, 2**18


def results_on_device(
    function: Any, rows: Any, index: int | None
) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Apply a function to a block where it lies, some dense rows at a time."""
    dtype = np.dtype(choose_float_dtype(rows.dtype))
    with _memory(index):
        apply = function.on_device(get_backend("gpu"), dtype)
    for at, piece in _pieces(rows):
        with _memory(index), np.errstate(invalid="ignore", over="ignore"):
            result = apply(piece.astype(dtype, copy=False))
        if find_first_nonfinite(result) is not None:
            check_finite_rows(copy_to_host(piece), index, at.start)
        yield at, result


def _pieces(rows: Any) -> Iterator[tuple[slice, Any]]:
    """Views of dense rows; sparse ones all at once."""
    n_rows = rows.shape[0]
    if hasattr(rows, "tocsr"):
        yield slice(0, n_rows), rows
        return
    for at in row_slices(n_rows, min(_BYTES // (8 * max(prod(rows.shape[1:]), 1)), _MOST_ROWS)):
        yield at, rows[at]


def _memory(index: int | None) -> AbstractContextManager[None]:
    return device_memory(
        f"{describe_block(index)}What is made of rows of X",
        "Keep fewer blocks there, make X of the dtype of the fit, which needs no copy, or make it "
        "NumPy.",
    )
