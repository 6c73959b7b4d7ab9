"""Mixtures of normal distributions: their parameters, the M-step, and terms of the densities.

References
----------
C. M. Bishop, "Pattern Recognition and Machine Learning", Springer 2006, section 9.2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from daskml_dist.errors import DivergedError

Array = NDArray[np.float64]

#: Added to the weight of each component, so that one without rows has a logarithm; scikit-learn's.
_MIN_WEIGHT = 10 * float(np.finfo(np.float64).eps)


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
        return _factor_precisions(self.covariances, self.kind)

    def moved(self, shift: Array) -> Mixture:
        """Return the mixture with its means moved by `shift`."""
        return replace(self, means=self.means + shift)

    def of_moments(self, moments: Array, reg_covar: float) -> Mixture:
        """Return the mixture of the M-step (Bishop, equations 9.24 to 9.26).

        `moments` are a row for each component, weighted by its responsibilities: their sum, and
        first and second moments of the rows about the old means, of shape (k, 1 + d + d * d), or
        (k, 1 + 2 * d) for diagonals.
        """
        k, d = self.means.shape
        weight = moments[:, 0] + _MIN_WEIGHT
        # The step of the means. Second moments about the new means are those about the old ones
        # less the outer product of the step, which loses few digits as steps become short.
        step = moments[:, 1 : 1 + d] / weight[:, None]
        seconds = moments[:, 1 + d :]
        if self.kind in ("full", "tied"):
            seconds = seconds.reshape(k, d, d)
            centred = seconds - weight[:, None, None] * step[:, :, None] * step[:, None, :]
            # Rounding leaves them asymmetric.
            centred = (centred + centred.transpose(0, 2, 1)) / 2
            covariances = (
                centred / weight[:, None, None]
                if self.kind == "full"
                # Tied: pooled over the components.
                else centred.sum(axis=0) / weight.sum()
            )
            covariances[..., range(d), range(d)] += reg_covar
        else:
            covariances = np.maximum(seconds / weight[:, None] - step**2, 0.0) + reg_covar
            if self.kind == "spherical":
                covariances = covariances.mean(axis=1)
        return Mixture(weight / weight.sum(), self.means + step, covariances, self.kind)

    def terms(self, factors: Array | None = None) -> tuple[Array, Array]:
        """Return the constants of the weighted log-densities, and a precision factor a component.

        log(w) + log N(x) is the constant minus ``|(x - mean) @ factor|**2 / 2``.
        """
        k, d = self.means.shape
        factors = self.factors if factors is None else factors
        if self.kind == "tied":
            factors = np.repeat(factors[None], k, axis=0)
        elif self.kind == "spherical":
            factors = np.repeat(factors[:, None], d, axis=1)
        # The determinant of a triangular factor is the product of its diagonal.
        diagonal = factors if factors.ndim == 2 else np.diagonal(factors, axis1=1, axis2=2)
        with np.errstate(divide="ignore"):  # a weight of zero that the user gave
            weights = np.log(self.weights)
        constants = weights + np.log(np.abs(diagonal)).sum(axis=1) - d / 2 * np.log(2 * np.pi)
        return constants, factors

    def packed(self) -> Array:
        """Return all parameters in one array, a row for each component (tied ones repeated)."""
        k = len(self.weights)
        component_covariances = (
            np.broadcast_to(self.covariances, (k, *self.covariances.shape))
            if self.kind == "tied"
            else self.covariances
        )
        return np.column_stack([self.weights, self.means, component_covariances.reshape(k, -1)])

    @classmethod
    def of_packed(cls, packed: Array, kind: str, d: int) -> Mixture:
        """Return the mixture of an array that :meth:`packed` made."""
        k = len(packed)
        shapes = {"full": (k, d, d), "tied": (d, d), "diag": (k, d), "spherical": (k,)}
        flat_covariances = packed[:1, 1 + d :] if kind == "tied" else packed[:, 1 + d :]
        covariances = flat_covariances.reshape(shapes[kind]).copy()
        return cls(packed[:, 0].copy(), packed[:, 1 : 1 + d].copy(), covariances, kind)


def _factor_precisions(covariances: Array, kind: str) -> Array:
    """Return upper triangular factors F of the precisions ``F @ F.T``; of variances 1 / roots."""
    if kind == "full":
        return np.array(
            [
                _factor_precision(covariance, f"component {c}")
                for c, covariance in enumerate(covariances)
            ]
        )
    if kind == "tied":
        return _factor_precision(covariances, "all components together")
    low = covariances.reshape(len(covariances), -1).min(axis=1)
    # Not `low <= 0`, which NaN would pass.
    if not (low > 0).all():
        raise _make_degenerate_error(f"component {int((~(low > 0)).argmax())}")
    return np.asarray(1 / np.sqrt(covariances))


def _factor_precision(covariance: Array, component_name: str) -> Array:
    """Return the precision factor of one covariance, by its Cholesky factor."""
    # C = L L.T, so the precision is L^-T L^-1, and F = L^-T is upper triangular.
    try:
        root = linalg.cholesky(covariance, lower=True)
    except (linalg.LinAlgError, ValueError) as error:
        raise _make_degenerate_error(component_name) from error
    unit = np.eye(len(covariance))
    return np.asarray(linalg.solve_triangular(root, unit, lower=True).T)


def _make_degenerate_error(component_name: str) -> DivergedError:
    """Return the error for a covariance that is not positive definite."""
    return DivergedError(
        "Fitting the mixture model failed because some components have ill-defined empirical "
        "covariance (for instance caused by singleton or collapsed samples). Try to decrease the "
        f"number of components, increase reg_covar, or scale the input data. It is that of "
        f"{component_name}."
    )
