"""Base classes of estimators fitted by a round solver to rows without a target."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin

from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.estimators.transformer import LazyTransformerMixin


class BaseUnlabelled(BaseRounds):
    """Base class of estimators without a target: clusterings, mixtures, decompositions."""

    def fit(self, X: Any, y: None = None, sample_weight: Any = None, *, client: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X, sample_weight, client
            As in :meth:`daskml_dist.linear_model.SGDClassifier.fit`. A weight of k equals a row
            repeated k times.
        y : ignored

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
            Before any pass, naming the remedy (NaN and infinity: during the first pass).
        DivergedError
            The result is not finite, or has degenerated; the error names the remedy.
        TrainingError
            When the fit cannot continue.
        """
        self._fit(X, None, sample_weight, client, reset=not self._continues_last_fit)
        self._set_of_rows(X)
        return self

    @property
    def _continues_last_fit(self) -> bool:
        """Return whether a fit continues the last one (`warm_start`)."""
        return False

    def _set_of_rows(self, X: Any) -> None:
        """Set fitted attributes with a value for each row of the fit, such as `labels_`."""

    def _sum_and_weight(self, X: Any, sample_weight: Any) -> tuple[float, float]:
        """Return the weighted sum of the raw predictions of rows, and the sum of the weights."""
        self._check_fitted(X)
        total, weight = self._sum_over_blocks(_sum_weighted, X, None, sample_weight)
        return float(total), float(weight)


class BaseUnlabelledTransformer(
    ClassNamePrefixFeaturesOutMixin, LazyTransformerMixin, BaseUnlabelled
):
    """Base class of such estimators that also transform rows."""

    def fit_transform(
        self, X: Any, y: None = None, sample_weight: Any = None, *, client: Any = None
    ) -> Any:
        """Fit to rows, and return them transformed; parameters as in :meth:`fit`."""
        return self.fit(X, None, sample_weight, client=client).transform(X)


def score_mean_log_likelihood(
    self: Any, X: Any, y: None = None, sample_weight: Any = None
) -> float:
    """Return the weighted mean of the log-likelihoods of the rows.

    Parameters
    ----------
    X : as in :meth:`fit`
    y : ignored
    sample_weight : array-like, dask Array or dask Series of shape (n_rows,), or None
    """
    # The method `score` of estimators whose raw predictions are log-likelihoods.
    total, weight = self._sum_and_weight(X, sample_weight)
    return float(total / weight)


def _sum_weighted(
    y: None, values: NDArray[Any], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the weighted sum of one value for each row, and the sum of the weights."""
    return np.array([weight @ values, weight.sum()])
