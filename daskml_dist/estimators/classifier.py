"""Base class of the classifiers: labels from raw predictions, and accuracy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from daskml_dist.data.conversion import (
    are_device_labels,
    check_no_missing,
    convert_missing_to_nan,
    convert_object_values,
)
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.estimators.base import MAX_CHECKED_LABELS, BaseOnRows
from daskml_dist.inference.independent_rows import declare_independent_rows
from daskml_dist.parameters.checks import check_some_weight
from daskml_dist.training.dataset_info import DataSummary

if TYPE_CHECKING:
    from daskml_dist.policies.base import Policy


class BaseClassifier(ClassifierMixin, BaseOnRows):
    """Base class of the classifiers: labels and accuracy, for rows in memory or lazily.

    Raw predictions are one number for each row, positive for the second of two classes, or one for
    each class, the largest for the most likely.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.base import BaseClassifier
    >>> from daskml_dist.naive_bayes import GaussianNB
    >>> X, y = np.array([[0.0], [0.1], [1.0], [1.1]]), np.array(["a", "a", "b", "b"])
    >>> model = GaussianNB().fit(X, y)
    >>> isinstance(model, BaseClassifier), model.predict(X[1:3]).tolist(), model.score(X, y)
    (True, ['a', 'b'], 1.0)
    """

    _classification = True
    _needs_target = True
    #: Minimum number of classes of a fit.
    _min_classes: ClassVar[int] = 2
    #: Whether rows may have several labels: `y` and predictions then have a column of 0 and 1 for
    #: each label.
    _multi_label: ClassVar[bool] = False
    #: Whether rows of the fit had several labels.
    _several = False
    classes_: NDArray[Any]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = self._multi_label
        return tags

    def _check_target(self, y: Any) -> None:
        if not is_dask(y):
            _check_labels(y)

    def _find_classes(self, summary: DataSummary, classes: Any) -> NDArray[Any]:
        labels = summary.classes
        if self._multi_label:
            self._several = summary.n_targets is not None
            if summary.n_targets is not None:
                return self._number_label_columns(labels, summary.n_targets)
        # Classes named by the user may be more than the rows contain, as in a first `partial_fit`.
        if classes is not None:
            classes = np.unique(classes)
            unknown = np.setdiff1d(labels, classes)
            if len(unknown):
                raise InvalidDataError(
                    f"The target label(s) {unknown.tolist()[:5]} in y do not exist in the initial "
                    "classes. Name every class in the first call to partial_fit, or in "
                    "stream(classes=[...])."
                )
            labels = classes
        # Labels in memory were checked by scikit-learn's rules; those of blocks are checked here.
        if labels.dtype.kind == "f" and (labels % 1).any():
            raise InvalidDataError(
                "Unknown label type: continuous. Use a regressor for a continuous target."
            )
        if len(labels) < self._min_classes:
            raise InvalidDataError(
                "y holds only one class. This solver needs samples of at least 2 classes in the "
                f"data, but the data contains only one class: {labels.tolist()[0]!r}. Check how "
                "the rows were filtered."
            )
        return labels

    @staticmethod
    def _number_label_columns(values: NDArray[Any], n_columns: int) -> NDArray[Any]:
        """Return the classes of several labels: column numbers. Their `values` must be 0 and 1."""
        unknown = np.setdiff1d(values, [0, 1])
        if len(unknown):
            raise InvalidDataError(
                f"y has {n_columns} columns, and holds {unknown.tolist()[:5]}. For several "
                "labels per row, give one column of 0 and 1 for each; for one label per row, "
                "one column."
            )
        return np.arange(n_columns)

    def _all_classes(self, classes: Any, first: bool) -> Any:
        """Return the classes of a ``partial_fit``; `first`: for the first call, which names all."""
        if classes is None:
            if first:
                raise InvalidParameterError(
                    "classes must be passed on the first call to partial_fit, or to stream: name "
                    "every label that will come, such as classes=[0, 1]."
                )
            return self.classes_
        if np.ndim(classes) != 1:
            raise InvalidParameterError(
                f"`classes={classes!r}`: give a list of all labels, such as classes=[0, 1]."
            )
        labels = np.unique(classes)
        if len(labels) != len(classes):
            raise InvalidParameterError(
                f"`classes={classes!r}` names a label twice. Name each once: np.unique(classes)."
            )
        if not first and not np.array_equal(labels, self.classes_):
            raise InvalidParameterError(
                f"`classes={classes!r}` is not the same as on last call to partial_fit, was: "
                f"{self.classes_!r}. Leave it out, or start with a new estimator."
            )
        return labels

    def predict(self, X: Any) -> Any:
        """Return the most likely label of each row.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        ndarray or lazy dask Array of shape (n_rows,)
            For several labels, (n_rows, n_labels).
        """
        self._check_fitted(X)
        write, dtype, n_outputs = self._make_label_writer()
        return self._map_raw_predictions(write, X, dtype, n_outputs)

    def _make_label_writer(self) -> tuple[Callable[..., None], np.dtype[Any], int | None]:
        """Return a picklable function that writes labels, their dtype and number of columns.

        The number is None for labels of one dimension.
        """
        if self._several:
            return _write_positive, np.dtype(np.int64), len(self.classes_)
        return partial(_write_labels, self.classes_), self.classes_.dtype, None

    def _make_hit_counter(self) -> Callable[..., NDArray[np.float64]]:
        """Return a picklable function that sums the weight of all rows and that of correct ones."""
        return _count_rows_all_right if self._several else partial(_count_right, self.classes_)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the mean accuracy, in one pass; with several labels per row, all must be correct.

        Parameters
        ----------
        X, y, sample_weight
            As in :meth:`fit`.

        Returns
        -------
        float
        """
        self._check_fitted()
        total, hits = self._sum_over_blocks(self._make_hit_counter(), X, y, sample_weight)
        check_some_weight(total)
        return float(hits / total)


def partial_fit(
    self: Any, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None, *,
    policy: str | Policy | None = None, client: Any = None,
) -> Any:  # fmt: skip
    """Make one pass over more rows, starting from the last state.

    Parameters
    ----------
    X, y, sample_weight, policy, client
        As in :meth:`fit`.
    classes : array-like of labels, optional
        All that will ever occur; needed in the first call.

    Returns
    -------
    self
    """
    labels = self._all_classes(classes, first=not hasattr(self, "classes_"))
    self._fit_one_pass(X, y, sample_weight, policy, client, labels)
    return self


def _write_positive(raw: NDArray[Any], out: NDArray[Any]) -> None:
    """Write 1 for each label with a positive raw prediction to `out`, and 0 for the others."""
    out[...] = np.reshape(raw > 0, out.shape)


def _count_rows_all_right(
    y: NDArray[Any], raw: NDArray[Any], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the weight of all rows, and of those whose labels are all predicted."""
    hits = ((raw.reshape(y.shape) > 0) == (y > 0)).all(axis=1)
    return np.array([weight.sum(), weight @ hits])


@declare_independent_rows
def _write_labels(classes: NDArray[Any], raw: NDArray[Any], out: NDArray[Any]) -> None:
    """Write the label of each row's raw prediction to `out`."""
    best = raw > 0 if raw.ndim == 1 else raw.argmax(axis=1)
    # mode="clip" writes to `out` directly; the default mode goes through a buffer.
    classes.take(best, out=out, mode="clip")


def _count_right(
    classes: NDArray[Any], y: NDArray[Any], raw: NDArray[Any], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the weight of all rows, and of those whose label is predicted."""
    # NumPy compares a text with a number as False: the accuracy would silently be 0.
    if len(y) and (y.dtype.kind in "OUT") != (classes.dtype.kind in "OUT"):
        raise InvalidDataError(
            f"The labels to score are like {y[0]!r}, but those of the fit are like "
            f"{classes[0]!r}: only one of them is a string. Convert both to one type, for "
            "example y.astype(str) for both."
        )
    if raw.ndim == 1:
        # By two comparisons of y, without an array of predicted labels.
        positive = raw > 0
        hits = (positive & (y == classes[1])) | (~positive & (y == classes[0]))
    else:
        hits = classes[raw.argmax(axis=1)] == y
    return np.array([weight.sum(), weight @ hits])


def _check_labels(y: Any) -> None:
    """Raise if `y` in memory has labels that are missing, continuous, or of mixed types."""
    # Labels on a GPU are numbers, and are checked block by block.
    if are_device_labels(y):
        return
    labels = convert_object_values(np.asarray(convert_missing_to_nan(y)))
    if labels.ndim == 0:  # the error of a wrong shape is raised where rows are aligned
        return
    # scikit-learn sorts all labels, which may take longer than the fit; blocks are checked too.
    if len(labels) > MAX_CHECKED_LABELS and labels.ndim == 1 and labels.dtype.kind in "biuf":
        return
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise InvalidDataError("Input y contains NaN or infinity. Drop these rows.")
    check_no_missing(labels, "y")
    try:
        check_classification_targets(labels)
    except TypeError as error:
        if labels.dtype.kind == "S" or "bytes" in str(error):
            raise InvalidDataError(
                "The labels in y are bytes, which are not supported. Decode them: "
                "numpy.asarray(y, 'S').astype(str), or y.str.decode(\"utf-8\") of a Series."
            ) from error
        raise InvalidDataError(
            f"The labels in y have different types ({error}). Convert them to one type: "
            "y.astype(str)."
        ) from error
    except ValueError as error:
        remedy = "Use a regressor for a continuous target."
        if "unknown" in str(error):
            remedy = "Convert the labels to one type, strings or integers: y.astype(str)."
        raise InvalidDataError(f"{error} {remedy}") from error
