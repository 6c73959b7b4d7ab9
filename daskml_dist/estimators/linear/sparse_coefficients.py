"""Coefficients as a sparse matrix, for models of which most are zero."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.estimators.linear.base import BaseLinear

__all__ = ["SparseCoef"]


class SparseCoef(BaseLinear):
    """Base class of the linear models whose `coef_` may be made sparse."""

    def sparsify(self) -> Self:
        """Make `coef_` a sparse matrix, which takes less memory where most of it is zero.

        Predictions stay as they are, and so does going on by ``partial_fit`` or `warm_start`,
        which makes it dense again.

        Returns
        -------
        self
            With `coef_` of shape (1, n_features) or (n_classes, n_features), in CSR format.

        Raises
        ------
        NotFittedError
        """
        self._check_fitted()
        self.coef_: Any = sparse.csr_matrix(self.coef_)
        return self

    def densify(self) -> Self:
        """Make `coef_` an array again.

        Returns
        -------
        self

        Raises
        ------
        NotFittedError
        """
        self._check_fitted()
        self.coef_ = self._dense_coef()
        return self

    def _dense_coef(self) -> NDArray[Any]:
        if not sparse.issparse(self.coef_):
            return super()._dense_coef()
        dense: NDArray[Any] = np.asarray(self.coef_.toarray())
        return dense if self._classification or len(dense) > 1 else dense[0]
