"""Out-of-fold predictions: each row is predicted by the fit that was not trained on it.

`cross_val_predict` returns them, and stacking trains its final estimator on them: with predictions
of the members' own training rows, it would rely on members that overfit (D. H. Wolpert, "Stacked
generalization", Neural Networks 5, 1992). A block's rows are grouped by the split that tests them,
so that each row is predicted once for any number of splits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from dask.delayed import Delayed, delayed
from numpy.typing import NDArray

from daskml_dist.data.collection import count_rows_of_block
from daskml_dist.data.conversion import take_rows
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.inference.block_mapping import share_in_graph
from daskml_dist.model_selection._fold_rows import Ints, RowsOfSplits
from daskml_dist.models.batched import TEST, FoldAssignment


@dataclass(frozen=True, eq=False)
class OutOfFoldPredictor:
    """Predictions of several estimators for rows, each by the fit that was not trained on the row.

    Parameters
    ----------
    fits : list of list of estimator
        For each estimator, one fit for each split.
    methods : list of str
        Prediction method of each estimator.
    classes : ndarray of shape (n_classes,), or None
        All labels, sorted: predictions except those of ``predict`` get a column for each, though a
        fit may lack some. None: predictions are returned unchanged.
    """

    fits: list[list[Any]]
    methods: list[str]
    classes: NDArray[Any] | None

    def predict_by_first_fits(self, X: Any) -> list[Any]:
        """Return the predictions of each estimator's first fit, which show shapes and dtypes."""
        return [
            predict_all_classes(fits[0], method, X, self.classes)
            for fits, method in zip(self.fits, self.methods, strict=True)
        ]

    def predict_blocks(
        self, rows: RowsOfSplits, combine: Callable[[Any, list[Any]], Any]
    ) -> list[Delayed]:
        """Return lazy results of ``combine(X, predictions)``, one for each block.

        `predictions` holds an array for each estimator; for a block without rows it is empty.
        """
        # All fits are sent once, not with each block's task.
        predict = share_in_graph(partial(_predict_block, self, rows.roles, combine))
        call = delayed(_call, pure=False)
        return [
            call(predict, X, codes)
            for (X, _, _), codes in zip(rows.columns.parts, rows.code_parts, strict=True)
        ]


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def _predict_block(
    predictor: OutOfFoldPredictor, roles: FoldAssignment, combine: Any, X: Any, codes: Ints
) -> Any:
    """Return ``combine(X, predictions)`` of a block."""
    if not count_rows_of_block(X):
        return combine(X, [])  # scikit-learn's estimators refuse to predict no rows
    is_tested = np.array(
        [roles.assign_roles(codes, split) == TEST for split in range(roles.n_splits)]
    )
    if not (is_tested.sum(axis=0) == 1).all():
        raise InvalidParameterError(
            "cross_val_predict only works for partitions: every row must be in the test rows of "
            "one split. Use KFold, StratifiedKFold or GroupKFold as cv."
        )
    tested = [np.flatnonzero(of_split) for of_split in is_tested]
    # From the order of splits back to the order of the block's rows.
    order = np.argsort(np.concatenate(tested))
    predictions: list[Any] = []
    for fits, method in zip(predictor.fits, predictor.methods, strict=True):
        by_split = [
            predict_all_classes(fitted, method, take_rows(X, row_numbers), predictor.classes)
            for fitted, row_numbers in zip(fits, tested, strict=True)
            if len(row_numbers)
        ]
        # Joined by concatenate, which finds a dtype for all: texts differ in width.
        if isinstance(by_split[0], list):  # an array for each label of a multilabel target
            predictions.append(
                [np.concatenate(arrays)[order] for arrays in zip(*by_split, strict=True)]
            )
        else:
            predictions.append(np.concatenate(by_split)[order])
    return combine(X, predictions)


def predict_all_classes(
    fitted: Any, method: str, X: Any, classes: NDArray[Any] | None
) -> NDArray[Any] | list[NDArray[Any]]:
    """Return a fit's predictions, with a column for every class, though it may lack some.

    Some estimators return a list for multilabel targets: an array for each label.
    """
    result = getattr(fitted, method)(X)
    if isinstance(result, list):
        return [np.asarray(array) for array in result]
    predictions = np.asarray(result)
    labels = np.asarray(getattr(fitted, "classes_", ()))
    if classes is None or method == "predict" or len(labels) == len(classes):
        return predictions
    # A single column for two labels has no place among the columns of several labels.
    if predictions.ndim == 1:
        raise InvalidDataError(
            f"{method} of a split was fitted to only {len(labels)} of {len(classes)} labels. Use "
            "StratifiedKFold, or fewer folds."
        )
    # As in scikit-learn's cross_val_predict: a probability of 0, and otherwise the lowest score.
    fill = 0.0 if method == "predict_proba" else np.finfo(predictions.dtype).min
    filled = np.full((len(predictions), len(classes)), fill, predictions.dtype)
    filled[:, np.searchsorted(classes, labels)] = predictions
    return filled
