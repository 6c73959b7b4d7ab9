"""Cuts of a batch into the rows that a model is given at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["Drawn", "count_rows", "cuts", "shares"]

#: Rows of a batch: of each block, by its number, a slice or the numbers of rows.
Drawn = list[tuple[Any, Any]]


def count_rows(drawn: Drawn) -> int:
    """Rows of a batch."""
    return sum(at.stop - at.start if isinstance(at, slice) else len(at) for _, at in drawn)


def cuts(drawn: Drawn, most: int | None) -> Iterator[Drawn]:
    """Rows of each block, `most` of them at a time."""
    for number, at in drawn:
        if most is None:
            yield [(number, at)]
        elif isinstance(at, slice):
            for start in range(at.start or 0, at.stop, most):
                yield [(number, slice(start, min(start + most, at.stop)))]
        else:
            for start in range(0, len(at), most):
                yield [(number, at[start : start + most])]


def shares(drawn: Drawn, most: int) -> Iterator[Drawn]:
    """Rows of all blocks, as even shares of `most` rows at most: none is left with a row or two."""
    n_rows, left = count_rows(drawn), list(reversed(drawn))
    n_shares = -(-n_rows // most)
    for n in range(n_shares):
        wanted, share = n_rows * (n + 1) // n_shares - n_rows * n // n_shares, []
        while wanted:
            number, at = left.pop()
            if len(at) > wanted:
                left.append((number, at[wanted:]))
            share.append((number, at[:wanted]))
            wanted -= len(share[-1][1])
        yield share
