"""Answers that calibrators are fitted to: those of classifiers, to rows they have not seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from daskml_dist.data.collection import Collection
from daskml_dist.data.conversion import as_column, take_rows
from daskml_dist.errors import InvalidDataError
from daskml_dist.inference.block_mapping import share_in_graph
from daskml_dist.model_selection._fold_rows import TEST, FoldAssignment, count_rows_of_block

__all__ = [
    "Answers",
    "MemberAssignments",
    "answered",
    "check_known_classes",
    "has_decisions",
    "lacking_labels",
]

Floats = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers to some rows, and what these are.

    Parameters
    ----------
    scores : ndarray of shape (n, n_columns)
        Decisions or probabilities; of two classes those of the second.
    labels : ndarray of int64 of shape (n,)
        Numbers of the classes.
    weights : ndarray of float64 of shape (n,)
    """

    scores: Floats
    labels: NDArray[np.int64]
    weights: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MemberAssignments:
    """Classifiers, and who of them answers which rows. Picklable.

    Parameters
    ----------
    fits : list of estimator
        One a split, or one for all rows.
    roles : FoldAssignment or None
        None: every row is answered by the only one.
    classes : ndarray
        All labels, sorted.
    apart : bool
        Whether the answers to the test rows of each split are kept apart.
    """

    fits: list[Any]
    roles: FoldAssignment | None
    classes: NDArray[Any]
    apart: bool

    def __call__(self) -> MemberAssignments:
        """Itself: what is shared is a function."""
        return self

    def of(self, X: Any, codes: Any, y: Any, weight: Any) -> list[Answers | None]:
        """Answers to a block's rows, in as many lots as there are calibrators' fits."""
        n = count_rows_of_block(X)
        labels = np.searchsorted(self.classes, as_column(y, name="y"))
        weights = _weights(weight, n)
        if self.roles is None:
            at = np.arange(n)
            return [self._one(self.fits[0], X, labels, weights, at, whole=False)]
        lots: list[Answers | None] = []
        for split, fitted in enumerate(self.fits):
            at = np.flatnonzero(self.roles.played(codes, split) == TEST)
            lots.append(self._one(fitted, X, labels, weights, at, whole=not self.apart))
        if self.apart:
            return lots
        filled = [lot for lot in lots if lot is not None]
        if sum(len(lot.labels) for lot in filled) != n:
            raise InvalidDataError(
                "With ensemble=False every row must be in the test rows of one split. Use KFold or "
                "StratifiedKFold as cv."
            )
        if not filled:
            return [None]
        parts = [(lot.scores, lot.labels, lot.weights) for lot in filled]
        return [Answers(*map(np.concatenate, zip(*parts, strict=True)))]

    def _one(
        self, fitted: Any, X: Any, labels: Any, weights: Any, at: NDArray[np.intp], *, whole: bool
    ) -> Answers | None:
        if not len(at):
            return None
        rows = take_rows(X, at)
        scores = answered(fitted, rows)
        if whole and len(fitted.classes_) != len(self.classes):
            # A fold's model knows some of the classes; the others get no probability.
            known = np.searchsorted(self.classes, fitted.classes_)
            is_decided = has_decisions(fitted)
            if not is_decided:
                scores = np.asarray(fitted.predict_proba(rows))
            none = np.finfo(scores.dtype).min if is_decided else 0.0
            wide = np.full((len(scores), len(self.classes)), none, scores.dtype)
            wide[:, known] = scores
            scores = wide
        return Answers(scores, labels[at], weights[at])

    def blocks(self, rows: Collection, codes: list[Any]) -> Collection:
        """The lots of each block, as rows of a collection."""
        make = delayed(_answers_of_block, pure=False)
        once = share_in_graph(self)
        parts = [
            (make(once, X, code, y, weight), None, None)
            for (X, y, weight), code in zip(rows.parts, codes, strict=True)
        ]
        return replace(rows, parts=parts, inputs=(None, None, None))  # lots are no rows


def _answers_of_block(asked: Any, X: Any, codes: Any, y: Any, weight: Any) -> Any:
    own: MemberAssignments = asked()
    if not count_rows_of_block(X):
        return [None] * (len(own.fits) if own.apart else 1)
    return own.of(X, codes, y, weight)


def has_decisions(fitted: Any) -> bool:
    """Return whether a classifier gives decisions, which are preferred to probabilities."""
    return hasattr(fitted, "decision_function")


def check_known_classes(fits: list[Any], classes: NDArray[Any], method: str, apart: bool) -> None:
    """Raise an error where a fold's model lacks a class that its calibrator needs.

    Temperatures are of all classes together. Decisions of two classes are one column, and those of
    unknown classes have no number that a temperature could scale.
    """
    for split, fitted in enumerate(fits):
        lacking = np.setdiff1d(classes, fitted.classes_).tolist()
        with_decisions = has_decisions(fitted)
        needs_all = method == "temperature" and (apart or with_decisions)
        needs_all |= not apart and with_decisions and len(fitted.classes_) <= 2
        if lacking and needs_all:
            raise lacking_labels(f"The training rows of split {split} lack the label(s) {lacking}")


def lacking_labels(what: str) -> InvalidDataError:
    """Return the error of folds that lack a class, which begins with what they lack."""
    return InvalidDataError(
        f"{what}, which calibration of this kind needs in each. Shuffle the rows that are split, "
        "for example cv=StratifiedKFold(5, shuffle=True), or use method='sigmoid' with "
        "ensemble=True, which gives such classes no probability in that fold."
    )


def answered(fitted: Any, X: Any) -> Floats:
    """Decisions or probabilities of rows, a column a class; of two classes one column."""
    if has_decisions(fitted):
        scores = np.asarray(fitted.decision_function(X))
    else:
        scores = np.asarray(fitted.predict_proba(X))
        scores = scores[:, 1:] if scores.shape[1] == 2 else scores
    return scores[:, None] if scores.ndim == 1 else scores


def _weights(given: Any, n: int) -> NDArray[np.float64]:
    """Weights of `n` rows, all 1 where there are none."""
    if given is None or np.ndim(given) == 0:
        weights = np.full(n, 1.0 if given is None else given)
    else:
        weights = as_column(given, name="weight")
    if (weights < 0).any():
        raise InvalidDataError("Some weights are negative. Give weights of at least 0.")
    return weights.astype(np.float64)
