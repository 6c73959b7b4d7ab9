"""Check of rows that trees go through."""

from __future__ import annotations

from typing import Any

from daskml_dist.errors import InvalidDataError

__all__ = ["check_dense", "sparse_rows"]


def check_dense(X: Any) -> None:
    """Check that rows of NumPy or CuPy are dense."""
    if hasattr(X, "tocsr"):
        raise sparse_rows()


def sparse_rows() -> InvalidDataError:
    """Return the error of sparse rows that are given to trees."""
    return InvalidDataError(
        "X is sparse, and trees need dense rows. Convert it: X.toarray(), X.map_blocks("
        "lambda b: b.toarray()), or X.sparse.to_dense() of a frame of sparse columns."
    )
