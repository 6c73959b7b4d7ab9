"""`RidgeCV`."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin

from daskml_dist.linear_model._least_squares import BaseLeastSquares
from daskml_dist.linear_model._ridge_cv import BaseRidgeCV
from daskml_dist.linear_model.ridge import Ridge
from daskml_dist.parameters.checks import check_one_of
from daskml_dist.parameters.run import Run

__all__ = ["RidgeCV"]


class RidgeCV(BaseRidgeCV, BaseLeastSquares):
    """Ridge regression whose penalty is chosen by cross-validation, in two passes over the rows.

    Without `cv` each row is left out once, in closed form (Rifkin and Lippert 2007): a pass for
    the moments, and one for the errors of all rows under all penalties. With folds, the first pass
    makes the moments of each fold, of which all fits follow, and the second scores them.

    Parameters
    ----------
    scoring : str, callable or None, default=None
        Larger is better. None: without `cv` the negative mean squared error, with it R^2.
    cv : int, splitter, iterable of (train, test) row numbers, or None, default=None
        None: each row is left out once.
    gcv_mode : {"auto", "svd", "eigen"} or None, default=None
        Without effect: the way is chosen by the digits that are needed.
    alpha_per_target : bool, default=False
        Whether each target has a penalty of its own; without `cv` alone.

    Attributes
    ----------
    alpha_ : float or ndarray of shape (n_targets,)
    best_score_ : float or ndarray of shape (n_targets,)
    cv_results_ : ndarray of shape (n_rows, n_alphas) or (n_rows, n_targets, n_alphas)
        Squared errors of rows left out (times their weights), or with `scoring` their predictions.
    coef_, intercept_
        As in :class:`~daskml_dist.linear_model.Ridge`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from daskml_dist.linear_model import RidgeCV
    >>> X, y = load_diabetes(return_X_y=True)
    >>> RidgeCV(alphas=[1e-3, 1e-2, 1e-1, 1]).fit(X, y).alpha_
    0.01
    """

    def __init__(
        self,
        alphas: Any = (0.1, 1.0, 10.0),
        *,
        fit_intercept: bool = True,
        scoring: Any = None,
        cv: Any = None,
        gcv_mode: str | None = None,
        store_cv_results: bool = False,
        alpha_per_target: bool = False,
        verbose: int = 0,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.alphas = alphas
        self.fit_intercept = fit_intercept
        self.scoring = scoring
        self.cv = cv
        self.gcv_mode = gcv_mode
        self.store_cv_results = store_cv_results
        self.alpha_per_target = alpha_per_target
        self.verbose = verbose
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def _check_params(self) -> None:
        super()._check_params()
        check_one_of("gcv_mode", self.gcv_mode, (None, "auto", "svd", "eigen"))

    def _plain(self, alpha: float) -> Any:
        return Ridge(alpha=alpha, fit_intercept=self.fit_intercept)

    def _left_out_score(self, scorer: Any, y: Any, predicted: Any, weight: Any) -> Any:
        more = {} if weight is None else {"sample_weight": weight}
        if self.alpha_per_target and predicted.ndim == 2:
            columns = np.asarray(y) if isinstance(y, list) else y
            return [
                scorer(_Predicted(), predicted[:, j], _column(columns, j), **more)
                for j in range(predicted.shape[1])
            ]
        return scorer(_Predicted(), predicted, y, **more)


def _column(y: Any, j: int) -> Any:
    return y[y.columns[j]] if hasattr(y, "columns") else y[:, j]


class _Predicted(RegressorMixin, BaseEstimator):
    """Stands for an estimator whose predictions are there already."""

    def predict(self, predicted: Any) -> Any:
        return predicted
