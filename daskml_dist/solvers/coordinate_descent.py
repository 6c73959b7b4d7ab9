"""Lasso and elastic net: coordinate descent on the Gram matrix, by scikit-learn."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskml_dist.solvers.base import Array
from daskml_dist.solvers.least_squares import LeastSquares
from daskml_dist.solvers.reduction import Reduced

__all__ = ["CoordinateDescent"]


#: Message that begins with scikit-learn's words.
_MESSAGE = (
    "Objective did not converge. You might want to increase the number of iterations. The duality "
    "gap is {:.3g}"
)


@dataclass(frozen=True, eq=False, kw_only=True)
class CoordinateDescent(LeastSquares):
    """Half the mean squared error plus ``alpha * (l1_ratio |w|_1 + (1 - l1_ratio) / 2 |w|^2)``.

    scikit-learn's `enet_path` needs of X and y, beside the Gram matrix, only the number of rows
    and the squares of y: the mean problem has one row.

    Parameters
    ----------
    alpha, l1_ratio : float
    n_rows : int
        Rows of the fit.
    max_iter : int
        Cycles over the features at most.
    tol : float
        Dual gap to stop at, as a share of the mean squared target.
    positive : bool
    selection : {"cyclic", "random"}
    seed : int
        Of the order of features that are drawn.

    References
    ----------
    J. Friedman, T. Hastie and R. Tibshirani, "Regularization paths for generalized linear models
    via coordinate descent", Journal of Statistical Software 33, 2010.

    Examples
    --------
    >>> from daskml_dist.solvers import CoordinateDescent
    >>> solver = CoordinateDescent(
    ...     eps=2.2e-16, sparse=False, alpha=0.1, l1_ratio=1.0, n_rows=100, max_iter=1000, tol=1e-4,
    ...     positive=False, selection="cyclic", seed=0,
    ... )
    >>> solver.name, solver.alpha
    ('least_squares', 0.1)
    """

    alpha: float
    l1_ratio: float
    n_rows: int
    max_iter: int
    tol: float
    positive: bool
    selection: str
    seed: int

    @property
    def _l2(self) -> float:
        # Directions that are small beside the penalty are shrunk away, by l1 as by l2.
        return self.alpha * self.n_rows

    def _coef(self, reduced: Reduced, n_rows: int, start: Array) -> tuple[Array, dict[str, Any]]:
        R, z = reduced.R / np.sqrt(n_rows), reduced.z / np.sqrt(n_rows)
        gram, xy = R.T @ R, np.asfortranarray(R.T @ z)
        found = [
            self._path(gram, xy[:, t], squares / n_rows, start[:, t])
            for t, squares in enumerate(reduced.y_squares)
        ]
        coefs, gaps, n_iters = zip(*found, strict=True)
        messages = [_MESSAGE.format(gap) for gap, ok in gaps if not ok]
        return np.array(coefs).T, {
            "n_iter": max(n_iters),
            "converged": not messages,
            "message": "; ".join(messages[:1]),
            "extra": {"dual_gap": [gap for gap, _ in gaps], "n_iter": list(n_iters)},
        }

    def _path(
        self, gram: Array, xy: Array, square: float, start: Array
    ) -> tuple[Array, tuple[float, bool], int]:
        """Coefficients, dual gap and whether it is small enough, and cycles, of one target."""
        # Slow to import, and other solvers do without.
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import enet_path

        with warnings.catch_warnings():
            # The estimator warns, in the user's process.
            warnings.simplefilter("ignore", ConvergenceWarning)
            _, coefs, gaps, n_iters = enet_path(
                np.zeros((1, len(xy)), order="F"),
                np.array([np.sqrt(square)]),
                l1_ratio=self.l1_ratio,
                alphas=[self.alpha],
                precompute=gram,
                Xy=xy,
                coef_init=np.array(start),
                return_n_iter=True,
                positive=self.positive,
                check_input=False,
                max_iter=self.max_iter,
                tol=self.tol,
                selection=self.selection,
                random_state=self.seed,
            )
        gap = float(gaps[0])
        return coefs[:, 0], (gap, gap <= self.tol * square), int(n_iters[0])
