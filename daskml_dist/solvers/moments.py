"""Second moments of the rows: all that least squares needs to know of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from daskml_dist.backends import Backend
from daskml_dist.solvers.base import Array, Statistic

__all__ = ["Moments"]

#: Numbers of X in a piece of a dense block: with its product it stays in the processor's cache.
_PIECE = 2**18
#: Rows of a piece at least, so that adding its product costs little beside making it.
_FEW_ROWS = 2048


@dataclass(frozen=True, eq=False)
class Moments(Statistic):
    """Upper triangle of ``A.T @ A`` for the rows ``A = [X, 1, y - y_shift]``, weighted.

    Dense rows are multiplied in their own dtype at first sight, at the speed of BLAS, and in
    float64 where a second look transforms them: then `A` begins with
    ``(X - x_shift) @ transform``.

    Parameters
    ----------
    y_shift : ndarray of float64 of shape (n_targets,)
    x_shift : ndarray of float64 of shape (n_features,), or None
    transform : ndarray of float64 of shape (n_features, n_features) or (n_features,), or None
        For dense rows; of one dimension: a factor of each feature.
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
        n_rows = X.shape[0]
        size = max(_PIECE // model.n_features, _FEW_ROWS) if hasattr(X, "__getitem__") else n_rows
        for start in range(0, n_rows, max(size, 1)):
            piece = slice(start, start + size)
            rows = X[piece] if size < n_rows else X
            root = None if weight is None else np.sqrt(weight[piece].astype(np.float64))
            with np.errstate(over="ignore", invalid="ignore"):  # the solver looks at the sums
                self._add_piece(rows, self._side(y[piece], root), root, out, backend)
        return float("nan")

    def _side(self, y: Any, root: Array | None) -> Array:
        """The columns beside X: 1 and the targets."""
        side = np.empty((len(y), 1 + len(self.y_shift)))
        side[:, 0] = 1.0
        np.subtract(y.reshape(len(y), -1), self.y_shift, out=side[:, 1:])
        if root is not None:
            side *= root[:, None]
        return side

    def _add_piece(
        self, X: Any, side: Array, root: Array | None, out: Array, backend: Backend
    ) -> None:
        d = X.shape[1]
        out[d:, d:] += side.T @ side
        if self.transform is None:
            backend.add_gram(X, None if root is None else (root**2).astype(X.dtype), out[:d, :d])
            if root is not None:
                side *= root[:, None]
            cross = np.zeros((d, side.shape[1]))
            backend.add_tdot(X, side.astype(X.dtype), cross)
            out[:d, d:] += cross
            return
        looked = X - self.x_shift
        looked = looked * self.transform if self.transform.ndim == 1 else looked @ self.transform
        if root is not None:
            looked *= root[:, None]
        out[:d, :d] += looked.T @ looked
        out[:d, d:] += looked.T @ side
