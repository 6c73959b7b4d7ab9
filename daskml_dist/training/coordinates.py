"""Coordinates in which the columns of a sample are uncorrelated with mean 0, or have spread 1.

A minimisation in them does not depend on the features' units and correlations. With few rows and
many columns there is one coordinate for each direction that the rows span, where a minimum with an
l2 penalty lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

__all__ = ["FEW", "Coordinates"]

Array = NDArray[Any]

#: Most columns, or rows, whose correlations are removed: an eigendecomposition takes the cube of
#: their number.
FEW = 256
#: Share of the largest variance that every direction counts at least, so that none is divided by
#: zero.
_FLAT = 1e-10
#: Ratio of spreads from which units differ; share of a column's magnitude below which its spread is
#: rounding.
_FAR, _CONSTANT = 10.0, 1e-6
#: Share of the largest variance below which few rows do not span a direction.
_NOTHING = 1e-14
#: Entries that are worked on at once: 512 KiB in float64, a share of the L2 cache.
_CACHED = 1 << 16


@dataclass(frozen=True, eq=False)
class Coordinates:
    """An affine map of rows, ``(x - mean) / scale @ turn``, and of a linear model's parameters.

    Parameters
    ----------
    mean, scale : ndarray of shape (n_features,)
    turn, back : ndarray of shape (n_features, n_coordinates) and its transpose's, or None
        A matrix and its inverse from the left; None: the identity.
    """

    mean: Array | None
    scale: Array
    turn: Array | None = None
    back: Array | None = None

    @classmethod
    def of(
        cls, X: Any, weight: Array | None, *, centred: bool, turned: bool, least: float
    ) -> Coordinates:
        """Compute the coordinates of some rows; of sparse rows only the scale is changed.

        Notes
        -----
        Of few rows of many columns in like units there are fewer coordinates than columns, and the
        parameters found are sums of rows, as the minimum is that a penalty makes the only one.
        In units far apart that minimum knows the largest columns alone, and predicts badly.
        """
        (one,) = cls.for_least_variances(X, weight, centred=centred, turned=turned, leasts=(least,))
        return one

    @classmethod
    def for_least_variances(
        cls, X: Any, weight: Array | None, *, centred: bool, turned: bool, leasts: Sequence[float]
    ) -> list[Coordinates]:
        """Compute coordinates for each of several least variances, reading the rows once."""
        n, d = X.shape
        total = n if weight is None else weight.sum() or 1.0
        # Centring would make sparse rows dense, so only the scales are changed.
        if sparse.issparse(X):
            each = X.data.astype(np.float64) ** 2
            if weight is not None:
                each *= np.repeat(weight, np.diff(X.indptr))
            squares = np.bincount(X.indices, each, d) / total
            return [cls(None, _safe_scale(squares + least)) for least in leasts]
        # Fewer rows than columns: the minimum lies in the span of the rows.
        if turned and n <= FEW < d and min(leasts) > 0 and _have_like_units(X):
            return [_span_coordinates(X, weight, centred, least) for least in leasts]
        turned = turned and d <= FEW
        # Two passes: means first, then centred squares, which loses no digits to large means.
        mean, squares = np.zeros(d), np.zeros((d, d) if turned else d)
        if centred:
            for rows, own in _iterate_tiles(X, weight):
                mean += rows.sum(axis=0) if own is None else own @ rows
            mean /= total
        for rows, own in _iterate_tiles(X, weight):
            rows -= mean
            left = rows if own is None else rows * own[:, None]
            squares += left.T @ rows if turned else np.einsum("ij,ij->j", left, rows)
        squares /= total
        variance = squares.diagonal() if turned else squares
        # What is left of a constant column is rounding.
        variance = np.where(variance <= (1e-12 * mean) ** 2, 0.0, variance)
        taken = mean if centred else None
        if not turned:
            return [cls(taken, _safe_scale(variance + least)) for least in leasts]
        scale = _safe_scale(variance)
        squares /= np.outer(scale, scale)
        found = []
        for least in leasts:
            # The penalty's curvature is added to that of the loss: directions without variance need
            # no division by nearly 0.
            bent = squares.copy()
            bent.flat[:: d + 1] += least / scale**2 + _FLAT
            # Whitening: rotate to the eigenvectors and divide by the standard deviations.
            values, vectors = np.linalg.eigh(bent)
            sizes = np.sqrt(np.maximum(values, _FLAT * max(values[-1], 1e-300)))
            found.append(cls(taken, scale, vectors / sizes, (vectors * sizes).T))
        return found

    @property
    def n_coordinates(self) -> int:
        """Return the number of coordinates of a row."""
        return len(self.scale) if self.turn is None else self.turn.shape[1]

    def rows(self, X: Any) -> Any:
        """Return rows in these coordinates, in a new array of their dtype."""
        if sparse.issparse(X):
            return (X @ sparse.diags_array((1 / self.scale).astype(X.dtype))).tocsr()
        moved, at = np.empty((len(X), self.n_coordinates), X.dtype), 0
        turn = None if self.turn is None else self.turn / self.scale[:, None]
        # Once they are of one size, rows may be narrow; until then they are wide.
        for rows, _ in _iterate_tiles(X):
            if self.mean is not None:
                rows -= self.mean
            moved[at : at + len(rows)] = rows / self.scale if turn is None else rows @ turn
            at += len(rows)
        return moved

    def coef(self, v: Array) -> Array:
        """Map coefficients in these coordinates to coefficients of the original columns."""
        return (v if self.turn is None else self.turn @ v) / self.scale[:, None]

    def apply_transpose(self, gradient: Array) -> Array:
        """Apply the transpose of :meth:`coef` to a gradient."""
        gradient = gradient / self.scale[:, None]
        return gradient if self.turn is None else self.turn.T @ gradient

    def from_coordinates(self, v: Array) -> Array:
        """Map parameters, with intercepts last, to those of the original rows."""
        d, k = len(self.scale), self.n_coordinates
        w = np.vstack([self.coef(v[:k]), v[k:]])
        if self.mean is not None:
            w[d:] -= self.mean @ w[:d]
        return w

    def to_coordinates(self, w: Array) -> Array:
        """Map parameters of the original rows to these coordinates."""
        d = len(self.scale)
        coef = w[:d] * self.scale[:, None]
        v = np.vstack([coef if self.back is None else self.back @ coef, w[d:]])
        if self.mean is not None:
            v[len(v) - len(w) + d :] += self.mean @ w[:d]
        return v


def _have_like_units(X: Array) -> bool:
    """Return whether the columns that vary have spreads within a factor `_FAR`."""
    spread = X.std(axis=0, dtype=np.float64)
    spread = spread[spread > _CONSTANT * np.abs(X).max(axis=0)]
    return bool(len(spread)) and bool(spread.max() <= _FAR * spread.min())


def _span_coordinates(X: Array, weight: Array | None, centred: bool, least: float) -> Coordinates:
    """Return coordinates of the directions that few rows span, in the units of a penalty."""
    weight = np.ones(len(X)) if weight is None else weight.astype(np.float64)
    share = weight / (weight.sum() or 1.0)
    mean = share @ X if centred else None
    rows = X.astype(np.float64) if mean is None else X - mean
    rows *= np.sqrt(share)[:, None]
    # Products of rows are few. Where they round, coordinates are a little worse, and still ones.
    # Eigenvectors of the small n x n Gram matrix give the spanned directions in column space.
    spans = rows.T @ np.linalg.eigh(rows @ rows.T)[1]
    squares = np.einsum("ij,ij->j", spans, spans)
    spans, squares = (a[..., squares > _NOTHING * squares.max()] for a in (spans, squares))
    sizes = np.sqrt(squares + least)
    spans /= np.sqrt(squares)
    return Coordinates(mean, np.ones(X.shape[1]), spans / sizes, (spans * sizes).T)


def _iterate_tiles(X: Any, weight: Array | None = None) -> Iterator[tuple[Array, Array | None]]:
    """Yield float64 copies of rows, few enough at a time to stay in a cache."""
    size = max(_CACHED // max(X.shape[1], 1), 1)
    for at in range(0, len(X), size):
        own = None if weight is None else weight[at : at + size].astype(np.float64)
        yield X[at : at + size].astype(np.float64), own


def _safe_scale(squares: Array) -> Array:
    """Return square roots, with 1 in place of 0."""
    scale: Array = np.sqrt(squares)
    return np.where(scale > 0, scale, 1.0)
