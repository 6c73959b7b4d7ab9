"""Weights of the classes of several outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidParameterError
from daskml_dist.training.data_summary import DataSummary
from daskml_dist.training.dataset_info import named_weights

__all__ = ["class_weights", "one_of"]


def class_weights(given: Any, survey: DataSummary) -> tuple[NDArray[np.float64], ...]:
    """Weight of each class of each output; empty for none.

    Parameters
    ----------
    given : "balanced", list of dict, or None
        As the user gave it.
    survey : DataSummary

    Raises
    ------
    InvalidParameterError
        A dict, where each output needs one, or one for another number of outputs; labels that y
        does not hold.
    """
    if given is None:
        return ()
    columns = survey.label_columns
    if given == "balanced":
        return tuple(
            np.divide(sums.sum(), len(sums) * sums, out=np.zeros(len(sums)), where=sums > 0)
            for _, sums in columns
        )
    if isinstance(given, dict):
        raise InvalidParameterError(
            "For multi-output, class_weight should be a list of dicts, or the string 'balanced'. "
            "Give a dict for each output."
        )
    _check_number(given, len(columns))
    return tuple(named_weights(of, labels) for of, (labels, _) in zip(given, columns, strict=True))


def one_of(given: list[Any]) -> list[Any]:
    """The weights of the classes of one output, given as a list of one.

    Raises
    ------
    InvalidParameterError
        The list is of another number.
    """
    _check_number(given, 1)
    return given


def _check_number(given: list[Any], n_outputs: int) -> None:
    if len(given) != n_outputs:
        raise InvalidParameterError(
            f"The number of elements in class_weight should match number of outputs. Got "
            f"{len(given)} element(s) while y has {n_outputs}. Give a dict for each output."
        )
