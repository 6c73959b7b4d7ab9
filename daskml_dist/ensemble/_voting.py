"""Voting: the fit of its members to Dask collections."""

from __future__ import annotations

from typing import Any, Self

from sklearn.base import is_classifier
from sklearn.preprocessing import LabelEncoder

from daskml_dist._members import encoded, fit_members, here, labels_of, params_of, taken
from daskml_dist.data.lazy import is_dask
from daskml_dist.ensemble._heterogeneous import Named
from daskml_dist.errors import InvalidParameterError

__all__ = ["Voting"]


class Voting(Named):
    """Mixin of the voting ensembles, put before scikit-learn's class."""

    weights: Any

    def fit(self, X: Any, y: Any, **fit_params: Any) -> Self:
        """Fit every member to all rows.

        Parameters
        ----------
        X : dask Array or DataFrame, or in memory, of shape (n_rows, n_features)
        y : dask Array or Series, or in memory, of shape (n_rows,), or the name of a column of X
        **fit_params
            `sample_weight`, or what scikit-learn's metadata routing sends to members.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
        """
        if not is_dask(X):
            y, fit_params = here(y, fit_params, labels=is_classifier(self))
            found: Self = super().fit(X, y, **fit_params)  # type: ignore[misc]
            return found
        X, y, params = taken(X, y, fit_params)
        named = self._checked_members()
        if self.weights is not None and len(self.weights) != len(self.estimators):
            raise InvalidParameterError(
                f"Number of `estimators` and weights must be equal; got {len(self.weights)} "
                f"weights, {len(self.estimators)} estimators. Give one weight a member."
            )
        given = params_of(self, named, params)
        if is_classifier(self):
            self.le_ = LabelEncoder()
            self.le_.classes_ = self.classes_ = labels_of(y)
            y = encoded(y, self.classes_)
        self._set_members(
            fit_members([(m, X, y, own) for (_, m), own in zip(named, given, strict=True)])
        )
        return self
