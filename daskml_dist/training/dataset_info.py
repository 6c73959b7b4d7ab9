"""Facts about all rows of a fit: the summary of their blocks, their classes and their weights.

`DatasetInfo.of` turns ``class_weight="balanced"`` or a dict into one weight a class; `RowsSpec`
carries these to the trainers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.training.data_summary import DataSummary
from daskml_dist.training.spec import RowsSpec, Streaming

__all__ = [
    "DatasetInfo",
    "balanced_weights",
    "compute_weight_scale",
    "named_weights",
    "resolve_class_weights",
]


@dataclass(frozen=True)
class DatasetInfo:
    """Facts about the rows of a fit that models and objectives need.

    Parameters
    ----------
    survey : DataSummary
    classes : ndarray or None
        Sorted labels; None for regression.
    class_weight : ndarray of float64 of shape (n_classes,) or None
    weight_scale : float or None
        Factor that makes the mean weight 1; None where rows have no weights.
    """

    survey: DataSummary
    classes: NDArray[Any] | None
    class_weight: NDArray[np.float64] | None
    weight_scale: float | None

    @classmethod
    def of(
        cls,
        survey: DataSummary,
        classes: NDArray[Any] | None,
        class_weight: Any,
        weighted: bool,
    ) -> DatasetInfo:
        """Combine a summary with the classes and the `class_weight` that the user gave."""
        of_class = resolve_class_weights(class_weight, survey, classes)
        scale = compute_weight_scale(survey, classes, of_class, weighted)
        # Weights are scaled to mean 1, so that penalties and learning rates keep their meaning.
        return cls(survey, classes, of_class, scale)

    def spec(
        self,
        dtype: str,
        lane_rows: tuple[int, ...],
        streaming: Streaming | None,
        validation_fraction: float,
        compute_dtype: str | None,
    ) -> RowsSpec:
        """Return the specification of the rows that trainers get."""
        return RowsSpec(
            dtype,
            self.survey.rows_dtype,
            lane_rows,
            self.classes,
            self.class_weight,
            self.weight_scale,
            streaming,
            validation_fraction,
            compute_dtype,
        )

    @property
    def weight_sum(self) -> float:
        """Return the sum of the weights of all rows, class weights included."""
        n_rows = self.survey.n_rows
        return float(n_rows) if self.weight_scale is None else n_rows / self.weight_scale


def resolve_class_weights(
    class_weight: Any, survey: DataSummary, classes: NDArray[Any] | None
) -> NDArray[np.float64] | None:
    """Return one weight a class from "balanced", a dict of labels, or None."""
    if class_weight is None or classes is None:
        return None
    if isinstance(class_weight, str):
        # Classes are counted by the weights of their rows, so that a weight of 2 equals a repeated
        # row.
        return balanced_weights(survey.label_weights(classes))
    return named_weights(class_weight, classes)


def balanced_weights(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return class weights ``total / (n_classes * weight of the class)``, 0 without rows."""
    balanced = np.zeros(sums.shape)
    total = sums.sum(axis=-1, keepdims=True)
    np.divide(total, sums.shape[-1] * sums, out=balanced, where=sums > 0)
    return balanced


def named_weights(given: dict[Any, float], classes: NDArray[Any]) -> NDArray[np.float64]:
    """Return one weight a class from a dict of labels; 1 for classes that it leaves out.

    Labels that no row has may be among them, as in a fold that holds none: but where others are
    missing, names are mistaken.
    """
    # A fold may lack a class that the dict names. Unknown names are an error only where classes are
    # left out too: then the user has probably misspelled one.
    known = classes.tolist()
    unknown = [label for label in given if label not in known]
    missing = [label for label in known if label not in given]
    if unknown and missing:
        raise InvalidParameterError(
            f"The classes, {missing}, are not in class_weight, which names labels that y does not "
            f"hold: {unknown}. Use labels among {known}, or name all of these."
        )
    return np.array([float(given.get(label, 1.0)) for label in known])


def compute_weight_scale(
    survey: DataSummary,
    classes: NDArray[Any] | None,
    class_weight: NDArray[np.float64] | None,
    weighted: bool,
) -> float | None:
    """Return the factor that makes the mean weight of all rows 1; None without weights."""
    if class_weight is None and not weighted:
        return None
    # Sums of the weights by class suffice, so the rows need not be read again.
    if class_weight is not None and classes is not None:
        total = float(class_weight @ survey.label_weights(classes))
    else:
        total = sum(info.weight_sum for info in survey.infos)
    if not total > 0:
        raise InvalidDataError("All weights are zero. Give some rows a positive weight.")
    return survey.n_rows / total
