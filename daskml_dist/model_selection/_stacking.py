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
from daskml_dist.errors import InvalidDataError
from daskml_dist.metrics.scorers import SCORERS, Scorer
from daskml_dist.model_selection._codes import ByPlace, ByRange
from daskml_dist.model_selection._roles import TEST, TRAIN, Ints, Roles
from daskml_dist.model_selection._split_rows import label_counts
from daskml_dist.model_selection._validation import Fitted, Splits, score_sides
from daskml_dist.solvers.stacked_scores import SCORES

__all__ = ["stacked_fits"]

#: A score of a stack's sums: takes the fit and ``role=``.
_OfSums = Callable[..., float]

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
    collection, classes = _targets(splits, estimators[0]._classification)
    if classes is not None and not _all_labels_met(collection, splits.roles, len(classes)):
        return None  # such fits know fewer labels than the others
    weighted = collection.parts[0][2] is not None
    known = {name: _of_sums(estimators[0], given) for name, given in scoring.items()}
    pairs = any(isinstance(score, partial) and score.func is _of_pairs for score in known.values())
    found = fit_stack(estimators, collection, splits.roles, classes, weighted, train_score, pairs)
    result = []
    for row in found:
        fits = []
        for split, fit in enumerate(row):
            if collection.feature_names is not None:
                fit.estimator.feature_names_in_ = collection.feature_names
            fits.append(_scored(fit, split, splits, known, scorers, train_score))
        result.append(fits)
    return result


def _of_sums(estimator: Any, given: Any) -> _OfSums | None:
    """A score of a stack's sums; None where it needs another look at the rows."""
    if given is None:
        owner = next(kind for kind in type(estimator).__mro__ if "score" in vars(kind))
        given = _OWN_SCORES.get(owner)
    kind = "classifier" if estimator._classification else "regressor"
    if isinstance(given, str) and given in SCORES[kind]:
        return partial(StackedFit.score, name=given)
    scorer = SCORERS.get(given) if isinstance(given, str) else given
    if estimator._classification and isinstance(scorer, Scorer) and scorer.of_labels:
        return partial(_of_pairs, scorer=scorer)
    return None


def _of_pairs(fit: StackedFit, role: int, scorer: Scorer) -> float:
    """A score of labels, each pair of a true and a predicted one a row of its weight."""
    classes, weights = fit.estimator.classes_, fit.pairs(role).ravel()
    there = weights > 0
    truth, guess = np.repeat(classes, len(classes)), np.tile(classes, len(classes))
    return scorer.of(truth[there], guess[there], weights[there], fit.estimator)


def _scored(
    fit: StackedFit, split: int, splits: Splits, known: Mapping[str, _OfSums | None],
    scorers: Mapping[str, Any], train_score: bool,
) -> Fitted:  # fmt: skip
    scores: list[dict[str, float]] = []
    for role in (TEST, TRAIN) if train_score else (TEST,):
        found = {n: of_sums(fit, role=role) for n, of_sums in known.items() if of_sums is not None}
        rest = {n: scorers[n] for n, of_sums in known.items() if of_sums is None}
        if rest:
            found |= score_sides(rest, fit.estimator, *splits.side(split, role), weigh=True)
        scores.append({n: found[n] for n in known})
    return Fitted(scores[0], scores[1] if train_score else {}, fit.seconds, 0.0, fit.estimator)


def _targets(splits: Splits, classification: bool) -> tuple[Collection, Any]:
    """The rows, with targets and codes as two columns; and the labels of a classifier."""
    X, y, *weight = splits.inputs
    collection = as_collection(
        X, y, weight[0] if weight else splits.plain.get("sample_weight"),
        classification=classification,
    )  # fmt: skip
    classes = _labels(splits, collection) if classification else None
    join = partial(_joined, classes)
    if collection.kind == "memory":
        ((rows, targets, given),) = collection.parts
        parts = [(rows, join(targets, splits.codes), given)]
    else:
        lazily = delayed(join, pure=False)
        parts = [
            (rows, lazily(targets, codes), given)
            for (rows, targets, given), codes in zip(
                collection.parts, splits.rows.code_parts(), strict=True
            )
        ]
    return replace(
        collection, parts=parts, multi_output=True, classification=False,
        inputs=(X, None, weight[0] if weight else None),
    ), classes  # fmt: skip


def _all_labels_met(collection: Collection, roles: Roles, n_classes: int) -> bool:
    """Whether the training rows of every split have all labels."""
    targets = replace(collection, parts=[(None, part[1], None) for part in collection.parts])
    met: NDArray[np.bool_] = reduce_parts(targets, partial(_met, roles, n_classes), _any)
    return bool(met.all())


def _met(roles: Roles, n_classes: int, index: int, X: Any, targets: Any, w: Any) -> Any:
    labels, codes = targets[:, 0].astype(np.int64), targets[:, -1].astype(np.int64) - 1
    met = np.zeros((roles.n_splits, n_classes), bool)
    for split in range(roles.n_splits):
        met[split, labels[roles.played(codes, split) == TRAIN]] = True
    return met


def _any(parts: list[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    return np.asarray(np.any(parts, axis=0))


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
    out = np.empty((len(values), 2))
    out[:, 0] = values if classes is None else np.searchsorted(classes, values)
    out[:, 1] = codes + 1
    return out
