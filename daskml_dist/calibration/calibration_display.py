"""Display of calibration curves: scikit-learn's, for Dask collections too."""

from __future__ import annotations

from typing import Any, Self

import sklearn.calibration

from daskml_dist.data.collection import take_named_columns
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors.sklearn_errors import check_fitted
from daskml_dist.metrics.displays import (
    UNNAMED_CURVE,
    check_matplotlib,
    remember_curve_name,
    score_positive_label,
)
from daskml_dist.metrics.ranking import calibration_curve


class CalibrationDisplay(sklearn.calibration.CalibrationDisplay):
    """Display of a calibration curve: share of positive rows by predicted probability.

    As in scikit-learn, except that for Dask collections the curve is computed on the workers, and
    ``y_prob`` stays lazy.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.calibration import CalibrationDisplay
    >>> clf_scores = np.array([0.1, 0.8, 0.3, 0.4, 0.9])
    >>> y = np.array([0, 1, 1, 0, 1])
    >>> display = CalibrationDisplay.from_predictions(y, clf_scores)  # doctest: +SKIP
    """

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        pos_label: Any = None,
        name: str | None = None,
        **options: Any,
    ) -> Self:
        """Draw the curve of a fitted classifier with two labels.

        Parameters
        ----------
        estimator : fitted classifier with ``predict_proba``
        X, y : dask collections, or in memory
            `y` may name a column of X.
        pos_label, name, **options
            scikit-learn's.

        Returns
        -------
        CalibrationDisplay
            With ``ax_`` and ``figure_``.

        Raises
        ------
        NotFittedError, InvalidParameterError, InvalidDataError
        DaskMLDistError
            matplotlib is not installed.
        """
        check_matplotlib(cls.__name__)  # before any pass over rows
        check_fitted(estimator)
        X, y, _ = take_named_columns(X, y, None)
        scores, pos_label = score_positive_label(estimator, X, "predict_proba", pos_label)
        # Name the curve here: the predictions no longer know their estimator.
        name = type(estimator).__name__ if name is None else name
        return cls.from_predictions(y, scores, pos_label=pos_label, name=name, **options)

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_prob: Any,
        *,
        n_bins: int = 5,
        strategy: str = "uniform",
        pos_label: Any = None,
        name: str | None = None,
        **options: Any,
    ) -> Self:
        """Draw the curve of labels and probabilities.

        Parameters
        ----------
        y_true, y_prob : dask Array or Series, or array-like, of shape (n_rows,)
            Labels, and probabilities of the positive one.
        n_bins, strategy, pos_label, name, **options
            scikit-learn's.

        Returns
        -------
        CalibrationDisplay
            With ``ax_`` and ``figure_``.

        Raises
        ------
        InvalidParameterError, InvalidDataError
        DaskMLDistError
            matplotlib is not installed.
        """
        check_matplotlib(cls.__name__)
        binned = {"n_bins": n_bins, "strategy": strategy, "pos_label": pos_label}
        # For rows in memory scikit-learn itself computes the curve, with its own checks.
        if not (is_dask(y_true) or is_dask(y_prob)):
            result: Self = super().from_predictions(y_true, y_prob, name=name, **binned, **options)
            return result
        # One pass over the rows, which returns two numbers for each bin.
        curve = calibration_curve(y_true, y_prob, **binned)
        name = UNNAMED_CURVE if name is None else name
        display = remember_curve_name(cls(*curve, y_prob, pos_label=pos_label), name)
        plotted: Self = display.plot(name=name, **options)
        return plotted
