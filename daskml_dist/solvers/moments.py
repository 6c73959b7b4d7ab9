"""Second moments of the rows: all that least squares needs to know of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from daskml_dist.backends import Backend
from daskml_dist.backends.numpy_backend import CSRRows
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.solvers.base import Array, Statistic

__all__ = ["Moments"]

#: Numbers of X in a piece of a dense block: with its product it stays in the processor's cache.
_PIECE = 2**18
#: Rows of a piece at least, so that adding its product costs little beside making it.
_FEW_ROWS = 2048


@dataclass(frozen=True, eq=False)
class Moments(Statistic):
    """Upper triangle of ``A.T @ A`` for the rows ``A = [X, 1, y - y_shift]``, weighted.

    Dense rows are multiplied in their own dtype at first sight, at the speed of BLAS. A second
    look, at dense rows only, is in float64: `A` then begins with ``X - x_shift``, or with
    ``(X - x_shift) @ transform``.

    Parameters
    ----------
    y_shift : ndarray of float64 of shape (n_targets,)
    x_shift : ndarray of float64 of shape (n_features,), or None
    transform : ndarray of float64 of shape (n_features, n_features), or None
    """

    y_shift: Array
    x_shift: Array | None = None
    transform: Array | None = None

    def shape(self, model: Any) -> tuple[int, ...]:
        """One row and column for each feature, for the 1, and for each target."""
        n = model.n_features + 1 + len(self.y_shift)
        return n, n

    def add(
        self, model: Any, X: Any, y: Any, weight: Any | None, out: Array, backend: Backend
    ) -> float:
        """Add the moments of some rows, piece by piece."""
        n_rows, is_dense = X.shape[0], not isinstance(X, CSRRows)
        # Sparse rows add up in float64 whatever their number.
        size = max(_PIECE // model.n_features, _FEW_ROWS) if is_dense else n_rows
        for piece in row_slices(n_rows, size):
            rows = X[piece] if is_dense else X
            given = None if weight is None else weight[piece]
            with np.errstate(over="ignore", invalid="ignore"):  # the solver looks at the sums
                if self.x_shift is None:
                    self._add(rows, y[piece], given, out, backend, is_dense)
                else:
                    self._add_shifted(rows, y[piece], given, out)
        return float("nan")

    def _add(
        self, X: Any, y: Any, weight: Any | None, out: Array, backend: Backend, is_dense: bool
    ) -> None:
        d = X.shape[1]
        backend.add_gram(X, weight, out[:d, :d])
        side = self._side(y)
        weighted = side if weight is None else side * weight[:, None]
        out[d:, d:] += weighted.T @ side
        cross = np.zeros((d, side.shape[1]))
        backend.add_tdot(X, weighted.astype(X.dtype) if is_dense else weighted, cross)
        out[:d, d:] += cross

    def _add_shifted(self, X: Any, y: Any, weight: Any | None, out: Array) -> None:
        assert self.x_shift is not None
        d = X.shape[1]
        rows = np.empty((X.shape[0], len(out)))
        if self.transform is None:
            np.subtract(X, self.x_shift, out=rows[:, :d])
        else:
            np.matmul(X - self.x_shift, self.transform, out=rows[:, :d])
        rows[:, d:] = self._side(y)
        if weight is not None:
            rows *= np.sqrt(weight.astype(np.float64))[:, None]
        out += rows.T @ rows

    def _side(self, y: Any) -> Array:
        """The columns beside X: 1 and the targets."""
        side = np.empty((len(y), 1 + len(self.y_shift)))
        side[:, 0] = 1.0
        np.subtract(y.reshape(len(y), -1), self.y_shift, out=side[:, 1:])
        return side
