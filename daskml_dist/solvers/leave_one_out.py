r"""Ridge for several penalties, and what each predicts of a row that it was fitted without.

With :math:`H = (X^T S X + \alpha I)^{-1}` of centred rows and weights `S`, the error that a row's
absence leaves is its residual over ``1 - h``, where :math:`h_i = s_i x_i^T H x_i + s_i / \sum s` is
its leverage (R. M. Rifkin and R. A. Lippert, "Notes on regularized least squares", MIT 2007). So it
takes one look at the rows for the moments, and one for all rows' errors under all penalties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg

from daskml_dist.backends import Backend
from daskml_dist.backends.namespace import cast, namespace, total
from daskml_dist.models.base import BatchRows
from daskml_dist.solvers.base import Array, Solution, Solver, Statistic, Sums
from daskml_dist.solvers.paths import ridge_path, with_intercept
from daskml_dist.solvers.reduction import MAX_LOOKS, Reduced, reduce_rows
from daskml_dist.solvers.rows import as_dense, row_tiles

__all__ = ["LeaveOneOutRidge", "LeftOut"]

#: Singular values below this share of the largest are rounding.
_NO_VALUE = 1e-12


@dataclass(frozen=True, eq=False)
class LeftOut(Statistic):
    """Squared errors of ridge at rows that it was fitted without, for each penalty and target.

    Summed with the rows' weights.

    Parameters
    ----------
    w : ndarray of shape (n_alphas, n_features + fit_intercept, n_targets)
    x_mean : ndarray of shape (n_features,)
    basis : ndarray of shape (n_features, rank)
        Directions of the rows' variance.
    shrunk : ndarray of shape (n_alphas, rank)
        Inverse of the penalised squares along them.
    share : float
        Leverage of a row of weight 1 by the intercept.
    """

    w: Array
    x_mean: Array
    basis: Array
    shrunk: Array
    share: float

    @classmethod
    def of(cls, reduced: Reduced, alphas: Array, fit_intercept: bool, n_rows: float) -> LeftOut:
        """Of a reduced problem, and penalties of the sum over rows."""
        coefs = ridge_path(reduced, alphas)
        w = with_intercept(reduced, coefs) if fit_intercept else coefs
        _, values, Vt = linalg.svd(reduced.R, full_matrices=False)
        kept = values > _NO_VALUE * values.max(initial=0.0)
        shrunk = 1 / (values[kept] ** 2 + np.asarray(alphas)[:, None])
        share = 1 / n_rows if fit_intercept else 0.0
        return cls(w, reduced.x_mean, Vt[kept].T, shrunk, share)

    def shape(self, model: Any) -> tuple[int, ...]:
        """One for each penalty and target."""
        return self.w.shape[0], self.w.shape[2]

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Add the squared errors of some rows, a tile at a time."""
        for at in row_tiles(rows.X, backend, dense=True):
            part = rows.part(at, backend)
            errors = self.errors(part.X, part.y, part.weight, backend)
            errors *= errors
            if part.weight is not None:
                errors *= cast(part.weight, errors.dtype)[:, None, None]
            out += total(errors, axis=0)
        return float("nan")

    def errors(self, X: Any, y: Any, weight: Any | None, backend: Backend) -> Any:
        """Errors of rows, of shape (n, n_alphas, n_targets), in float64."""
        lying = backend.to_device
        rows, (n_alphas, n_rows, n_targets) = as_dense(X), self.w.shape
        xp, d = namespace(rows), rows.shape[1]
        turned = (rows - lying(self.x_mean)) @ lying(self.basis)
        leverage = (turned * turned) @ lying(self.shrunk.T.copy()) + self.share
        if weight is not None:
            leverage *= cast(weight, xp.float64)[:, None]
        flat = np.moveaxis(self.w, 0, 1).reshape(n_rows, -1)
        raw = rows @ lying(flat[:d].copy())
        if n_rows > d:
            raw += lying(flat[d].copy())
        raw = xp.reshape(raw, (rows.shape[0], n_alphas, n_targets))
        residual = cast(xp.reshape(y, (rows.shape[0], 1, n_targets)), xp.float64) - raw
        return residual / (1 - leverage)[:, :, None]


@dataclass(frozen=True, eq=False, kw_only=True)
class LeaveOneOutRidge(Solver):
    """Ridge for several penalties.

    The solution has no parameters of its own: ``extra["left_out"]`` has a :class:`LeftOut`, and
    ``extra["squares"]`` the sums of squared errors, of shape (n_alphas, n_targets).

    Parameters
    ----------
    alphas : ndarray of float64 of shape (n_alphas,)
        Penalties of the sum over rows.
    eps : float
        Relative precision of the products of rows.
    sparse : bool
        Whether there are sparse rows.
    """

    alphas: Array
    eps: float
    sparse: bool

    name = "leave_one_out"

    @property
    def max_passes(self) -> int:
        """Looks at the rows, and one more."""
        return MAX_LOOKS + 1

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Reduce the rows, and leave each out."""
        reduced = reduce_rows(
            model, sums, eps=self.eps, l2=float(self.alphas.min()), cut=0.0, dear=self.sparse
        )
        n_rows = float(sums.n_rows)
        left_out = LeftOut.of(reduced, self.alphas, model.fit_intercept, n_rows)
        squares = np.array(sums(left_out))
        extra = {"left_out": left_out, "squares": squares}
        return Solution(left_out.w[0], reduced.n_looks + 1, extra=extra)
