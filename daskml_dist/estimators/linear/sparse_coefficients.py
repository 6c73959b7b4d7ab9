"""`sparsify` and `densify`: methods of linear models whose coefficients are mostly zero."""

from __future__ import annotations

from typing import Any

from scipy import sparse

__all__ = ["densify", "sparsify"]


def sparsify(self: Any) -> Any:
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
    self.coef_ = sparse.csr_matrix(self.coef_)
    return self


def densify(self: Any) -> Any:
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
