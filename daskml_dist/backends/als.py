"""Least squares of each user or item: solves and losses of rows of ratings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["LeastSquares", "Ratings", "Regressors"]

#: Numbers to whole ones of which factors are padded.
_VECTOR = 16
#: Bytes of a cache line, which a vector fills.
_LINE = 64
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
    gram: NDArray[Any]

    @property
    def width(self) -> int:
        """Numbers of a user or an item, and zeros behind them."""
        return int(self.factors.shape[1])

    def padded(self, dtype: Any) -> Regressors:
        """The same in a dtype, with zeros up to whole vectors; copies what is not so."""
        width = -(-self.width // _VECTOR) * _VECTOR
        factors, gram = self.factors, self.gram.astype(dtype, copy=False)
        if factors.dtype != dtype or width > self.width or factors.ctypes.data % _LINE:
            factors = _on_lines((len(factors), width), dtype)
            factors[:, : self.width] = self.factors
            factors[:, self.width :] = 0
        if len(gram) < width:
            gram = np.pad(gram, (0, width - len(gram)))
        return Regressors(factors, self.offsets, gram)


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
        kernels, by = _kernels(), by.padded(rows.dtype)
        told, room = (self.implicit, self.alpha), np.zeros((1, by.width), rows.dtype)
        return float(kernels.errors_of_rows(*ratings, by.factors, by.offsets, *told, room, rows))

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
        kernels, by = _kernels(), by.padded(dtype)
        failed, system = np.empty(at[1] - at[0], np.intp), _system(by, dtype)
        told = self.implicit, self.alpha, self.reg, by.gram, _LEAST[np.dtype(dtype).itemsize]
        room = _room(by, dtype)
        n = kernels.solve_rows(
            *ratings, by.factors, by.offsets, *told, *system, *room, out, failed, at
        )
        return failed[:n]

    def _long(self, row: int, ratings: Ratings, by: Regressors, out: NDArray[Any]) -> bool:
        """Solve for a row of many ratings: sums of pieces are added up in float64."""
        kernels, width = _kernels(), out.shape[1]
        start, stop = ratings.indptr[row : row + 2].tolist()
        whole = by.padded(np.float64)
        by = by.padded(out.dtype)
        A, b = _system(by, np.float64)
        A += whole.gram
        given = ratings.indices, ratings.values, by.factors, by.offsets, self.implicit, self.alpha
        room, _ = _room(by, out.dtype)
        for at in range(start, stop, _PIECE):
            matrix, side = _system(by, out.dtype)
            last = min(at + _PIECE, stop)
            kernels.add_ratings(*given, matrix, side, room, width, at, last)
            A += matrix
            b += side
        shift = self.reg * (1 if self.implicit else stop - start)
        solved = bool(kernels.solve_system(A, b, shift, _LEAST[8], *_room(by, A.dtype), width))
        if solved:
            out[row] = b[0, :width]
        return solved

    def _conjugate(self, ratings: Ratings, by: Regressors, out: NDArray[Any]) -> None:
        kernels, by = _kernels(), by.padded(out.dtype)
        vectors, (room, _) = np.zeros((4, 1, by.width), out.dtype), _room(by, out.dtype)
        told = self.implicit, self.alpha, self.reg, by.gram, self.steps, _ENOUGH[out.itemsize]
        A, _ = _system(by, out.dtype)
        kernels.conjugate_rows(*ratings, by.factors, by.offsets, *told, A, vectors, room, out)


def _kernels() -> Any:
    """Compiled loops, which load numba."""
    from daskml_dist.backends import als_kernels

    return als_kernels


def _system(by: Regressors, dtype: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Zeros for a matrix and its right side."""
    A, b = _on_lines((by.width, by.width), dtype), _on_lines((1, by.width), dtype)
    A[...], b[...] = 0, 0
    return A, b


def _room(by: Regressors, dtype: Any) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Room for terms of ratings and pivots; and numbers from 0."""
    room = np.zeros((3, max(_kernels().CHUNK, by.width)), dtype)
    return room, np.arange(by.width, dtype=np.int32)


def _on_lines(shape: tuple[int, int], dtype: Any) -> NDArray[Any]:
    """An array whose rows begin at cache lines."""
    size = np.dtype(dtype).itemsize
    room = np.empty(shape[0] * shape[1] + _LINE // size, dtype)
    skipped = -room.ctypes.data % _LINE // size
    return room[skipped : skipped + shape[0] * shape[1]].reshape(shape)
