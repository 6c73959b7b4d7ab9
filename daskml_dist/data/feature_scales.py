"""Scales of features: the largest absolute value of each, and the sum of its squares."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.data.blocks import Block
from daskml_dist.errors import DivergedError


@dataclass(frozen=True, eq=False)
class FeatureScales:
    """Scales of the features, computed in one pass.

    Parameters
    ----------
    n_rows : int
    largest, squares : ndarray of float64 of shape (n_features,)
        Largest absolute value, and sum of squares.
    """

    n_rows: int
    largest: NDArray[np.float64]
    squares: NDArray[np.float64]

    def with_intercept(self) -> FeatureScales:
        """Return the scales with one more feature, which is 1 in every row."""
        return FeatureScales(
            self.n_rows, np.append(self.largest, 1.0), np.append(self.squares, self.n_rows)
        )

    @property
    def norm(self) -> float:
        """Return the rows' mean sum of squared features, each feature divided by its maximum."""
        if not np.isfinite(self.squares).all():
            raise DivergedError(
                "The squares of the features overflow. Scale the features (StandardScaler)."
            )
        # The scale of an all-zero feature is arbitrary.
        largest = np.where(self.largest > 0, self.largest, 1.0)
        return float((self.squares / largest**2).sum() / max(self.n_rows, 1))


def compute_block_scales(block: Block) -> FeatureScales:
    """Return the scales of the rows of a block."""
    X = block.X
    if block.n_rows == 0:
        zeros = np.zeros(X.shape[1])
        return FeatureScales(0, zeros, zeros)
    if sparse.issparse(X):
        # Only stored entries: zeros add nothing to a sum of squares.
        squares = np.bincount(X.indices, X.data.astype(np.float64) ** 2, X.shape[1]).astype(float)
        largest = np.asarray(abs(X).max(axis=0).todense()).ravel()
    else:
        squares = np.einsum("ij,ij->j", X, X, dtype=np.float64)
        # max and min, since an array of absolute values would be as large as the block.
        largest = np.maximum(X.max(axis=0), -X.min(axis=0))
    return FeatureScales(block.n_rows, largest.astype(np.float64), squares)


def merge_scales(scales: list[FeatureScales]) -> FeatureScales:
    """Return the scales of all rows, merged from parts of the rows."""
    return reduce(
        lambda a, b: FeatureScales(
            a.n_rows + b.n_rows, np.maximum(a.largest, b.largest), a.squares + b.squares
        ),
        scales,
    )


def join_scales(part_scales: list[FeatureScales]) -> FeatureScales:
    """Return the scales of all features, joined from parts of the columns."""
    largest, squares = (
        np.concatenate([getattr(part, name) for part in part_scales])
        for name in ("largest", "squares")
    )
    return FeatureScales(part_scales[0].n_rows, largest, squares)
