"""Rows some at a time, so that caches hold what is made of them."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["row_slices"]


def row_slices(n_rows: int, step: int) -> Iterator[slice]:
    """Slices of `step` rows, at least one, that make up `n_rows`; the last may be shorter."""
    step = max(step, 1)
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))
