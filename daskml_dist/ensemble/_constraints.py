"""Constraints of trees, from what the user gives to numbers of features."""

from __future__ import annotations

from itertools import combinations
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidParameterError

__all__ = ["groups_of", "signs_of"]


def signs_of(estimator: Any, given: Any, n_features: int, n_outputs: int) -> NDArray[np.int8]:
    """Monotonic constraint of each feature: 1 rises, -1 falls, 0 is free."""
    if given is None:
        return np.zeros(n_features, np.int8)
    if n_outputs > 1:
        raise InvalidParameterError(
            "monotonic constraints are not supported for multiclass classification. Leave "
            "monotonic_cst out, or fit a classifier a class."
        )
    if isinstance(given, dict):
        return _signs_by_name(estimator, given, n_features)
    if np.shape(given) != (n_features,):
        raise InvalidParameterError(
            f"monotonic_cst has shape {np.shape(given)} but the input data X has {n_features} "
            "features. Give a number a feature, or a dict of names."
        )
    strange = sorted({value for value in np.asarray(given).tolist() if value not in (-1, 0, 1)})
    if strange:
        raise InvalidParameterError(
            "monotonic_cst must be an array-like of -1, 0 or 1. Observed values: "
            f"{strange[:5]}. Use these for each feature: 1 rises, -1 falls, 0 is free."
        )
    return np.asarray(given).astype(np.int8)


def _signs_by_name(estimator: Any, given: dict[Any, Any], n_features: int) -> NDArray[np.int8]:
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        raise InvalidParameterError(
            f"{type(estimator).__name__} was not fitted on data with feature names. Pass "
            "monotonic_cst as an integer array instead."
        )
    numbers = {str(name): i for i, name in enumerate(names)}
    if strange := sorted(str(name) for name in given if name not in numbers):
        told = [*strange[:5], "..."] if len(strange) > 5 else strange
        raise InvalidParameterError(
            f"monotonic_cst contains {len(strange)} unexpected feature names: {told}. X has "
            f"{list(numbers)[:8]}."
        )
    found = np.zeros(n_features, np.int8)
    for name, sign in given.items():
        if sign not in (-1, 0, 1):
            raise InvalidParameterError(
                f"monotonic_cst['{name}'] must be either -1, 0 or 1. Got {sign!r}."
            )
        found[numbers[name]] = sign
    return found


def groups_of(given: Any, n_features: int) -> tuple[tuple[int, ...], ...] | None:
    """Groups of features that may meet in a branch; None: all may."""
    if given is None:
        return None
    if isinstance(given, str) and given == "no_interactions":
        given = [[i] for i in range(n_features)]
    elif isinstance(given, str) and given == "pairwise":
        given = combinations(range(n_features), 2)
    hint = 'Use "pairwise", "no_interactions", or a list of lists of numbers of features.'
    if isinstance(given, str):
        raise InvalidParameterError(f"interaction_cst={given!r}. {hint}")
    try:
        groups = [set(group) for group in given]
    except TypeError as error:
        raise InvalidParameterError(
            f"Interaction constraints must be a sequence of tuples or lists, got: {given!r}. {hint}"
        ) from error
    for group in groups:
        if not all(isinstance(i, Integral) and 0 <= int(i) < n_features for i in group):
            raise InvalidParameterError(
                "Interaction constraints must consist of integer indices in [0, n_features - 1] "
                f"= [0, {n_features - 1}], specifying the position of features, got invalid "
                f"indices: {group!r}. {hint}"
            )
    rest = set(range(n_features)).difference(*groups)
    groups += [rest] if rest else []
    return tuple(tuple(sorted(int(i) for i in group)) for group in groups)
