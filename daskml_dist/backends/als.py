"""Least squares of each user or item: solves and losses of rows of ratings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["LeastSquares", "Ratings", "Regressors"]

#: Ratings of a row above which it is worked on in pieces of so many.
_PIECE = 1 << 15
#: Smallest pivot of its diagonal entry, by the bytes of a number.
_LEAST = {4: 1e-4, 8: 1e-13}
#: Square of a residual, of the first one's, at which conjugate gradients end.
_ENOUGH = {4: 1e-13, 8: 1e-30}


class Ratings(NamedTuple):
    """Ratings of neighbouring rows, users or items, in CSR form.

    Parameters
    ----------
    indptr : ndarray of int64 of shape (n_rows + 1,)
    indices : ndarray of int of shape (n_ratings,)
        Position of the other side's factors.
    values : ndarray of float of shape (n_ratings,)
    """

    indptr: NDArray[Any]
    indices: NDArray[Any]
    values: NDArray[Any]


class Regressors(NamedTuple):
    """Factors of the other side, by which the ratings of a side are explained.

    Parameters
    ----------
    factors : ndarray of float32 or float64 of shape (n_others, width)
    offsets : ndarray of shape (n_others,) or (0,)
        What is taken from the ratings of each; none: nothing.
    gram : ndarray of float64 of shape (width, width)
        Implicit ratings: sum of the squares of all others' factors; else zeros.
    """

    factors: NDArray[Any]
    offsets: NDArray[Any]
    gram: NDArray[np.float64]


@dataclass(frozen=True)
class LeastSquares:
    """Penalised least squares of the factors of a user or an item, the other side's being given.

    Parameters
    ----------
    reg : float
        Penalty of the squared factors; explicit: times the number of the row's ratings.
    implicit : bool
    alpha : float
        Confidence that a unit of an implicit rating adds.
    steps : int or None
        Steps of conjugate gradients; None: Cholesky.
    """

    reg: float
    implicit: bool
    alpha: float
    steps: int | None = None

    def solve(self, ratings: Ratings, by: Regressors, out: NDArray[Any]) -> NDArray[np.intp]:
        """Solve for the factors of each row.

        Parameters
        ----------
        ratings : Ratings
        by : Regressors
        out : ndarray of the dtype of the factors, of shape (n_rows, width)
            Conjugate gradients begin with what it holds.

        Returns
        -------
        ndarray of int
            Rows whose system is singular to float64's digits, and which are as they were.
        """
        if self.steps is not None:
            self._conjugate(ratings, by, out)
            return np.empty(0, np.intp)
        sizes = np.diff(ratings.indptr)
        long = np.flatnonzero(sizes > _PIECE)
        starts, stops = [0, *(long + 1).tolist()], [*long.tolist(), len(sizes)]
        found = [self._cholesky(ratings, by, out, at) for at in zip(starts, stops, strict=True)]
        found += [np.array([row]) for row in long.tolist() if not self._long(row, ratings, by, out)]
        return np.sort(np.concatenate(found))

    def errors(self, ratings: Ratings, by: Regressors, rows: NDArray[Any]) -> float:
        """Sum over the ratings of what they add to the loss, `rows` having these factors.

        Squared errors of explicit ones; ``c (p - s)**2 - s**2`` of implicit ones, since a pair
        without a rating has ``s**2``.
        """
        kernels = _kernels()
        told = self.implicit, self.alpha
        return float(kernels.errors_of_rows(*ratings, by.factors, by.offsets, *told, rows))

    def _cholesky(
        self, ratings: Ratings, by: Regressors, out: NDArray[Any], at: tuple[int, int]
    ) -> NDArray[np.intp]:
        """Rows that are singular; where float32 has too few digits, those of float64 are taken."""
        failed = self._rows(ratings, by, out, at, out.dtype)
        if out.dtype == np.float64:
            return failed
        again = (self._rows(ratings, by, out, (row, row + 1), np.float64) for row in failed)
        return np.concatenate([failed[:0], *again])

    def _rows(
        self, ratings: Ratings, by: Regressors, out: NDArray[Any], at: tuple[int, int], dtype: Any
    ) -> NDArray[np.intp]:
        """Solve some rows in the arithmetic of a dtype; those whose pivots are too small."""
        kernels = _kernels()
        failed, room = np.empty(at[1] - at[0], np.intp), _system(by, dtype)
        gram, least = by.gram.astype(dtype), _LEAST[np.dtype(dtype).itemsize]
        told = (self.implicit, self.alpha, self.reg, gram, least)
        n = kernels.solve_rows(*ratings, by.factors, by.offsets, *told, *room, out, failed, at)
        return failed[:n]

    def _long(self, row: int, ratings: Ratings, by: Regressors, out: NDArray[Any]) -> bool:
        """Solve for a row of many ratings: sums of pieces are added up in float64."""
        kernels = _kernels()
        start, stop = ratings.indptr[row : row + 2].tolist()
        A, b = _system(by, np.float64)
        A += by.gram
        given = ratings.indices, ratings.values, by.factors, by.offsets, self.implicit, self.alpha
        for at in range(start, stop, _PIECE):
            matrix, side = _system(by, out.dtype)
            kernels.add_ratings(*given, matrix, side, at, min(at + _PIECE, stop))
            A += matrix
            b += side
        shift = self.reg * (1 if self.implicit else stop - start)
        solved = bool(kernels.solve_system(A, b, shift, _LEAST[8]))
        if solved:
            out[row] = b
        return solved

    def _conjugate(self, ratings: Ratings, by: Regressors, out: NDArray[Any]) -> None:
        kernels = _kernels()
        room = np.empty((4, out.shape[1]), out.dtype)
        gram, enough = by.gram.astype(out.dtype), _ENOUGH[out.dtype.itemsize]
        told = self.implicit, self.alpha, self.reg, gram, self.steps, enough
        kernels.conjugate_rows(*ratings, by.factors, by.offsets, *told, room, out)


def _kernels() -> Any:
    """Compiled loops, which load numba."""
    from daskml_dist.backends import als_kernels

    return als_kernels


def _system(by: Regressors, dtype: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Zeros for a matrix and its right side."""
    width = by.factors.shape[1]
    return np.zeros((width, width), dtype), np.zeros(width, dtype)
