"""Base class of the naive Bayes classifiers: one pass, probabilities of the classes."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from daskml_dist.errors import InvalidParameterError
from daskml_dist.estimators.classifier import BaseClassifier
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.inference.row_mapping import write_in_place
from daskml_dist.models.naive_bayes import RowsByClass
from daskml_dist.solvers import Solution, Statistic
from daskml_dist.solvers.base import SinglePassSolver
from daskml_dist.training.plan import DatasetInfo

__all__ = ["BaseNB", "check_priors"]

Array = NDArray[np.float64]


class BaseNB(BaseClassifier, BaseRounds):
    """One pass over the rows, and what it counted kept, so that more rows may follow."""

    _min_classes = 1
    #: Whether a second ``partial_fit`` with the same rows counts them twice.
    _adds_up_rows = True
    #: What all rows so far gave, in the users' own weights.
    _sums: Array

    @abstractmethod
    def _statistic(self) -> Statistic:
        """Statistic that the one pass sums."""

    @abstractmethod
    def _unscaled(self, total: Array, scale: float | None) -> Array:
        """The sums in the users' own weights; they were made with `scale` times these."""

    @abstractmethod
    def _update(self, total: Array) -> None:
        """Make the fitted attributes of the sums of all rows so far."""

    def _clear_fitted(self) -> None:
        self.__dict__.pop("_sums", None)

    def _set_n_iter(self, solution: Solution) -> None:
        """Nothing: it is one pass."""

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        classes: Any = None,
        sample_weight: Any = None,
        *,
        client: Any = None,
    ) -> Self:
        """Count more rows; after the last ones, the result is that of one fit of them all.

        Parameters
        ----------
        X, y, sample_weight, client
            As in :meth:`fit`.
        classes : array-like of shape (n_classes,), optional
            All labels that will ever come; needed in the first call.

        Returns
        -------
        self
        """
        first = not hasattr(self, "_sums")
        classes = self._all_classes(classes, first)
        self._fit(X, y, sample_weight, client, classes=classes, reset=first)
        return self

    def _problem(self, rows: DatasetInfo) -> tuple[RowsByClass, SinglePassSolver]:
        assert rows.classes is not None
        n_features, n_classes = rows.survey.n_features, len(rows.classes)
        self._check_sizes(n_features, n_classes)
        return RowsByClass(n_features, n_classes), SinglePassSolver(self._statistic())

    def _check_sizes(self, n_features: int, n_classes: int) -> None:
        """Check the parameters that have an entry a class or a feature."""

    def _set_fitted(self, solution: Solution, model: RowsByClass, rows: DatasetInfo) -> None:
        total = self._unscaled(solution.w.copy(), rows.weight_scale)
        if hasattr(self, "_sums"):
            self._statistic().merge(total, self._sums)
        assert rows.classes is not None
        self.classes_ = rows.classes
        self.n_features_in_ = model.n_features
        self._update(total)
        self._sums = total

    # -- prediction ----------------------------------------------------------------------------

    def predict_joint_log_proba(self, X: Any) -> Any:
        """``log P(x, c)`` of each row and class, as far as the model knows.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows, n_classes)
        """
        return self._map_classes(np.asarray, X)

    def predict_log_proba(self, X: Any) -> Any:
        """Logarithm of :meth:`predict_proba`, of the same shape."""
        return self._map_classes(_log_proba, X)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes, as :meth:`predict_joint_log_proba` with sums of 1 a row."""
        return self._map_classes(_proba, X)

    def _map_classes(self, function: Any, X: Any) -> Any:
        self._check_fitted(X)
        return self._map_raw_predictions(
            write_in_place(function), X, np.float64, len(self.classes_)
        )


def _log_proba(raw: Array) -> Array:
    return np.asarray(log_softmax(raw, axis=1))


def _proba(raw: Array) -> Array:
    # As `scipy.special.softmax`, to the bit, which takes three times as long for a row.
    odds: Array = raw - np.maximum.reduce(raw, axis=1, keepdims=True)
    np.exp(odds, out=odds)
    odds /= np.add.reduce(odds, axis=1, keepdims=True)
    return odds


def check_priors(name: str, priors: Any, n_classes: int | None = None) -> Array:
    """Check probabilities of the classes, and that there are `n_classes`."""
    try:
        values = np.asarray([] if priors is None else priors, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidParameterError(f"{name}={priors!r}: use a list of numbers.") from error
    if not (values >= 0).all() or values.ndim != 1:
        raise InvalidParameterError(
            f"Priors must be non-negative: {name}={priors!r}. Use a list of numbers >= 0."
        )
    if priors is not None and n_classes not in (None, len(values)):
        raise InvalidParameterError(
            f"Number of priors must match number of classes: {name} has {len(values)} entries, and "
            f"there are {n_classes} classes."
        )
    return values
