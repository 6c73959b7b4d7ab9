"""Least squares for each user or item: solutions and losses from rows of ratings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.host_memory import CACHE_LINE_BYTES, allocate_aligned

#: Factors are padded with zeros to a multiple of this number, a 64-byte vector of float32, so that
#: compiled loops have no remainder.
_FACTORS_PER_VECTOR = 16
#: A row with more ratings has its system summed in float64, in pieces of this many ratings, whose
#: factors are copied.
MAX_RATINGS_AT_ONCE = 1 << 15
#: By itemsize: smallest pivot, relative to its diagonal entry, and largest entry of the inverse
#: (scaled to a unit diagonal), for which a system is solved in that dtype. In float32, an entry of
#: 1e3 came with relative errors of 2e-4 in the solution; such rows are solved in float64.
_SOLVE_LIMITS = {4: (1e-3, 1e3), 8: (1e-13, np.inf)}
#: By itemsize: squared norm of the residual, relative to the first one's, at which conjugate
#: gradients end, about the square of the dtype's precision.
_GRADIENT_TOLERANCES = {4: 1e-13, 8: 1e-30}


#: Normal equations of a row: the matrix (upper triangle) and the right side (one row).
System = tuple[NDArray[Any], NDArray[Any]]


class Ratings(NamedTuple):
    """Ratings of neighbouring rows (users or items) in CSR form.

    Parameters
    ----------
    indptr : ndarray of int64 of shape (n_rows + 1,)
    indices : ndarray of int of shape (n_ratings,)
        Positions of the other side's factors.
    values : ndarray of float of shape (n_ratings,)
    """

    indptr: NDArray[Any]
    indices: NDArray[Any]
    values: NDArray[Any]


class Regressors(NamedTuple):
    """Factors of the other side, which are the regressors of the ratings.

    Parameters
    ----------
    factors : ndarray of float32 or float64 of shape (n_others, width)
    offsets : ndarray of shape (n_others,) or (0,)
        Subtracted from the ratings of each; empty: nothing is subtracted.
    gram : ndarray of float64 of shape (width, width)
        Implicit ratings: Gram matrix of all factors of the other side; otherwise zeros.
    """

    factors: NDArray[Any]
    offsets: NDArray[Any]
    gram: NDArray[Any]

    @property
    def width(self) -> int:
        """Return the number of factors of a user or an item, including padding zeros."""
        return int(self.factors.shape[1])

    @property
    def whole_width(self) -> int:
        """Return the width rounded up to whole vectors."""
        return -(-self.width // _FACTORS_PER_VECTOR) * _FACTORS_PER_VECTOR

    def padded(self, dtype: Any) -> Regressors:
        """Return the factors in a dtype, padded to whole vectors; copy only if needed.

        The Gram matrix stays in float64: systems that float32 cannot solve need its digits.
        """
        # Padded factors are zeros: they do not change products.
        width = self.whole_width
        factors, gram = self.factors, self.gram
        if factors.dtype != dtype or width > self.width or factors.ctypes.data % CACHE_LINE_BYTES:
            factors = allocate_aligned((len(factors), width), dtype)
            factors[:, : self.width] = self.factors
            factors[:, self.width :] = 0
        if len(gram) < width:
            gram = np.pad(gram, (0, width - len(gram)))
        return Regressors(factors, self.offsets, gram)


@dataclass(frozen=True)
class LeastSquares:
    """Penalised least squares for the factors of a user or an item, given the other side's.

    Parameters
    ----------
    reg : float
        Penalty on the squared factors; for explicit ratings it is multiplied by the number of
        ratings.
    implicit : bool
    alpha : float
        Confidence added per unit of an implicit rating.
    steps : int or None
        Conjugate gradient steps; None: Cholesky.
    """

    reg: float
    implicit: bool
    alpha: float
    steps: int | None = None

    def solve(
        self, ratings: Ratings, fixed_side: Regressors, out: NDArray[Any]
    ) -> NDArray[np.intp]:
        """Solve for the factors of each row.

        Parameters
        ----------
        ratings : Ratings
        fixed_side : Regressors
        out : ndarray of the dtype of the factors, of shape (n_rows, width)
            Holds the start of the conjugate gradients.
        """
        if self.steps is not None:
            self._improve_by_conjugate_gradients(ratings, fixed_side, out)
            return np.empty(0, np.intp)
        # Rows with very many ratings are summed in float64, piece by piece; all others in one loop.
        sizes = np.diff(ratings.indptr)
        long = np.flatnonzero(sizes > MAX_RATINGS_AT_ONCE)
        starts, stops = [0, *(long + 1).tolist()], [*long.tolist(), len(sizes)]
        singular_rows = [
            self._cholesky(ratings, fixed_side, out, span)
            for span in zip(starts, stops, strict=True)
        ]
        singular_rows += [
            np.array([row])
            for row in long.tolist()
            if not self._solve_long_row(row, ratings, fixed_side, out)
        ]
        return np.sort(np.concatenate(singular_rows))

    def errors(
        self, ratings: Ratings, fixed_side: Regressors, rows: NDArray[Any], out: NDArray[np.float64]
    ) -> None:
        """Add the loss of each row's ratings to its entry of `out`.

        For explicit ratings the squared errors, given the factors `rows`; for implicit ones ``c (p
        - s)**2 - s**2``, since a pair without a rating has the loss ``s**2``.
        """
        kernels, fixed_side = _load_kernels(), fixed_side.padded(rows.dtype)
        settings, scratch = (self.implicit, self.alpha), np.zeros((1, fixed_side.width), rows.dtype)
        kernels.add_row_errors(
            *ratings, fixed_side.factors, fixed_side.offsets, *settings, scratch, rows, out
        )

    def contributions(
        self, ratings: Ratings, fixed_side: Regressors, item_index: int, width: int
    ) -> NDArray[np.float64]:
        """Return the contribution of each rating of a row to its product with another's factors.

        The factors of a row are the solution of its normal equations, which is linear in its
        ratings. Computed in float64, whatever the dtype of the factors.

        Returns
        -------
        ndarray of float64 of shape (n_ratings,)
        """
        # The factors of a row are A^-1 sum(t y), so a rating's share of the product with another's
        # factors z is t y' A^-1 z.
        rows = fixed_side.factors[ratings.indices, :width].astype(np.float64)
        values = ratings.values.astype(np.float64)
        if self.implicit:
            # Confidence 1 + alpha r of a preference; the 1 is included in `gram`.
            weights, targets = self.alpha * values, (1 + self.alpha * values) * (values > 0)
        else:
            used_offsets = fixed_side.offsets[ratings.indices] if len(fixed_side.offsets) else 0.0
            weights, targets = np.ones(len(values)), values - used_offsets
        shift = self.reg * (1 if self.implicit else len(values))
        A = (rows.T * weights) @ rows + shift * np.eye(width)
        if self.implicit:
            A += fixed_side.gram[:width, :width]
        other = np.linalg.solve(A, fixed_side.factors[item_index, :width].astype(np.float64))
        return np.asarray(targets * (rows @ other))

    # -- one long row --------------------------------------------------------------------------

    def make_empty_equations(self, fixed_side: Regressors) -> System:
        """Return the normal equations of a row before any rating is added."""
        A, b = _make_system(fixed_side, np.float64)
        A[: len(fixed_side.gram), : len(fixed_side.gram)] += fixed_side.gram
        return A, b

    def add(self, system: System, ratings: Ratings, fixed_side: Regressors, width: int) -> None:
        """Add ratings of one row, in float64 whatever the dtype of the factors.

        In float32, a sum of so many products has a relative error of some parts in a million, which
        a nearly singular system amplifies a thousandfold. The factors used by one piece of the
        ratings are copied at a time.
        """
        kernels, (A, b) = _load_kernels(), system
        start, stop = ratings.indptr.tolist()
        for piece_start in range(start, stop, MAX_RATINGS_AT_ONCE):
            piece = slice(piece_start, min(piece_start + MAX_RATINGS_AT_ONCE, stop))
            touched, m = ratings.indices[piece], piece.stop - piece_start
            offsets = fixed_side.offsets[touched] if len(fixed_side.offsets) else fixed_side.offsets
            regressors = Regressors(
                fixed_side.factors[touched], offsets.astype(np.float64), fixed_side.gram
            )
            regressors, (scratch, _) = (
                regressors.padded(np.float64),
                _make_scratch(fixed_side, np.float64),
            )
            kernels.add_ratings(
                np.arange(m, dtype=np.int32), ratings.values[piece].astype(np.float64),
                regressors.factors, regressors.offsets, self.implicit, self.alpha, A, b, scratch,
                width, 0, m,
            )  # fmt: skip

    def solve_equations(self, system: System, n: int, out: NDArray[Any]) -> bool:
        """Solve for the factors `out` of a row of n ratings; False: the system is singular."""
        (A, b), width, kernels = system, len(out), _load_kernels()
        shift = self.reg * (1 if self.implicit else n)
        scratch = np.zeros((4, max(kernels.RATINGS_PER_CHUNK, len(A))))
        order = np.arange(len(A), dtype=np.int32)
        if solved := kernels.solve_system(A, b, shift, *_SOLVE_LIMITS[8], scratch, order, width):
            out[:] = b[0, :width]
        return bool(solved)

    def _cholesky(
        self,
        ratings: Ratings,
        fixed_side: Regressors,
        out: NDArray[Any],
        row_range: tuple[int, int],
    ) -> NDArray[np.intp]:
        """Solve rows by Cholesky, in float64 if float32 is not enough; return singular rows."""
        failed = self._solve_rows(ratings, fixed_side, out, row_range, out.dtype)
        if out.dtype == np.float64 or not len(failed):
            return failed
        # Their ratings, and the factors that these use, are copied, one piece at a time.
        ends = np.cumsum(np.diff(ratings.indptr)[failed])
        parts = np.split(failed, np.flatnonzero(np.diff(ends // MAX_RATINGS_AT_ONCE)) + 1)
        return np.concatenate(
            [self._solve_in_float64(rows, ratings, fixed_side, out) for rows in parts]
        )

    def _solve_in_float64(
        self, rows: NDArray[np.intp], ratings: Ratings, fixed_side: Regressors, out: NDArray[Any]
    ) -> NDArray[np.intp]:
        """Solve some rows in float64; return those that are singular in it too."""
        # Ratings of the failed rows only, renumbered to the factors that they use.
        starts, sizes = ratings.indptr[rows], np.diff(ratings.indptr)[rows]
        indptr = np.concatenate([[0], np.cumsum(sizes)])
        positions = np.arange(indptr[-1]) + np.repeat(starts - indptr[:-1], sizes)
        touched, indices = np.unique(ratings.indices[positions], return_inverse=True)
        row_ratings = Ratings(indptr, indices.astype(np.int32), ratings.values[positions])
        offsets = fixed_side.offsets[touched] if len(fixed_side.offsets) else fixed_side.offsets
        # All in float64, as in a float64 fit: one compiled loop is enough for both.
        regressors = Regressors(
            fixed_side.factors[touched], offsets.astype(np.float64), fixed_side.gram
        )
        solved = out[rows].astype(np.float64)
        singular = self._solve_rows(row_ratings, regressors, solved, (0, len(rows)), np.float64)
        out[rows] = solved
        return rows[singular]

    def _solve_rows(
        self,
        ratings: Ratings,
        fixed_side: Regressors,
        out: NDArray[Any],
        row_range: tuple[int, int],
        dtype: Any,
    ) -> NDArray[np.intp]:
        """Solve some rows in the arithmetic of a dtype; return those whose pivots are too small."""
        kernels, fixed_side = _load_kernels(), fixed_side.padded(dtype)
        failed, system = (
            np.empty(row_range[1] - row_range[0], np.intp),
            _make_system(fixed_side, dtype),
        )
        gram = fixed_side.gram.astype(dtype, copy=False)
        settings = (
            self.implicit,
            self.alpha,
            self.reg,
            gram,
            *_SOLVE_LIMITS[np.dtype(dtype).itemsize],
        )
        scratch = _make_scratch(fixed_side, dtype)
        n = kernels.solve_rows(
            *ratings,
            fixed_side.factors,
            fixed_side.offsets,
            *settings,
            *system,
            *scratch,
            out,
            failed,
            row_range,
        )
        return failed[:n]

    def _solve_long_row(
        self, row: int, ratings: Ratings, fixed_side: Regressors, out: NDArray[Any]
    ) -> bool:
        """Solve for a row with many ratings."""
        system, bounds = self.make_empty_equations(fixed_side), ratings.indptr[row : row + 2]
        self.add(system, ratings._replace(indptr=bounds), fixed_side, out.shape[1])
        return self.solve_equations(system, int(bounds[1] - bounds[0]), out[row])

    def _improve_by_conjugate_gradients(
        self, ratings: Ratings, fixed_side: Regressors, out: NDArray[Any]
    ) -> None:
        """Improve the factors `out` of each row by conjugate gradient steps, in place."""
        kernels, fixed_side = _load_kernels(), fixed_side.padded(out.dtype)
        vectors, scratch = (
            np.zeros((4, 1, fixed_side.width), out.dtype),
            _make_scratch(fixed_side, out.dtype),
        )
        gram = fixed_side.gram.astype(out.dtype, copy=False)
        settings = self.implicit, self.alpha, self.reg, gram, self.steps
        tolerance, (A, _) = _GRADIENT_TOLERANCES[out.itemsize], _make_system(fixed_side, out.dtype)
        kernels.conjugate_gradient_rows(
            *ratings,
            fixed_side.factors,
            fixed_side.offsets,
            *settings,
            tolerance,
            A,
            vectors,
            *scratch,
            out,
        )


def _load_kernels() -> Any:
    """Import the compiled loops, which loads numba."""
    from daskml_dist.backends import als_kernels

    return als_kernels


def _make_system(fixed_side: Regressors, dtype: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return zeros for the matrix and the right side of a row's normal equations."""
    width = fixed_side.whole_width
    A, b = allocate_aligned((width, width), dtype), allocate_aligned((1, width), dtype)
    A[...], b[...] = 0, 0
    return A, b


def _make_scratch(fixed_side: Regressors, dtype: Any) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Return scratch arrays for terms of ratings and for pivots, and the numbers 0, 1, ..."""
    scratch = np.zeros((4, max(_load_kernels().RATINGS_PER_CHUNK, fixed_side.width)), dtype)
    return scratch, np.arange(fixed_side.width, dtype=np.int32)
