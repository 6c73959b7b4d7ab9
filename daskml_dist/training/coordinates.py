"""Coordinates in which the columns of a sample have mean 0 and no correlation, or spread 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

__all__ = ["FEW", "Coordinates"]

Array = NDArray[Any]

#: Columns up to which correlations are taken out; the cost grows with their square.
FEW = 256
#: Share of the largest variance below which a direction counts as this share.
_FLAT = 1e-10


@dataclass(frozen=True, eq=False)
class Coordinates:
    """An affine map of rows, ``(x - mean) / scale @ turn``, and of a linear model's parameters.

    Parameters
    ----------
    mean, scale : ndarray of shape (n_features,)
    turn, back : ndarray of shape (n_features, n_features) or None
        A matrix and its inverse; None: the identity.
    """

    mean: Array | None
    scale: Array
    turn: Array | None = None
    back: Array | None = None

    @classmethod
    def of(
        cls, X: Any, weight: Array | None, *, centred: bool, turned: bool, least: float
    ) -> Coordinates:
        """Coordinates for some rows; of sparse ones only the scale is changed.

        Parameters
        ----------
        X : ndarray of float64, or CSR matrix
        weight : ndarray of shape (n,) or None
        centred : bool
            Whether the means of dense rows may be taken: an intercept makes up for them.
        turned : bool
            Whether correlations may be taken out.
        least : float
            Variance that each direction is given more, since a penalty bends the loss by as much
            whatever the rows are.
        """
        n, d = X.shape
        share = np.full(n, 1 / n) if weight is None else weight / (weight.sum() or 1.0)
        if sparse.issparse(X):
            each = np.repeat(share, np.diff(X.indptr)) * X.data.astype(np.float64) ** 2
            return cls(None, _scale(np.bincount(X.indices, each, d) + least))
        mean = share @ X if centred else None
        moved = X if mean is None else X - mean
        squares = share @ (moved * moved)
        # What is left of a constant column is rounding.
        if mean is not None:
            squares[squares <= (1e-12 * mean) ** 2] = 0.0
        if not turned or d > FEW:
            return cls(mean, _scale(squares + least))
        scale = _scale(squares)
        moved = moved / scale
        curved = (moved.T * share) @ moved
        curved.flat[:: d + 1] += least / scale**2 + _FLAT
        values, vectors = np.linalg.eigh(curved)
        sizes = np.sqrt(np.maximum(values, _FLAT * max(values[-1], 1e-300)))
        return cls(mean, scale, vectors / sizes, (vectors * sizes).T)

    def rows(self, X: Any) -> Any:
        """Rows in these coordinates, a new array."""
        if sparse.issparse(X):
            return (X @ sparse.diags_array((1 / self.scale).astype(X.dtype))).tocsr()
        X = (X if self.mean is None else X - self.mean) / self.scale
        return np.ascontiguousarray(X if self.turn is None else X @ self.turn)

    def coef(self, v: Array) -> Array:
        """Coefficients for the rows as they were, of those in these coordinates."""
        return (v if self.turn is None else self.turn @ v) / self.scale[:, None]

    def transposed(self, gradient: Array) -> Array:
        """The transpose of :meth:`coef`."""
        gradient = gradient / self.scale[:, None]
        return gradient if self.turn is None else self.turn.T @ gradient

    def outside(self, v: Array) -> Array:
        """Parameters, the intercepts last where there are any, for the rows as they were."""
        d = len(self.scale)
        w = np.vstack([self.coef(v[:d]), v[d:]])
        if self.mean is not None:
            w[d:] -= self.mean @ w[:d]
        return w

    def inside(self, w: Array) -> Array:
        """Parameters in these coordinates."""
        d = len(self.scale)
        coef = w[:d] * self.scale[:, None]
        v = np.vstack([coef if self.back is None else self.back @ coef, w[d:]])
        if self.mean is not None:
            v[d:] += self.mean @ w[:d]
        return v


def _scale(squares: Array) -> Array:
    scale: Array = np.sqrt(squares)
    return np.where(scale > 0, scale, 1.0)
