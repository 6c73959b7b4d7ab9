"""Scatter of the rows about their mean, in one pass: each block about a point of its own.

References
----------
T. F. Chan, G. H. Golub and R. J. LeVeque, "Algorithms for computing the sample variance: analysis
and recommendations", The American Statistician 37(3), 1983.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from daskml_dist.backends import Backend
from daskml_dist.backends.namespace import arithmetic_dtype, cast, ones, total, zeros
from daskml_dist.errors import DivergedError
from daskml_dist.models.base import BatchRows
from daskml_dist.solvers.base import Array, Statistic, Sums
from daskml_dist.solvers.rows import as_dense, is_sparse, row_tiles

__all__ = ["Scatter", "ScatterOfRows", "scatter_of"]

#: Rows of a block whose mean is near that of all of them.
_SOME = 1024
#: Bytes of a piece of a dense block: with its product it stays in the processor's cache.
_PIECE = 2**21
#: Rows of a piece at least, so that adding its product costs little beside making it.
_FEW_ROWS = 2048


@dataclass(frozen=True, eq=False)
class Scatter(Statistic):
    """Sum of ``outer(x - mean, x - mean)``, then the mean, then the weight of the rows.

    Dense rows are taken from a point of their block's, near its mean, so that no digits are lost
    however far from the origin they lie; what blocks give is merged with their means.

    Parameters
    ----------
    double : bool
        Whether the products of float32 rows are made in float64 too, not only added up in it.
    """

    double: bool
    additive = False
    in_parts: ClassVar[bool] = True

    @property
    def shows_not_finite(self) -> bool:
        """By the squares."""
        return True

    def shape(self, model: Any) -> tuple[int, ...]:
        """A row and a column for each feature; the mean; the weight, and zeros."""
        return model.n_features + 2, model.n_features

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        n, d = rows.X.shape
        own = zeros((d, d + 1), out.dtype, like=out)
        with np.errstate(over="ignore", invalid="ignore"):  # the sum shows it
            shift = self._add_products(rows, own, backend)
            weight = float(n) if rows.weight is None else float(total(rows.weight))
            if not weight:
                return float("nan")
            mean = own[:, d] / weight
            scatter = own[:, :d]
            scatter -= weight * mean[:, None] * mean[None, :]
            _join(out, scatter, mean if shift is None else mean + shift, weight)
        return float("nan")

    def _add_products(self, rows: BatchRows, own: Any, backend: Backend) -> Any:
        """Add products of some rows with themselves and 1; returns what was taken from them."""
        near = None if is_sparse(rows.X) else self._near(rows.X, backend)
        for at in row_tiles(rows.X, backend, cached=_PIECE, at_least=_FEW_ROWS):
            X = backend.rows(rows.X, at)
            X = X if near is None else cast(X, near.dtype)
            weight = None if rows.weight is None else rows.weight[at]
            side = ones((X.shape[0], 1), X.dtype, like=own)
            backend.add_products(X, side, weight, own, near)
        return None if near is None else cast(near, own.dtype)

    def _near(self, X: Any, backend: Backend) -> Any:
        """A point near some of the rows, in the dtype of the products."""
        some = as_dense(backend.rows(X, slice(0, min(_SOME, X.shape[0]))))
        mean = total(some, axis=0) / some.shape[0]
        return mean if self.double else cast(mean, arithmetic_dtype(X))

    def merge(self, total: Array, part: Array) -> None:
        """Add up about the mean of both."""
        if part[-1, 0]:
            _join(total, part[:-2], part[-2], float(part[-1, 0]))


def _join(out: Any, scatter: Any, mean: Any, weight: float) -> None:
    """Bring the scatter of other rows into `out`, in place."""
    before = float(out[-1, 0])
    after = before + weight
    apart = mean - out[-2, :]
    out[:-2, :] += scatter
    if before:
        out[:-2, :] += (before * weight / after) * (apart[:, None] * apart[None, :])
    out[-2, :] += (weight / after) * apart
    out[-1, 0] = after


class ScatterOfRows(NamedTuple):
    """Mean of all rows, of shape (n_features,), and their scatter over the sum of the weights."""

    mean: Array
    covariance: Array


def scatter_of(sums: Sums, *, double: bool) -> ScatterOfRows:
    """Mean and covariance of all rows, in one pass.

    Raises
    ------
    DivergedError
        The squares overflow.
    """
    found = sums(Scatter(double))
    if not np.isfinite(found).all():
        raise DivergedError(
            "The squares of the rows overflow. Scale the features (StandardScaler), or use float64."
        )
    covariance = found[:-2] / found[-1, 0]
    return ScatterOfRows(found[-2].copy(), (covariance + covariance.T) / 2)
