"""Least squares: the rows are reduced to a few, and SciPy solves the problem of these."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg, optimize

from daskml_dist.errors import TrainingError
from daskml_dist.solvers.base import Array, Solution, Solver, Sums, start_of
from daskml_dist.solvers.reduction import MAX_LOOKS, Reduced, reduce_rows

__all__ = ["LeastSquares", "OrdinaryLeastSquares", "RidgeLeastSquares", "non_negative"]

#: Singular values below this share of the largest are rounding.
_NO_VALUE = 1e-12
#: Changes of the active set at most, times the features.
_MANY = 30


@dataclass(frozen=True, eq=False, kw_only=True)
class LeastSquares(Solver):
    """Solves a problem that knows the rows by their second moments alone.

    Parameters
    ----------
    eps : float
        Relative precision of the products of dense rows: that of their dtype; of sparse rows:
        float64's.
    sparse : bool
        Whether there are sparse rows, which another look makes dense, some at a time.
    """

    name = "least_squares"
    eps: float
    sparse: bool

    @property
    def max_passes(self) -> int:
        """One is made, unless too few digits are left."""
        return MAX_LOOKS

    @property
    def _l2(self) -> float:
        """Penalty of the sum over rows, beside which small directions need few digits."""
        return 0.0

    @property
    def _cut(self) -> float:
        """Share of the largest singular value below which the others count as zero."""
        return 0.0

    @abstractmethod
    def _coef(self, reduced: Reduced, n_rows: int, start: Array) -> tuple[Array, dict[str, Any]]:
        """Coefficients of shape (n_features, n_targets), and other fields of the solution."""

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Reduce the rows and solve."""
        reduced = reduce_rows(
            model,
            sums,
            eps=self.eps,
            l2=self._l2,
            cut=self._cut,
            dear=self.sparse,
        )
        return self.of_reduced(model, reduced, sums.n_rows, start)

    def of_reduced(
        self, model: Any, reduced: Reduced, n_rows: int, start: Array | None = None
    ) -> Solution:
        """Solve a problem that is reduced already."""
        coef, facts = self._coef(reduced, n_rows, start_of(model, start)[: model.n_features])
        if model.fit_intercept:
            coef = np.vstack([coef, reduced.y_mean - reduced.x_mean @ coef])
        return Solution(coef, **facts)


@dataclass(frozen=True, eq=False, kw_only=True)
class OrdinaryLeastSquares(LeastSquares):
    """The least squares of least norm.

    Parameters
    ----------
    tol : float
        Singular values below this share of the largest count as zero.
    positive : bool
        No coefficient is negative.
    mean_weight : float
        What the rows' weights were divided by to have mean 1.

    Examples
    --------
    >>> from daskml_dist.solvers import OrdinaryLeastSquares
    >>> solver = OrdinaryLeastSquares(
    ...     eps=2.2e-16, sparse=False, tol=1e-6, positive=False, mean_weight=1.0
    ... )
    >>> solver.name, solver.tol
    ('least_squares', 1e-06)
    """

    tol: float
    positive: bool
    mean_weight: float

    @property
    def _cut(self) -> float:
        return self.tol

    def _coef(self, reduced: Reduced, n_rows: int, start: Array) -> tuple[Array, dict[str, Any]]:
        if self.positive:
            coef = non_negative(_told_columns(reduced, n_rows), reduced.z)
            return coef, {"n_iter": reduced.n_looks}
        n_values = min(n_rows, len(start))
        singular = np.zeros(n_values)
        coef, rank = np.zeros(start.shape), 0
        if len(reduced.R):
            coef, _, rank, values = linalg.lstsq(reduced.R, reduced.z, cond=self.tol)
            singular[: len(values)] = values[:n_values]
        extra = {"rank": int(rank), "singular": singular * np.sqrt(self.mean_weight)}
        # scikit-learn knows neither of sparse rows; here small values would have too few digits.
        return coef, {"n_iter": reduced.n_looks, "extra": {} if self.sparse else extra}


@dataclass(frozen=True, eq=False, kw_only=True)
class RidgeLeastSquares(LeastSquares):
    """Least squares with a squared-norm penalty.

    Parameters
    ----------
    alpha : ndarray of float64 of shape (n_targets,)
        Penalty of the sum over rows, for each target.
    method : {"auto", "cholesky", "svd"}
        ``"auto"``: Cholesky, unless the rows had to be looked at again.
    positive : bool
        No coefficient is negative.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.solvers import RidgeLeastSquares
    >>> solver = RidgeLeastSquares(
    ...     eps=2.2e-16, sparse=False, alpha=np.array([1.0]), method="cholesky", positive=False
    ... )
    >>> solver.name, solver.method
    ('least_squares', 'cholesky')
    """

    alpha: Array
    method: str
    positive: bool

    @property
    def _l2(self) -> float:
        return float(self.alpha.min())

    @property
    def _cut(self) -> float:
        return 0.0 if self._l2 else _NO_VALUE

    def _coef(self, reduced: Reduced, n_rows: int, start: Array) -> tuple[Array, dict[str, Any]]:
        used, coef = self._solve(reduced, n_rows)
        return coef, {"n_iter": reduced.n_looks, "extra": {"solver": used}}

    def _solve(self, reduced: Reduced, n_rows: int) -> tuple[str, Array]:
        """The method used, and the coefficients."""
        if self.positive:
            R, targets = _told_columns(reduced, n_rows), range(len(self.alpha))
            return "lbfgs", np.hstack([self._non_negative(R, reduced.z, t) for t in targets])
        if self.method == "cholesky" or (self.method == "auto" and reduced.n_looks == 1):
            with suppress(linalg.LinAlgError):
                return "cholesky", self._cholesky(reduced)
        return "svd", self._svd(reduced)

    def _svd(self, reduced: Reduced) -> Array:
        U, values, Vt = linalg.svd(reduced.R, full_matrices=False)
        values = np.where(values > _NO_VALUE * values.max(initial=0.0), values, 0.0)[:, None]
        out = np.zeros((len(values), len(self.alpha)))
        shrunk = np.divide(values, values**2 + self.alpha, out=out, where=values > 0)
        return np.asarray(Vt.T @ (shrunk * (U.T @ reduced.z)))

    def _cholesky(self, reduced: Reduced) -> Array:
        gram, xy = reduced.R.T @ reduced.R, reduced.R.T @ reduced.z
        coef = np.empty(xy.shape)
        for alpha in np.unique(self.alpha):
            at = self.alpha == alpha
            penalised = gram + alpha * np.eye(len(gram))
            coef[:, at] = linalg.cho_solve(linalg.cho_factor(penalised), xy[:, at])
        return coef

    def _non_negative(self, R: Array, z: Array, target: int) -> Array:
        """A penalty is a few more rows."""
        d = R.shape[1]
        rows = np.vstack([R, np.sqrt(self.alpha[target]) * np.eye(d)])
        z = np.vstack([z[:, [target]], np.zeros((d, 1))])
        return non_negative(rows, z)


def _told_columns(reduced: Reduced, n_rows: int) -> Array:
    """`R`, with zeros for features of which centring has left rounding alone.

    A constant feature's column is some 1e-16, and a coefficient of 1e13 would fit it to the rest.
    """
    left = np.einsum("ij,ij->j", reduced.R, reduced.R)
    told = left > _NO_VALUE**2 * (left + n_rows * reduced.x_mean**2)
    return np.where(told, reduced.R, 0.0)


def non_negative(R: Array, z: Array) -> Array:
    """Least squares with no negative coefficient, of each column of `z`.

    Raises
    ------
    TrainingError
        The active set does not settle.
    """
    if not R.any():  # no row tells anything; SciPy's result is then what was in memory
        return np.zeros((R.shape[1], z.shape[1]))
    try:
        found = [optimize.nnls(R, column, maxiter=_MANY * R.shape[1])[0] for column in z.T]
    except RuntimeError as error:
        raise TrainingError(
            f"Non-negative least squares failed: {error}. Scale the features (StandardScaler), or "
            "drop some that nearly repeat others."
        ) from error
    return np.array(found).T
