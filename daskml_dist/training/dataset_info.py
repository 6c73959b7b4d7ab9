"""Facts of all rows of a fit: their survey, their classes and their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.training.data_summary import DataSummary
from daskml_dist.training.spec import RowsSpec, Streaming

__all__ = ["DatasetInfo", "balanced_weights", "named_weights"]


@dataclass(frozen=True)
class DatasetInfo:
    """Facts of the rows of a fit, as models and objectives must know them.

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
        """Put them together; `class_weight` is as the user gave it."""
        of_class = _class_weight(class_weight, survey, classes)
        scale = _weight_scale(survey, classes, of_class, weighted)
        return cls(survey, classes, of_class, scale)

    def spec(
        self,
        dtype: str,
        lane_rows: tuple[int, ...],
        streaming: Streaming | None,
        validation_fraction: float,
        compute_dtype: str | None,
    ) -> RowsSpec:
        """Facts of the rows that trainers must know."""
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
        """Sum of the weights of all rows, with those of their classes."""
        n_rows = self.survey.n_rows
        return float(n_rows) if self.weight_scale is None else n_rows / self.weight_scale


def _class_weight(
    class_weight: Any, survey: DataSummary, classes: NDArray[Any] | None
) -> NDArray[np.float64] | None:
    """Weight of each class, of what the user gave: "balanced", a dict or None."""
    if class_weight is None or classes is None:
        return None
    if isinstance(class_weight, str):
        # A weight of two is as good as a row twice, here too.
        return balanced_weights(survey.label_weights(classes))
    return named_weights(class_weight, classes)


def balanced_weights(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights of classes that make the weights of their rows alike; 0 for a class without rows.

    Parameters
    ----------
    sums : ndarray of shape (..., n_classes)
        Weights of the rows of each class.
    """
    balanced = np.zeros(sums.shape)
    total = sums.sum(axis=-1, keepdims=True)
    np.divide(total, sums.shape[-1] * sums, out=balanced, where=sums > 0)
    return balanced


def named_weights(given: dict[Any, float], classes: NDArray[Any]) -> NDArray[np.float64]:
    """Weight of each class, of a dict from labels.

    Labels that no row has may be among them, as in a fold that holds none: but where others are
    missing, names are mistaken.

    Raises
    ------
    InvalidParameterError
        They are.
    """
    known = classes.tolist()
    unknown = [label for label in given if label not in known]
    missing = [label for label in known if label not in given]
    if unknown and missing:
        raise InvalidParameterError(
            f"The classes, {missing}, are not in class_weight, which names labels that y does not "
            f"hold: {unknown}. Use labels among {known}, or name all of these."
        )
    return np.array([float(given.get(label, 1.0)) for label in known])


def _weight_scale(
    survey: DataSummary,
    classes: NDArray[Any] | None,
    class_weight: NDArray[np.float64] | None,
    weighted: bool,
) -> float | None:
    """Factor that makes the mean weight of all rows 1; None where rows have no weights."""
    if class_weight is None and not weighted:
        return None
    if class_weight is not None and classes is not None:
        total = float(class_weight @ survey.label_weights(classes))
    else:
        total = sum(info.weight_sum for info in survey.infos)
    if not total > 0:
        raise InvalidDataError("All weights are zero. Give some rows a positive weight.")
    return survey.n_rows / total
