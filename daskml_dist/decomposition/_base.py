"""Base class of estimators that project rows on components, and their functions of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.estimators.unsupervised import BaseUnlabelledTransformer
from daskml_dist.solvers import Solution

__all__ = ["Components", "Projected", "result_dtype"]

Array = NDArray[np.float64]


class Components(BaseUnlabelledTransformer):
    """Base class of estimators that project rows on ``components_``.

    Attributes
    ----------
    components_ : ndarray of float64 of shape (n_components, n_features)
    """

    components_: Array

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def _set_n_iter(self, solution: Solution) -> None:
        """Nothing: components are no course of iterations."""

    def transform(self, X: Any) -> Any:
        """Project rows on the components.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows, n_components)
            Of float32 where X is; else of float64, also for a list of delayed blocks, whose dtype
            is not known before they are computed.
        """
        self._check_fitted(X)
        return self._map_rows(self._projection(), X, result_dtype(X), self._n_features_out)

    def inverse_transform(self, X: Any) -> Any:
        """Rows with given projections.

        Parameters
        ----------
        X : as :meth:`transform` returns

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows, n_features)
        """
        self._check_fitted()
        width, shape = self.n_features_in_, (self._n_features_out,)
        return self._map_rows(self._expansion(), X, result_dtype(X), width, row_shape=shape)

    def _projection(self) -> Callable[[Any], NDArray[Any]]:
        return Projected(self.components_.T)

    def _expansion(self) -> Callable[[Any], NDArray[Any]]:
        return Projected(self.components_)

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        return self._projection()


@dataclass(frozen=True, eq=False)
class Projected:
    """Rows, less a point, times a matrix, plus another point.

    Parameters
    ----------
    matrix : ndarray of shape (n_columns, m)
    before, after : ndarrays of shape (n_columns,) and (m,), or None
    """

    matrix: Array
    before: Array | None = None
    after: Array | None = None

    def __call__(self, X: Any) -> NDArray[Any]:
        """The product, in the rows' dtype."""
        matrix = self.matrix.astype(X.dtype)
        if self.before is not None and isinstance(X, np.ndarray):
            X = X - self.before.astype(X.dtype)
        found = np.asarray(X @ matrix)
        if self.before is not None and not isinstance(X, np.ndarray):
            found = found - (self.before @ self.matrix).astype(X.dtype)
        return found if self.after is None else found + self.after.astype(X.dtype)


def result_dtype(X: Any) -> np.dtype[Any]:
    """Dtype of what is made of rows: float32 where they are, else float64."""
    kinds = {str(kind) for kind in X.dtypes} if hasattr(X, "dtypes") else {str(_dtype_of(X))}
    return np.dtype(np.float32 if kinds == {"float32"} else np.float64)


def _dtype_of(X: Any) -> Any:
    return getattr(X, "dtype", np.float64)
