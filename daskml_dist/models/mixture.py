"""Mixtures of normal distributions: their parameters, and what M-steps make of sums."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from daskml_dist.errors import DivergedError

Array = NDArray[np.float64]

#: Weight of a component without rows, so that no logarithm is infinite; scikit-learn's.
_LEAST = 10 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Mixture:
    """Normal distributions with weights.

    Parameters
    ----------
    weights : ndarray of shape (k,)
    means : ndarray of shape (k, n_features)
    covariances : ndarray
        Of shape (k, d, d) for ``"full"``, (d, d) for ``"tied"``, (k, d) for ``"diag"``, (k,) for
        ``"spherical"``.
    kind : {"full", "tied", "diag", "spherical"}
    """

    weights: Array
    means: Array
    covariances: Array
    kind: str

    @property
    def factors(self) -> Array:
        """Factors F of the precisions ``F @ F.T``, in the shape of the covariances."""
        return precision_factors(self.covariances, self.kind)

    def moved(self, by: Array) -> Mixture:
        """Return the mixture with its means moved by `by`."""
        return replace(self, means=self.means + by)

    def of_moments(self, moments: Array, reg_covar: float) -> Mixture:
        """Return the mixture of the M-step, given moments of the responsibilities."""
        k, d = self.means.shape
        # Moments are about the old means: `apart` is the step of the means, and second moments lose
        # its outer product.
        weight = moments[:, 0] + _LEAST
        apart = moments[:, 1 : 1 + d] / weight[:, None]
        seconds = moments[:, 1 + d :]
        if self.kind in ("full", "tied"):
            seconds = seconds.reshape(k, d, d)
            centred = seconds - weight[:, None, None] * apart[:, :, None] * apart[:, None, :]
            centred = (centred + centred.transpose(0, 2, 1)) / 2
            covariances = (
                centred / weight[:, None, None] if self.kind == "full" else centred.sum(axis=0)
            )
            covariances = covariances if self.kind == "full" else covariances / weight.sum()
            covariances[..., range(d), range(d)] += reg_covar
        else:
            covariances = np.maximum(seconds / weight[:, None] - apart**2, 0.0) + reg_covar
            if self.kind == "spherical":
                covariances = covariances.mean(axis=1)
        return Mixture(weight / weight.sum(), self.means + apart, covariances, self.kind)

    def terms(self, factors: Array | None = None) -> tuple[Array, Array]:
        """Return constants of the weighted log-densities, and precision factors for each
        component.
        """
        k, d = self.means.shape
        factors = expand_factors(self.factors if factors is None else factors, self.kind, k, d)
        diagonal = factors if factors.ndim == 2 else np.diagonal(factors, axis1=1, axis2=2)
        with np.errstate(divide="ignore"):  # a weight of zero that the user gave
            weights = np.log(self.weights)
        constants = weights + np.log(np.abs(diagonal)).sum(axis=1) - d / 2 * np.log(2 * np.pi)
        return constants, factors

    def packed(self) -> Array:
        """Return all parameters in one array, a row for each component."""
        k = len(self.weights)
        of_each = (
            np.broadcast_to(self.covariances, (k, *self.covariances.shape))
            if self.kind == "tied"
            else self.covariances
        )
        return np.column_stack([self.weights, self.means, of_each.reshape(k, -1)])

    @classmethod
    def of_packed(cls, packed: Array, kind: str, d: int) -> Mixture:
        """Undo :meth:`packed`."""
        k = len(packed)
        shapes = {"full": (k, d, d), "tied": (d, d), "diag": (k, d), "spherical": (k,)}
        found = packed[:1, 1 + d :] if kind == "tied" else packed[:, 1 + d :]
        covariances = found.reshape(shapes[kind]).copy()
        return cls(packed[:, 0].copy(), packed[:, 1 : 1 + d].copy(), covariances, kind)


def precision_factors(covariances: Array, kind: str) -> Array:
    """Return upper triangular factors F of the precisions ``F @ F.T``.

    Of variances the inverse roots.
    """
    if kind == "full":
        return np.array(
            [_factor_precision(one, f"component {c}") for c, one in enumerate(covariances)]
        )
    if kind == "tied":
        return _factor_precision(covariances, "all components together")
    low = covariances.reshape(len(covariances), -1).min(axis=1)
    if not (low > 0).all():
        raise _degenerate_error(f"component {int((~(low > 0)).argmax())}")
    return np.asarray(1 / np.sqrt(covariances))


def _factor_precision(covariance: Array, of: str) -> Array:
    """Return the precision factor of one covariance, by its Cholesky factor."""
    try:
        root = linalg.cholesky(covariance, lower=True)
    except (linalg.LinAlgError, ValueError) as error:
        raise _degenerate_error(of) from error
    unit = np.eye(len(covariance))
    return np.asarray(linalg.solve_triangular(root, unit, lower=True).T)


def _degenerate_error(of: str) -> DivergedError:
    """Return the error for a covariance that is not positive definite."""
    return DivergedError(
        "Fitting the mixture model failed because some components have ill-defined empirical "
        "covariance (for instance caused by singleton or collapsed samples). Try to decrease the "
        f"number of components, increase reg_covar, or scale the input data. It is that of {of}."
    )


def expand_factors(factors: Array, kind: str, k: int, d: int) -> Array:
    """Return factors for each component, of shape (k, d, d), or (k, d) for diagonals."""
    if kind == "tied":
        return np.repeat(factors[None], k, axis=0)
    return np.repeat(factors[:, None], d, axis=1) if kind == "spherical" else factors
