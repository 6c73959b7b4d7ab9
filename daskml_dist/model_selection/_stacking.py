"""Searches over linear models as stacks: all candidates and splits in one fit."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray
from sklearn.exceptions import FitFailedWarning

from daskml_dist.data.collection import Collection, as_collection
from daskml_dist.data.conversion import check_numeric_dtype
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.diagnostics.works import tell
from daskml_dist.errors import DivergedError, InvalidDataError, InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.batched_fits.gradient_steps import (
    BatchedSteps,
    StepCandidate,
    group_step_estimators,
)
from daskml_dist.estimators.batched_fits.solver_rounds import (
    BatchedFit,
    NotBatchableError,
    can_batch,
    fit_batch,
)
from daskml_dist.estimators.classifier import BaseClassifier
from daskml_dist.estimators.regressor import score_r2
from daskml_dist.metrics.scorers import SCORERS, Scorer, find_top_k
from daskml_dist.model_selection._checks import check_roles, has_columns
from daskml_dist.model_selection._codes import ByPlace, ByRange, Thinned
from daskml_dist.model_selection._failures import safe
from daskml_dist.model_selection._roles import TEST, TRAIN, FoldAssignment, Ints
from daskml_dist.model_selection._split_rows import label_counts
from daskml_dist.model_selection._validation import Fitted, Splits, score_sides
from daskml_dist.parameters.checks import check_weighed
from daskml_dist.solvers.batched_scores import (
    CANDIDATE_SCORES,
    CLASS_RANKINGS,
    RANKINGS,
    ScoreParts,
)

__all__ = [
    "FailedFit",
    "ScoresOfStacks",
    "class_factors",
    "fits_of_columns",
    "looks_of",
    "of_sums",
    "stacked_fits",
    "stacks",
    "targets_of",
]

#: A score of a stack's sums: takes the fit and ``role=``.
OfSums = Callable[..., float]

#: Names of the scores that the package's own methods `score` return.
_OWN_SCORES: dict[Any, str] = {inspect.unwrap(BaseClassifier.score): "accuracy", score_r2: "r2"}


def stacks(estimators: Sequence[Any]) -> bool:
    """Return whether estimators can be fitted as stacks, as far as they tell."""
    return can_batch(estimators) or group_step_estimators(estimators) is not None


def stacked_fits(
    estimators: Sequence[Any],
    splits: Splits,
    scoring: Mapping[str, Any],
    scorers: Mapping[str, Any],
    *,
    train_score: bool,
    error_score: Any = np.nan,
) -> tuple[list[list[Fitted]], int] | None:
    """Fit and score candidates as stacks, and the number of these; None where they are none."""
    if not splits.for_stacks or has_columns(splits.inputs[1]):
        return None
    rounds = can_batch(estimators)
    of_steps = None if rounds else group_step_estimators(estimators)
    if not rounds and of_steps is None:
        return None
    collection, classes = targets_of(splits, estimators[0]._classification)
    weighted = collection.parts[0][2] is not None
    known = {name: of_sums(estimators[0], given) for name, given in scoring.items()}
    given = collection, splits.roles, classes, weighted, train_score, looks_of(known)
    found: list[list[BatchedFit | FailedFit]]
    try:
        if rounds:
            found = [list(row) for row in fit_batch(estimators, *given)]
        else:
            found = _fit_step_stacks(estimators, of_steps or [], *given)
    except NotBatchableError:
        return None
    scored = ScoresOfStacks(splits, collection, known, scorers, train_score, error_score)
    return [list(map(scored, row, range(len(row)))) for row in found], len(of_steps or [0])


@dataclass(eq=False)
class FailedFit:
    """A column of a stack that has come to nothing.

    Parameters
    ----------
    error : Exception
    seconds : float
    """

    error: Exception
    seconds: float

    def scored(self, names: Iterable[str], train_score: bool, error_score: Any) -> Fitted:
        """Scores of a failed fit."""
        if error_score == "raise":
            raise self.error
        scores = dict.fromkeys(names, float(error_score))
        text = (
            f"A fit failed, and its scores are {error_score}. error_score='raise' shows where. "
            f"({type(self.error).__name__}: {self.error})"
        )
        warnings.warn(text, FitFailedWarning, stacklevel=user_stack_level())
        return Fitted(scores, dict(scores) if train_score else {}, self.seconds, error=text)


def _fit_step_stacks(
    estimators: Sequence[Any],
    stacks: list[list[int]],
    collection: Collection,
    roles: FoldAssignment,
    classes: Any,
    weighted: bool,
    train_score: bool,
    looks: ScoreParts,
) -> list[list[BatchedFit | FailedFit]]:
    """Fits by gradient steps, each stack one fit."""
    found: dict[int, list[BatchedFit | FailedFit]] = {}
    for k, numbers in enumerate(stacks):
        tell("stacks of candidates", k, len(stacks), "stack")
        stack = BatchedSteps([estimators[number] for number in numbers], roles, classes)
        with stack.opened(collection, weighted) as columns:
            stack.advance(columns, max(column.stopping.max_iter for column in columns))
            fits = fits_of_columns(stack, columns, train_score, looks)
        for k, number in enumerate(numbers):
            found[number] = fits[k * roles.n_splits : (k + 1) * roles.n_splits]
    return [found[number] for number in range(len(estimators))]


def fits_of_columns(
    stack: BatchedSteps, columns: Sequence[StepCandidate], train_score: bool, looks: ScoreParts
) -> list[BatchedFit | FailedFit]:
    """Fits that columns have come to, with what their scores are made of."""
    roles = (TEST, TRAIN) if train_score else (TEST,)
    sums = {role: stack.scores(columns, role, looks) for role in roles}
    ranks = {role: stack.rankings(columns, role) for role in roles if looks.ranks}
    fits: list[BatchedFit | FailedFit] = []
    for k, column in enumerate(columns):
        try:
            summed, ranked = (
                {role: of_role[k] for role, of_role in found.items()} for found in (sums, ranks)
            )
            fits.append(BatchedFit(stack.fitted(column), summed, column.seconds, ranked))
        except DivergedError as error:
            fits.append(FailedFit(error, column.seconds))
    return fits


def of_sums(estimator: Any, given: Any) -> OfSums | None:
    """A score of a stack's sums; None where it needs another look at the rows."""
    if given is None:
        given = _OWN_SCORES.get(inspect.unwrap(type(estimator).score))
    kind = "classifier" if estimator._classification else "regressor"
    if given == "neg_log_loss" and estimator._loss().name != "log_loss":
        return None
    if isinstance(given, str) and given in CANDIDATE_SCORES[kind]:
        return partial(BatchedFit.score, name=given)
    rankings = {*RANKINGS, *CLASS_RANKINGS}
    if isinstance(given, str) and given in rankings and estimator._classification:
        return partial(_of_ranks, name=given)
    if estimator._classification and (n_best := find_top_k(given)):
        return partial(_of_places, n_best=n_best)
    scorer = SCORERS.get(given) if isinstance(given, str) else given
    if estimator._classification and isinstance(scorer, Scorer) and scorer.is_of_label_pairs:
        return partial(_of_pairs, scorer=scorer)
    return None


def looks_of(known: Mapping[str, OfSums | None]) -> ScoreParts:
    """Parts that scores are made of."""
    made = {one.func for one in known.values() if isinstance(one, partial)}
    return ScoreParts(_of_pairs in made, _of_ranks in made, _of_places in made)


def _of_ranks(fit: BatchedFit, role: int, name: str) -> float:
    """A ranking score; NaN where the rows themselves have to tell it."""
    # The metric calls the label 1 positive, the stack the larger one.
    if name == "average_precision" and fit.estimator.classes_[-1] != 1:
        return np.nan
    return fit.ranking(name, role)


def _of_places(fit: BatchedFit, role: int, n_best: int) -> float:
    return fit.among(n_best, role)


def _of_pairs(fit: BatchedFit, role: int, scorer: Scorer) -> float:
    """A score of labels, each pair of a true and a predicted one a row of its weight."""
    classes, weights = fit.estimator.classes_, fit.pairs(role).ravel()
    there = weights > 0
    truth, guess = np.repeat(classes, len(classes)), np.tile(classes, len(classes))
    return scorer.score_answers(
        truth[there], guess[there], fit.estimator, sample_weight=weights[there]
    )


def _weighed_score(of: OfSums, fit: BatchedFit, role: int, split: int) -> float:
    check_weighed({split: fit.sums[role][0]})
    return of(fit, role=role)


class ScoresOfStacks:
    """Scores of what columns have come to.

    Parameters
    ----------
    splits : Splits
    collection : Collection
    known : mapping of str to callable or None
        Scores of a stack's sums; None: it has no sums for it.
    scorers : mapping of str to callable
    train_score : bool
    error_score : "raise" or float
    """

    def __init__(
        self, splits: Splits, collection: Collection, known: Mapping[str, OfSums | None],
        scorers: Mapping[str, Any], train_score: bool, error_score: Any,
    ) -> None:  # fmt: skip
        self._known, self._error_score = known, error_score
        sums = {n: partial(_weighed_score, of) for n, of in known.items() if of is not None}
        self._of_sums = safe(sums, error_score)
        self._scorers = safe(scorers, error_score)
        of_ranks = {_of_ranks, _of_places}
        self._ranked = {
            n for n, of in known.items() if isinstance(of, partial) and of.func in of_ranks
        }
        self._roles = (TEST, TRAIN) if train_score else (TEST,)
        self._features = collection.feature_names
        # Rows are cut once, for all columns.
        self._side = cache(splits.side)

    def __call__(self, fit: BatchedFit | FailedFit, split: int) -> Fitted:
        """Score a column, of a split."""
        if isinstance(fit, FailedFit):
            return fit.scored(self._known, len(self._roles) > 1, self._error_score)
        if self._features is not None:
            fit.estimator.feature_names_in_ = self._features
        begin, scores = time.perf_counter(), []
        for role in self._roles:
            found = {n: of(fit, role, split) for n, of in self._of_sums.items()}
            left = [n for n in self._known if n not in found]
            left += [n for n in self._ranked if np.isnan(found[n])]
            rest = {n: self._scorers[n] for n in left}
            if rest:
                found |= score_sides(rest, fit.estimator, *self._side(split, role), weigh=True)
            scores.append({n: found[n] for n in self._known})
        taken = time.perf_counter() - begin
        train = scores[1] if len(scores) > 1 else {}
        return Fitted(scores[0], train, fit.seconds, taken, fit.estimator)


def targets_of(
    splits: Splits, classification: bool, *, multi_output: bool = False, class_weight: Any = None
) -> tuple[Collection, Any]:
    """The rows, with targets and then codes as columns; and the labels of a classifier."""
    check_roles(splits.by_roles)
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
                collection.parts, splits.rows.code_parts, strict=True
            )
        ]
    return replace(
        collection, parts=parts, multi_output=True, classification=False,
        inputs=(X, None, weight[0] if weight else None),
    ), classes  # fmt: skip


def class_factors(
    class_weight: Any, classes: NDArray[Any], sums: Callable[[], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Weight of each class, of what the user gave; `sums` tells those of its rows."""
    if isinstance(class_weight, str):
        of_class = sums()
        if not (of_class.min() >= 0 and np.isfinite(of_class).all()):
            return np.ones(len(classes))  # a fit names the row of such a weight
        if not of_class.all():
            raise InvalidDataError(
                f'class_weight="balanced": the weights of the rows of {classes[of_class == 0]} '
                "sum to zero. Leave these rows out, or name the weight of each class."
            )
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
    elif splits.trained is not None and splits.trained.labels is not None:
        labels = splits.trained.labels
    else:
        codes = splits.rows.codes
        codes = codes.codes if isinstance(codes, Thinned) else codes
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
    if classes is not None:
        values = np.searchsorted(classes, values)
    check_numeric_dtype(values.dtype, "y")
    return np.column_stack([values, codes + 1]).astype(np.float64, copy=False)
