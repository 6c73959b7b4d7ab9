"""The objective of penalised logistic regression, and its minimum by scikit-learn."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

__all__ = ["Objective", "made_rows"]


def made_rows(n_rows: int, n_features: int = 100) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return rows of a logistic model; features of small scale are learned late."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, n_features)) / np.sqrt(1 + np.arange(n_features) / 4)
    raw = X @ rng.normal(scale=0.5, size=n_features)
    return X.astype(np.float32), (raw + rng.logistic(size=n_rows) > 0).astype(np.int64)


class Objective:
    """Mean logistic loss plus ``alpha / 2`` times the squared norm of the coefficients.

    Parameters
    ----------
    X : ndarray or CSR matrix of shape (n, n_features)
    y : ndarray of shape (n,)
        Labels 0 and 1.
    alpha : float
    """

    def __init__(self, X: Any, y: NDArray[np.int64], alpha: float) -> None:
        self.X = X
        self.y = y
        self.alpha = alpha

    @property
    def C(self) -> float:
        """Return the same strength as the parameter of scikit-learn's ``LogisticRegression``."""
        return 1 / (self.alpha * len(self.y))

    @property
    def one_of_each(self) -> list[int]:
        """Return one row of each class."""
        return [int(np.argmin(self.y)), int(np.argmax(self.y))]

    def __call__(self, model: Any) -> float:
        """Return the value at a model's coefficients."""
        raw = self.X @ model.coef_[0].astype(np.float64) + model.intercept_[0]
        loss = np.logaddexp(0, np.where(self.y == 1, -raw, raw)).mean()
        return float(loss + self.alpha / 2 * np.square(model.coef_, dtype=np.float64).sum())

    @cached_property
    def minimum(self) -> float:
        """Return the smallest value that scikit-learn's solvers find."""
        with warnings.catch_warnings():
            # An accuracy of a thousandth of the smallest value in the pictures is enough.
            warnings.simplefilter("ignore", ConvergenceWarning)
            X = self.X.astype(np.float64)
            fits = (
                LogisticRegression(C=self.C, solver=solver, tol=1e-9, max_iter=1000).fit(X, self.y)
                for solver in ("lbfgs", "newton-cg")
            )
            return min(self(fit) for fit in fits)

    def excess(self, model: Any) -> float:
        """Return how far a model is above the minimum, relative to the minimum."""
        return self(model) / self.minimum - 1
