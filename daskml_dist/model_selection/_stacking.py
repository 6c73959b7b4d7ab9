"""Searches over linear models as stacks: all candidates and splits in one fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from daskml_dist._classifier import BaseClassifier
from daskml_dist._regressor import BaseRegressor
from daskml_dist._stacks import StackedFit, can_stack, fit_stack
from daskml_dist.data.collection import Collection, as_collection
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.model_selection._codes import ByPlace, ByRange
from daskml_dist.model_selection._roles import TEST, TRAIN, Ints
from daskml_dist.model_selection._split_rows import label_counts
from daskml_dist.model_selection._validation import Fitted, Splits, score_sides
from daskml_dist.solvers.stacked_scores import SCORES

__all__ = ["class_factors", "stacked_fits", "targets_of"]

#: What `score` of an estimator is, by the class that it comes from.
_OWN_SCORES: dict[type, str] = {BaseClassifier: "accuracy", BaseRegressor: "r2"}


def stacked_fits(
    estimators: Sequence[Any],
    splits: Splits,
    scoring: Mapping[str, Any],
    scorers: Mapping[str, Any],
    *,
    train_score: bool,
) -> list[list[Fitted]] | None:
    """Fit and score candidates as one stack; None where they are none.

    Parameters
    ----------
    estimators : sequence of estimator
        Unfitted.
    splits : Splits
    scoring : mapping of str to str or None
        Names of scores; None for the estimator's own.
    scorers : mapping of str to callable
        For scores that a stack has no sums for.
    train_score : bool
    """
    if set(splits.plain) - {"sample_weight"} or not can_stack(estimators):
        return None
    collection, classes = targets_of(splits, estimators[0]._classification)
    weighted = collection.parts[0][2] is not None
    found = fit_stack(estimators, collection, splits.roles, classes, weighted, train_score)
    names = {name: _name(estimators[0], given) for name, given in scoring.items()}
    result = []
    for row in found:
        fits = []
        for split, fit in enumerate(row):
            if collection.feature_names is not None:
                fit.estimator.feature_names_in_ = collection.feature_names
            fits.append(_scored(fit, split, splits, names, scorers, train_score))
        result.append(fits)
    return result


def _name(estimator: Any, given: Any) -> str | None:
    """Name of a score that a stack has sums for; None: it has none."""
    if given is None:
        owner = next(kind for kind in type(estimator).__mro__ if "score" in vars(kind))
        given = _OWN_SCORES.get(owner)
    kind = "classifier" if estimator._classification else "regressor"
    return given if isinstance(given, str) and given in SCORES[kind] else None


def _scored(
    fit: StackedFit, split: int, splits: Splits, names: Mapping[str, str | None],
    scorers: Mapping[str, Any], train_score: bool,
) -> Fitted:  # fmt: skip
    scores: list[dict[str, float]] = []
    for role in (TEST, TRAIN) if train_score else (TEST,):
        known = {n: fit.score(own, role) for n, own in names.items() if own is not None}
        rest = {n: scorers[n] for n, own in names.items() if own is None}
        if rest:
            known |= score_sides(rest, fit.estimator, *splits.side(split, role), weigh=True)
        scores.append({n: known[n] for n in names})
    return Fitted(scores[0], scores[1] if train_score else {}, fit.seconds, 0.0, fit.estimator)


def targets_of(
    splits: Splits, classification: bool, *, multi_output: bool = False, class_weight: Any = None
) -> tuple[Collection, Any]:
    """The rows, with targets and then codes as columns; and the labels of a classifier.

    Parameters
    ----------
    splits : Splits
    classification : bool
        Whether targets are labels; the collection has their numbers.
    multi_output : bool
        Whether targets may have several columns.
    class_weight : dict, "balanced" or None
        Factors of the weights of rows, by their label.
    """
    X, y, *weight = splits.inputs
    collection = as_collection(
        X, y, weight[0] if weight else splits.plain.get("sample_weight"),
        classification=classification, multi_output=multi_output,
    )  # fmt: skip
    classes = _labels(splits, collection) if classification else None
    factors = None
    if class_weight is not None and classes is not None:
        factors = class_factors(class_weight, classes, partial(_label_sums, collection, classes))
    join = partial(_joined, classes)
    weigh = partial(_weighed, classes, factors)
    if collection.kind == "memory":
        ((rows, targets, given),) = collection.parts
        parts = [(rows, join(targets, splits.codes), weigh(targets, given))]
    else:
        lazily = delayed(join, pure=False)
        weighed = delayed(weigh, pure=False) if factors is not None else lambda targets, w: w
        parts = [
            (rows, lazily(targets, codes), weighed(targets, given))
            for (rows, targets, given), codes in zip(
                collection.parts, splits.rows.code_parts(), strict=True
            )
        ]
    return replace(
        collection, parts=parts, multi_output=True, classification=False,
        inputs=(X, None, weight[0] if weight else None),
    ), classes  # fmt: skip


def class_factors(
    class_weight: Any, classes: NDArray[Any], sums: Callable[[], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Weight of each class, of what the user gave; `sums` tells those of its rows.

    Raises
    ------
    InvalidParameterError
        A label is none of the classes.
    """
    if isinstance(class_weight, str):
        of_class = sums()
        return np.asarray(of_class.sum() / (len(classes) * of_class), np.float64)
    known = classes.tolist()
    if unknown := [label for label in class_weight if label not in known]:
        raise InvalidParameterError(
            f"The given class_weight dict must have the class labels as keys: {unknown} are none "
            f"of {known}."
        )
    return np.array([float(class_weight.get(label, 1.0)) for label in known])


def _label_sums(collection: Collection, classes: NDArray[Any]) -> NDArray[np.float64]:
    """Weights of the rows of each label, as a weight of two is as good as a row twice."""
    found: NDArray[np.float64] = reduce_parts(collection, partial(_sums_of, classes), _added)
    return found


def _sums_of(classes: NDArray[Any], index: int, X: Any, y: Any, weight: Any) -> NDArray[np.float64]:
    codes = np.searchsorted(classes, np.asarray(y))
    given = None if weight is None else np.broadcast_to(np.asarray(weight, float), codes.shape)
    return np.bincount(codes, given, len(classes)).astype(np.float64)


def _added(sums: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.asarray(np.sum(sums, axis=0))


def _weighed(classes: Any, factors: Any, targets: Any, given: Any) -> Any:
    """Weights of rows, times those of their labels."""
    if factors is None:
        return given
    of_labels = factors[np.searchsorted(classes, np.asarray(targets))]
    return of_labels if given is None else of_labels * np.asarray(given)


def _labels(splits: Splits, collection: Collection) -> NDArray[Any]:
    """Sorted labels; of a splitter that has counted them, without another pass."""
    if collection.kind == "memory":
        labels = np.unique(np.asarray(collection.parts[0][1]))
    else:
        codes = splits.rows.codes
        known = codes.order.labels if isinstance(codes, ByPlace | ByRange) else None
        labels = label_counts(collection, first_seen=False)[0] if known is None else known
        labels = np.unique(labels)
    if len(labels) < 2:
        raise InvalidDataError(
            f"y holds one class only: {labels.tolist()}. A classifier needs at least two classes."
        )
    return labels


def _joined(classes: NDArray[Any] | None, targets: Any, codes: Ints) -> NDArray[np.float64]:
    """Targets (numbers of their labels) and codes counted from 1, so that none is 0."""
    values = np.asarray(targets)
    values = values if classes is None else np.searchsorted(classes, values)
    return np.column_stack([values, codes + 1.0])
