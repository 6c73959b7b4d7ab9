"""Coefficients for many penalties, of a reduced least-squares problem: no row is read again."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from daskml_dist.solvers.base import Array
from daskml_dist.solvers.reduction import Reduced

__all__ = ["ElasticNetPath", "Path", "ridge_path", "with_intercept"]

#: Singular values below this share of the largest are rounding.
_NO_VALUE = 1e-12


def ridge_path(reduced: Reduced, alphas: Array) -> Array:
    """Coefficients of ridge for each penalty of the sum over rows.

    Parameters
    ----------
    reduced : Reduced
    alphas : ndarray of float64 of shape (n_alphas,)

    Returns
    -------
    ndarray of float64 of shape (n_alphas, n_features, n_targets)
    """
    U, values, Vt = linalg.svd(reduced.R, full_matrices=False)
    values = np.where(values > _NO_VALUE * values.max(initial=0.0), values, 0.0)
    shrunk = np.zeros((len(alphas), len(values)))
    np.divide(
        values, values**2 + np.asarray(alphas)[:, None], out=shrunk, where=values[None, :] > 0
    )
    products = U.T @ reduced.z
    return np.asarray(Vt.T @ (shrunk[:, :, None] * products))


def with_intercept(reduced: Reduced, coefs: Array) -> Array:
    """Coefficients of shape (..., n_features, n_targets) and the intercepts below them."""
    intercept = reduced.y_mean - reduced.x_mean @ coefs
    return np.concatenate([coefs, intercept[..., None, :]], axis=-2)


@dataclass(frozen=True)
class Path:
    """Coefficients along a path of penalties.

    Parameters
    ----------
    coefs : ndarray of float64 of shape (n_alphas, n_features)
    gaps : ndarray of float64 of shape (n_alphas,)
        Duality gaps of the mean objective.
    n_iter : list of int
    converged : bool
    """

    coefs: Array
    gaps: Array
    n_iter: list[int]
    converged: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class ElasticNetPath:
    """Coordinate descent on the Gram matrix, from each strength to the next, by scikit-learn.

    Parameters
    ----------
    max_iter : int
        Cycles over the features at most, for each strength.
    tol : float
        Dual gap to stop at, as a share of the mean squared target.
    positive : bool
    selection : {"cyclic", "random"}
    random_state : int, RandomState or None
    """

    max_iter: int
    tol: float
    positive: bool
    selection: str
    random_state: object

    def __call__(self, reduced: Reduced, n_rows: float, alphas: Array, l1_ratio: float) -> Path:
        """Follow the path of a problem of one target."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import enet_path

        R, z = reduced.R / np.sqrt(n_rows), reduced.z[:, 0] / np.sqrt(n_rows)
        square = float(reduced.y_squares[0]) / n_rows
        with warnings.catch_warnings():
            # The estimator warns, once.
            warnings.simplefilter("ignore", ConvergenceWarning)
            # The mean problem has one row, of which the Gram matrix and the squares tell all.
            _, coefs, gaps, n_iter = enet_path(
                np.zeros((1, R.shape[1]), order="F"),
                np.array([np.sqrt(square)]),
                l1_ratio=l1_ratio,
                alphas=alphas,
                precompute=R.T @ R,
                Xy=R.T @ z,
                return_n_iter=True,
                positive=self.positive,
                check_input=False,
                max_iter=self.max_iter,
                tol=self.tol,
                selection=self.selection,
                random_state=self.random_state,
            )
        return Path(coefs.T, gaps, list(n_iter), bool((gaps <= self.tol * square).all()))
