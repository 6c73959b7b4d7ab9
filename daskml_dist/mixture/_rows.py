"""Functions of rows and a mixture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from daskml_dist.backends.mixture import log_densities
from daskml_dist.models.mixture import Mixture

__all__ = ["OfMixture", "labels", "likelihoods", "shares"]


@dataclass(frozen=True, eq=False)
class OfMixture:
    """Function of rows by their log-densities in each component.

    Parameters
    ----------
    shift : ndarray of shape (n_features,)
        What is taken from rows and means.
    constants, means, factors : ndarrays
    then : callable
        Takes log-densities of shape (n, k).
    """

    shift: NDArray[np.float64]
    constants: NDArray[np.float64]
    means: NDArray[np.float64]
    factors: NDArray[np.float64]
    then: Callable[[NDArray[Any]], NDArray[Any]]

    @classmethod
    def of(
        cls, mixture: Mixture, factors: NDArray[Any], then: Callable[[NDArray[Any]], NDArray[Any]]
    ) -> OfMixture:
        """The function of a mixture, with the factors of its precisions."""
        shift = mixture.means.mean(axis=0).astype(np.float32).astype(np.float64)
        constants, factors = mixture.terms(factors)
        return cls(shift, constants, mixture.means - shift, factors, then)

    def __call__(self, X: Any) -> NDArray[Any]:
        """Answer for each row."""
        terms = (part.astype(X.dtype) for part in (self.constants, self.means, self.factors))
        near = (X if isinstance(X, np.ndarray) else X.toarray()) - self.shift.astype(X.dtype)
        return self.then(log_densities(near, *terms).astype(np.float64))


def labels(found: NDArray[Any]) -> NDArray[Any]:
    """Number of the most probable component of each row."""
    return np.asarray(found.argmax(axis=1))


def likelihoods(found: NDArray[Any]) -> NDArray[Any]:
    """Log-likelihood of each row."""
    return np.asarray(logsumexp(found, axis=1))


def shares(found: NDArray[Any]) -> NDArray[Any]:
    """Probability of each component at each row."""
    return np.asarray(np.exp(found - logsumexp(found, axis=1, keepdims=True)))
