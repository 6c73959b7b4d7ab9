"""`RidgeClassifierCV`."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin

from daskml_dist.estimators.linear.base import LinearClassifier
from daskml_dist.linear_model._ridge_cv import BaseRidgeCV
from daskml_dist.linear_model.ridge_classifier import (
    RidgeClassifier,
    check_weights_of_labels,
    make_sign_model,
)
from daskml_dist.losses import Loss, SquaredError
from daskml_dist.models.linear import LinearModel
from daskml_dist.parameters.run import Run
from daskml_dist.training.dataset_info import DatasetInfo, DataSummary

__all__ = ["RidgeClassifierCV"]


class RidgeClassifierCV(BaseRidgeCV, LinearClassifier):
    """Ridge classifier whose penalty is chosen by cross-validation, in two passes over the rows.

    To :class:`~daskml_dist.linear_model.RidgeClassifier` as
    :class:`~daskml_dist.linear_model.RidgeCV` is to ridge regression. Rows may have several labels.

    Parameters
    ----------
    scoring : str, callable or None, default=None
        Larger is better. None: without `cv` the negative mean squared error of the signs of
        labels, with it the accuracy (of several labels a row, the share of rows with all right).
    cv : int, splitter, iterable of (train, test) row numbers, or None, default=None
        None: each row is left out once. A number of folds: stratified.
    class_weight : dict, "balanced" or None, default=None
        None where rows have several labels.

    Attributes
    ----------
    alpha_, best_score_ : float
    cv_results_ : ndarray of shape (n_rows, n_targets, n_alphas)
        Squared errors of rows left out (times their weights), or with `scoring` their predictions;
        a target a class or label, or one for two classes.
    classes_, coef_, intercept_
        As in :class:`~daskml_dist.linear_model.RidgeClassifier`.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from daskml_dist.linear_model import RidgeClassifierCV
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> RidgeClassifierCV(alphas=[1e-3, 1e-2, 1e-1, 1]).fit(X, y).score(X, y) > 0.96
    True
    """

    _multi_output = True
    _multi_label = True
    _flat_coef = True
    _own_score = "accuracy"

    def __init__(
        self,
        alphas: Any = (0.1, 1.0, 10.0),
        *,
        fit_intercept: bool = True,
        scoring: Any = None,
        cv: Any = None,
        class_weight: Any = None,
        store_cv_results: bool = False,
        verbose: int = 0,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.alphas = alphas
        self.fit_intercept = fit_intercept
        self.scoring = scoring
        self.cv = cv
        self.class_weight = class_weight
        self.store_cv_results = store_cv_results
        self.verbose = verbose
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _loss(self) -> Loss:
        return SquaredError()

    def _model(self, rows: DatasetInfo) -> LinearModel:
        return make_sign_model(rows, bool(self.fit_intercept))

    def _find_classes(self, survey: DataSummary, classes: Any) -> NDArray[Any]:
        check_weights_of_labels(self.class_weight, survey.n_targets)
        return super()._find_classes(survey, classes)

    def _plain(self, alpha: float) -> Any:
        return RidgeClassifier(alpha=alpha, fit_intercept=self.fit_intercept)

    def _name_classes(self, values: NDArray[Any], n_columns: int | None) -> NDArray[Any]:
        self._several = n_columns is not None
        check_weights_of_labels(self.class_weight, n_columns)
        return values if n_columns is None else self._number_label_columns(values, n_columns)

    def _left_out_score(self, scorer: Any, y: Any, predicted: Any, weight: Any) -> Any:
        more = {} if weight is None else {"sample_weight": weight}
        raw = predicted[:, 0] if predicted.shape[1] == 1 else predicted
        return scorer(_Decided(self.classes_, self._several), raw, y, **more)


class _Decided(ClassifierMixin, BaseEstimator):
    """Stands for a classifier whose raw predictions are there already."""

    def __init__(self, classes: NDArray[Any], several: bool) -> None:
        self.classes_, self._several = classes, several

    def decision_function(self, raw: Any) -> Any:
        return raw

    def predict(self, raw: Any) -> Any:
        if isinstance(raw, da.Array):
            drop: Any = {"drop_axis": 1} if raw.ndim == 2 and not self._several else {}
            lazily: Any = raw.map_blocks
            found: da.Array = lazily(self._labels, dtype=self.classes_.dtype, **drop)
            return found
        return self._labels(raw)

    def _labels(self, raw: NDArray[np.float64]) -> NDArray[Any]:
        if self._several:
            return (raw > 0).astype(self.classes_.dtype)
        best = (raw > 0).astype(int) if raw.ndim == 1 else raw.argmax(axis=1)
        return np.asarray(self.classes_[best])
