"""scikit-learn's displays of curves and confusion matrices, for Dask collections too.

A collection is reduced in one pass to a score run or to counts of label pairs, whose entries are
weighted rows for scikit-learn's displays. Rows in memory are passed to scikit-learn unchanged.
matplotlib is imported when a display is drawn.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import sklearn.metrics as theirs

from daskml_dist.data.collection import take_named_columns
from daskml_dist.errors import DaskMLDistError, InvalidParameterError
from daskml_dist.errors.sklearn_errors import check_fitted
from daskml_dist.metrics._columns import has_lazy_input
from daskml_dist.metrics._runs import list_run_rows
from daskml_dist.metrics.classification import reduce_to_label_pairs
from daskml_dist.metrics.ranking import (
    MAX_THRESHOLDS,
    SCORE_COLUMNS,
    check_max_thresholds,
    reduce_to_run,
)
from daskml_dist.metrics.scorers import make_scorer

#: Name that scikit-learn gives a curve of scores without an estimator.
UNNAMED_CURVE = "Classifier"


#: Methods of ``response_method="auto"``, in scikit-learn's order.
_SCORE_METHODS = ("predict_proba", "decision_function")


def check_matplotlib(name: str) -> None:
    """Raise `DaskMLDistError` if matplotlib is missing; called before any rows are read."""
    try:
        import matplotlib.pyplot  # noqa: F401
    except ImportError as error:
        raise DaskMLDistError(f"{name} needs matplotlib: pip install 'daskml-dist[viz]'") from error


def remember_curve_name(display: Any, name: str) -> Any:
    """Return the display with its curve's name set, as in scikit-learn's constructors."""
    # Older versions of scikit-learn call the attribute `estimator_name`.
    for attribute in ("name", "estimator_name"):
        if attribute in vars(display):
            setattr(display, attribute, name)
    return display


def score_positive_label(
    estimator: Any, X: Any, response_method: Any, pos_label: Any
) -> tuple[Any, Any]:
    """Return rows' scores, higher for the positive label (lazy if X is), and that label.

    Raises for an estimator that is no classifier of two labels.
    """
    classes = getattr(estimator, "classes_", None)
    if classes is None or len(classes) != 2:
        raise InvalidParameterError(
            f"{type(estimator).__name__} does not have two labels, but a curve needs a fitted "
            "classifier with two. For several labels, plot one curve per label: "
            "from_predictions(y == label, scores)."
        )
    pos_label = classes[1] if pos_label is None else pos_label
    if pos_label not in list(classes):
        raise InvalidParameterError(
            f"pos_label={pos_label!r}: choose one of {list(classes)}, which the model knows."
        )
    methods = _SCORE_METHODS if response_method == "auto" else response_method
    # A scorer selects one column of probabilities, or changes a decision's sign; its metric is not
    # called.
    scorer = make_scorer(theirs.roc_auc_score, response_method=methods, pos_label=pos_label)
    return scorer.predict_answers(estimator, X), pos_label


class _ThresholdCurveDisplay:
    """Mix-in before scikit-learn's display of the same curve, for Dask collections."""

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        sample_weight: Any = None,
        response_method: Any = "auto",
        pos_label: Any = None,
        name: str | None = None,
        **options: Any,
    ) -> Self:
        """Draw the curve of a fitted classifier of two labels.

        Parameters
        ----------
        estimator : fitted classifier
        X, y, sample_weight : dask collections, or in memory
            `y` and the weights may name columns of X.
        response_method, pos_label, name, **options
            scikit-learn's, and those of :meth:`from_predictions`.

        Returns
        -------
        display
            With ``ax_`` and ``figure_``.

        Raises
        ------
        NotFittedError, InvalidParameterError, InvalidDataError
        DaskMLDistError
            matplotlib is not installed.
        """
        check_matplotlib(cls.__name__)
        check_fitted(estimator)
        X, y, sample_weight = take_named_columns(X, y, sample_weight)
        # In memory: scikit-learn's own constructor, with its own checks and legend.
        if not has_lazy_input(X, y, sample_weight):
            arguments = {"sample_weight": sample_weight, "response_method": response_method}
            display: Self = super().from_estimator(  # type: ignore[misc]
                estimator, X, y, pos_label=pos_label, name=name, **arguments, **options
            )
            return display
        scores, pos_label = score_positive_label(estimator, X, response_method, pos_label)
        name = type(estimator).__name__ if name is None else name
        return cls.from_predictions(
            y, scores, sample_weight=sample_weight, pos_label=pos_label, name=name, **options
        )

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_score: Any,
        *,
        sample_weight: Any = None,
        max_thresholds: int | None = MAX_THRESHOLDS,
        **options: Any,
    ) -> Self:
        """Draw the curve of labels and scores.

        Parameters
        ----------
        y_true, y_score : dask Array or Series, or array-like, of shape (n_rows,)
            Labels, and scores that are higher for the positive one.
        sample_weight : like `y_true`, or None
        max_thresholds : int or None
            Number of distinct scores that are kept for a Dask collection: see
            :func:`daskml_dist.metrics.roc_auc_score`. None keeps all.
        **options
            scikit-learn's.

        Returns
        -------
        display
            With ``ax_`` and ``figure_``.

        Raises
        ------
        InvalidParameterError, InvalidDataError
        DaskMLDistError
            matplotlib is not installed.
        """
        check_matplotlib(cls.__name__)
        check_max_thresholds(max_thresholds)
        rows = (y_true, y_score, sample_weight)
        if has_lazy_input(*rows):
            # One weighted row for each label and distinct score: they have the curve of all rows.
            run = reduce_to_run(SCORE_COLUMNS.align(*rows), max_thresholds)
            labels, scores, weights = list_run_rows(run)
            # A run has a row for each label at each score, even if the label has no weight there.
            weighted = weights > 0
            rows = labels[weighted], scores[weighted], weights[weighted]
        return cls._draw_rows(*rows, **options)

    @classmethod
    def _draw_rows(cls, y_true: Any, y_score: Any, sample_weight: Any, **options: Any) -> Self:
        """Return the display of rows in memory."""
        display: Self = super().from_predictions(  # type: ignore[misc]
            y_true, y_score, sample_weight=sample_weight, **options
        )
        return display


class RocCurveDisplay(_ThresholdCurveDisplay, theirs.RocCurveDisplay):
    """scikit-learn's display of true over false positive rates, for Dask collections too.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import RocCurveDisplay
    >>> clf_scores = np.array([0.1, 0.8, 0.3, 0.4, 0.9])
    >>> y = np.array([0, 1, 1, 0, 1])
    >>> display = RocCurveDisplay.from_predictions(y, clf_scores)  # doctest: +SKIP
    """


class DetCurveDisplay(_ThresholdCurveDisplay, theirs.DetCurveDisplay):
    """scikit-learn's display of false negative over false positive rates, for Dask too.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import DetCurveDisplay
    >>> clf_scores = np.array([0.1, 0.8, 0.3, 0.4, 0.9])
    >>> y = np.array([0, 1, 1, 0, 1])
    >>> display = DetCurveDisplay.from_predictions(y, clf_scores)  # doctest: +SKIP
    """


class PrecisionRecallDisplay(_ThresholdCurveDisplay, theirs.PrecisionRecallDisplay):
    """scikit-learn's display of precision over recall, for Dask collections too.

    The level of chance is the positive label's share of the weights; scikit-learn counts rows.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import PrecisionRecallDisplay
    >>> clf_scores = np.array([0.1, 0.8, 0.3, 0.4, 0.9])
    >>> y = np.array([0, 1, 1, 0, 1])
    >>> display = PrecisionRecallDisplay.from_predictions(y, clf_scores)  # doctest: +SKIP
    """

    @classmethod
    def _draw_rows(
        cls,
        y_true: Any,
        y_score: Any,
        sample_weight: Any,
        *,
        pos_label: Any = None,
        drop_intermediate: bool = False,
        name: str | None = None,
        **options: Any,
    ) -> Self:
        # Not scikit-learn's `from_predictions`: its chance level is a share of the rows, but the
        # rows here may be entries of a run, whose number has no meaning.
        if pos_label is None:
            if not set(np.unique(y_true).tolist()) <= {-1, 0, 1}:
                raise InvalidParameterError(
                    "pos_label must be given unless the labels are -1, 0 or 1: name the "
                    "positive label."
                )
            pos_label = 1
        arguments = {"pos_label": pos_label, "sample_weight": sample_weight}
        precision, recall, _ = theirs.precision_recall_curve(
            y_true, y_score, drop_intermediate=drop_intermediate, **arguments
        )
        positive = np.asarray(y_true) == pos_label
        display = cls(
            precision,
            recall,
            average_precision=theirs.average_precision_score(y_true, y_score, **arguments),
            pos_label=pos_label,
            prevalence_pos_label=float(np.average(positive, weights=sample_weight)),
        )
        name = UNNAMED_CURVE if name is None else name
        return remember_curve_name(display, name).plot(name=name, **options)  # type: ignore[no-any-return]


class ConfusionMatrixDisplay(theirs.ConfusionMatrixDisplay):
    """scikit-learn's display of a confusion matrix, for Dask collections too.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.metrics import ConfusionMatrixDisplay
    >>> y_true, y_pred = np.array([0, 1, 1]), np.array([0, 1, 0])
    >>> display = ConfusionMatrixDisplay.from_predictions(y_true, y_pred)  # doctest: +SKIP
    """

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: Any, *, sample_weight: Any = None, **options: Any
    ) -> Self:
        """Draw the matrix of a fitted classifier.

        Parameters
        ----------
        estimator : fitted classifier
        X, y, sample_weight : dask collections, or in memory
            `y` and the weights may name columns of X.
        **options
            scikit-learn's.

        Returns
        -------
        display
            With ``ax_`` and ``figure_``.

        Raises
        ------
        NotFittedError, InvalidDataError
        DaskMLDistError
            matplotlib is not installed.
        """
        check_fitted(estimator)
        X, y, sample_weight = take_named_columns(X, y, sample_weight)
        # For lazy predictions, also by estimators of other packages that do not support Dask.
        scorer = make_scorer(theirs.accuracy_score)
        predicted = scorer.predict_answers(estimator, X)
        return cls.from_predictions(y, predicted, sample_weight=sample_weight, **options)

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_pred: Any,
        *,
        labels: Any = None,
        sample_weight: Any = None,
        **options: Any,
    ) -> Self:
        """Draw the matrix of labels and predicted labels.

        Parameters
        ----------
        y_true, y_pred, sample_weight : dask Array or Series, or array-like, of shape (n_rows,)
        labels : array-like, or None
            Labels to show, in their order; None: all, sorted.
        **options
            scikit-learn's.

        Returns
        -------
        display
            With ``ax_`` and ``figure_``.

        Raises
        ------
        InvalidDataError
        DaskMLDistError
            matplotlib is not installed.
        """
        check_matplotlib(cls.__name__)
        if has_lazy_input(y_true, y_pred, sample_weight):
            # One weighted row for each pair of labels has the same matrix as all rows.
            y_true, y_pred, sample_weight, distinct = reduce_to_label_pairs(
                y_true, y_pred, sample_weight
            )
            labels = distinct if labels is None else labels
        display: Self = super().from_predictions(
            y_true, y_pred, labels=labels, sample_weight=sample_weight, **options
        )
        return display
