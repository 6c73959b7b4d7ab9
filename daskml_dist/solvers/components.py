"""Principal components: the eigenvectors of the rows' covariance.

References
----------
I. T. Jolliffe, "Principal component analysis", 2nd edition, Springer 2002.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg

from daskml_dist.solvers.base import Array, Solution, Solver, Sums
from daskml_dist.solvers.scatter import scatter_of

__all__ = ["CovarianceEigen", "signed"]

#: Features up to which all eigenvectors are found, since it is quick.
_QUICK = 500


@dataclass(frozen=True, eq=False)
class CovarianceEigen(Solver):
    """Eigenvectors of the covariance, by LAPACK; the covariance is one sum over all rows.

    Parameters
    ----------
    n_components : int or None
        The largest ones that are asked for; None: all.
    double : bool
        Whether products of float32 rows are made in float64.
    centred : bool, default=True
        Whether the rows' mean is taken from them; else eigenvectors are those of their products.
    """

    name = "covariance_eigh"
    n_components: int | None
    double: bool
    centred: bool = True

    @property
    def max_passes(self) -> int:
        """One."""
        return 1

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Find them.

        Returns
        -------
        Solution
            With the eigenvectors in rows, by falling eigenvalues (the "values"); the "mean" of the
            rows; the "total" of all eigenvalues, and that about the mean, the "variance".
        """
        mean, covariance = scatter_of(sums, double=self.double)
        variance = float(np.trace(covariance))
        if not self.centred:
            covariance += mean[:, None] * mean[None, :]
        d, at = len(covariance), None
        if self.n_components is not None and d > _QUICK:
            at = [d - max(self.n_components, 1), d - 1]
        trace = float(np.trace(covariance))
        values, vectors = linalg.eigh(
            covariance, subset_by_index=at, overwrite_a=True, check_finite=False
        )
        values = np.maximum(values[::-1], 0.0)
        extra = {"values": values, "mean": mean, "total": trace, "variance": variance}
        return Solution(signed(vectors.T[::-1]), extra=extra)


def signed(vectors: Array) -> Array:
    """Vectors in rows, each turned so that its largest component is positive, as scikit-learn's."""
    largest = vectors[np.arange(len(vectors)), np.abs(vectors).argmax(axis=1)]
    return vectors * np.where(largest < 0, -1.0, 1.0)[:, None]
