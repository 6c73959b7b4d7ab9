"""Candidates and splits as batched fits: linear models whose fits are columns of one.

`fit_batched` fits and scores candidates on all splits at once where the estimators allow it, and
`_fit_batched_pipelines` does so with the last steps of pipelines, one batched fit a split. Scores
come from sums that the fit itself makes where there are such; others read the rows once more.
"""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from dask.base import tokenize
from dask.delayed import delayed
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from daskml_dist.data.collection import Collection, as_collection
from daskml_dist.data.conversion import check_numeric_dtype
from daskml_dist.data.reduce import (
    PassGenerator,
    add_arrays,
    reduce_parts,
    run_computation,
    run_in_lock_step,
)
from daskml_dist.diagnostics.works import reading, tell
from daskml_dist.errors import DivergedError, InvalidDataError, InvalidParameterError
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
from daskml_dist.estimators.transformer import fit_in_passes
from daskml_dist.metrics.scorers import SCORERS, Scorer, find_top_k
from daskml_dist.model_selection._fold_rows import (
    TEST,
    TRAIN,
    FoldAssignment,
    FoldsByPlace,
    FoldsByRange,
    Ints,
    ThinnedCodes,
    count_labels,
)
from daskml_dist.model_selection._validation import (
    SplitFit,
    Splits,
    check_one_role_each,
    guard_scorers,
    has_several_columns,
    score_sides,
    takes_dask_collections,
)
from daskml_dist.parameters.checks import check_weighed
from daskml_dist.solvers.batched_scores import (
    CANDIDATE_SCORES,
    CLASS_RANKINGS,
    RANKINGS,
    ScoreParts,
)

#: A score of the sums of a batched fit: takes the fit and ``role=``.
BatchedScore = Callable[..., float]


#: Names of the scores that the package's own methods `score` return.
_OWN_SCORES: dict[Any, str] = {inspect.unwrap(BaseClassifier.score): "accuracy", score_r2: "r2"}


def can_fit_batched(estimators: Sequence[Any]) -> bool:
    """Return whether estimators can be fitted as one, as far as they tell without the rows."""
    return can_batch(estimators) or group_step_estimators(estimators) is not None


def fit_batched(
    estimators: Sequence[Any],
    splits: Splits,
    scoring: Mapping[str, Any],
    scorers: Mapping[str, Any],
    *,
    train_score: bool,
    error_score: Any = np.nan,
) -> tuple[list[list[SplitFit]], int] | None:
    """Fit and score candidates as batched fits; return these fits and the number of batches.

    None where candidates cannot be fitted as one.
    """
    if not splits.can_batch or has_several_columns(splits.inputs[1]):
        return None
    by_rounds = can_batch(estimators)
    by_steps = None if by_rounds else group_step_estimators(estimators)
    if not by_rounds and by_steps is None:
        return None
    collection, classes = align_targets(splits, estimators[0]._classification)
    weighted = collection.parts[0][2] is not None
    known = {name: find_batched_score(estimators[0], given) for name, given in scoring.items()}
    given = collection, splits.roles, classes, weighted, train_score, list_score_parts(known)
    found: list[list[BatchedFit | FailedCandidate]]
    try:
        if by_rounds:
            found = [list(row) for row in fit_batch(estimators, *given)]
        else:
            found = _fit_step_batches(estimators, by_steps or [], *given)
    except NotBatchableError:
        return None
    scored = BatchedScorer(splits, collection, known, scorers, train_score, error_score)
    return [list(map(scored, row, range(len(row)))) for row in found], len(by_steps or [0])


@dataclass(eq=False)
class FailedCandidate:
    """A candidate of a batched fit that has diverged on a split.

    Parameters
    ----------
    error : Exception
    seconds : float
    """

    error: Exception
    seconds: float


def _fit_step_batches(
    estimators: Sequence[Any],
    batches: list[list[int]],
    collection: Collection,
    roles: FoldAssignment,
    classes: Any,
    weighted: bool,
    train_score: bool,
    score_parts: ScoreParts,
) -> list[list[BatchedFit | FailedCandidate]]:
    """Fit candidates by gradient steps, each batch as one fit."""
    found: dict[int, list[BatchedFit | FailedCandidate]] = {}
    for k, numbers in enumerate(batches):
        tell("stacks of candidates", k, len(batches), "stack")
        stack = BatchedSteps([estimators[number] for number in numbers], roles, classes)
        with stack.opened(collection, weighted) as columns:
            stack.advance(columns, max(column.stopping.max_iter for column in columns))
            fits = collect_fits(stack, columns, train_score, score_parts)
        for k, number in enumerate(numbers):
            found[number] = fits[k * roles.n_splits : (k + 1) * roles.n_splits]
    return [found[number] for number in range(len(estimators))]


def collect_fits(
    stack: BatchedSteps,
    columns: Sequence[StepCandidate],
    train_score: bool,
    score_parts: ScoreParts,
) -> list[BatchedFit | FailedCandidate]:
    """Return the fit of each column, with the sums that its scores are made of."""
    roles = (TEST, TRAIN) if train_score else (TEST,)
    sums = {role: stack.scores(columns, role, score_parts) for role in roles}
    ranks = {role: stack.rankings(columns, role) for role in roles if score_parts.ranks}
    fits: list[BatchedFit | FailedCandidate] = []
    for k, column in enumerate(columns):
        try:
            summed, ranked = (
                {role: of_role[k] for role, of_role in found.items()} for found in (sums, ranks)
            )
            fits.append(BatchedFit(stack.fitted(column), summed, column.seconds, ranked))
        except DivergedError as error:
            fits.append(FailedCandidate(error, column.seconds))
    return fits


# --- pipelines ---------------------------------------------------------------------------------


def can_batch_pipelines(estimators: Sequence[Any]) -> bool:
    """Return whether estimators are pipelines whose last steps can be fitted as one."""
    if not all(map(_is_lazy_pipeline, estimators)):
        return False
    return can_fit_batched([pipeline.steps[-1][1] for pipeline in estimators])


def fit_batched_or_pipelines(
    estimators: Sequence[Any],
    splits: Splits,
    scoring: Mapping[str, Any],
    scorers: Mapping[str, Any],
    *,
    train_score: bool,
    error_score: Any,
) -> tuple[list[list[SplitFit]], int] | None:
    """Fit and score estimators, or pipelines, by batched fits; None where these are impossible.

    Scores count the weights of rows.
    """
    fit = _fit_batched_pipelines if can_batch_pipelines(estimators) else fit_batched
    try:
        return fit(
            estimators, splits, scoring, scorers, train_score=train_score, error_score=error_score
        )
    except (InvalidParameterError, InvalidDataError):
        if error_score == "raise":
            raise
        return None  # fits by themselves tell which of them have failed


def _fit_batched_pipelines(
    estimators: Sequence[Any],
    splits: Splits,
    scoring: Mapping[str, Any],
    scorers: Mapping[str, Any],
    *,
    train_score: bool,
    error_score: Any = np.nan,
) -> tuple[list[list[SplitFit]], int] | None:
    """Fit and score pipelines by batched fits of their last steps; None where that is impossible.

    Transformers are fitted to the training rows of a split once for all its candidates, and rows
    are transformed as a batched fit reads them. The cluster keeps the rows of the source meanwhile,
    where its memory has room.
    """
    if splits.plain or splits.cut or not splits.by_roles or has_several_columns(splits.inputs[1]):
        return None  # arguments of steps, rows that have several roles, or several targets
    if not all(given is None or isinstance(given, str) for given in scoring.values()):
        return None  # a function of the whole pipeline
    options = {"train_score": train_score, "error_score": error_score}
    found: dict[int, list[SplitFit]] = {}
    n_batches = 0
    groups = _group_pipelines(estimators)
    with splits.kept() as splits:
        begin = time.perf_counter()
        heads, splits = _fit_transformers([estimators[numbers[0]] for numbers in groups], splits)
        seconds = (time.perf_counter() - begin) / (len(estimators) * splits.n_splits)
        for numbers, of_splits in zip(groups, heads, strict=True):
            for split, head in enumerate(of_splits):
                rows = splits.take_split(split, head.transform(splits.inputs[0]))
                last = [clone(estimators[number].steps[-1][1]) for number in numbers]
                of_split = fit_batched(last, rows, scoring, scorers, **options)
                if of_split is None:
                    return None
                n_batches += of_split[1]
                for number, (fit,) in zip(numbers, of_split[0], strict=True):
                    fit.fit_time += seconds
                    if fit.estimator is not None:
                        fit.estimator = _join_pipeline(estimators[number], head, fit.estimator)
                    found.setdefault(number, []).append(fit)
    return [found[number] for number in range(len(estimators))], n_batches


def _is_lazy_pipeline(estimator: Any) -> bool:
    """Return whether an estimator is a pipeline of ours with transformers, and caches nothing."""
    if not isinstance(estimator, Pipeline) or len(estimator.steps) < 2:
        return False
    return takes_dask_collections(estimator) and estimator.memory is None


def _fit_transformers(
    pipelines: Sequence[Pipeline], splits: Splits
) -> tuple[list[list[Pipeline]], Splits]:
    """Return all steps but the last of each pipeline, fitted to the training rows of each split.

    Of Dask collections all are fitted at the same time, so that a pass reads each block once for
    all splits. What the splits train on is counted beside, and returned with these.
    """
    tell(f"fits of the transformers of {splits.n_splits} splits")
    heads = [[clone(Pipeline(p.steps[:-1])) for _ in range(splits.n_splits)] for p in pipelines]
    works: list[PassGenerator[Any]] = [
        splits.count_trained(pipelines[0].steps[-1][1]._classification)
    ]
    for split in range(splits.n_splits):
        X, y, _ = splits.side(split, TRAIN)
        for of_splits in heads:
            if splits.codes is None:
                works.append(fit_in_passes(of_splits[split], X, y))
            else:
                of_splits[split].fit(X, y)
    with reading("transformers"):
        trained, *_ = run_computation(run_in_lock_step(works))
    counted = copy.copy(splits)
    counted.trained = trained
    return heads, counted


def _group_pipelines(estimators: Sequence[Any]) -> list[list[int]]:
    """Return the numbers of pipelines, in groups with the same transformers."""
    found: dict[str, list[int]] = {}
    for number, pipeline in enumerate(estimators):
        key = [
            (name, type(step), step if isinstance(step, str) else step.get_params())
            for name, step in pipeline.steps[:-1]
        ]
        found.setdefault(tokenize(key), []).append(number)
    return list(found.values())


def _join_pipeline(pipeline: Any, head: Pipeline, last: Any) -> Any:
    """Return the pipeline of fitted steps."""
    made = clone(pipeline)
    made.steps = [*head.steps, (pipeline.steps[-1][0], last)]
    return made


# --- scores of a batched fit's sums ------------------------------------------------------------


def name_scores(scoring: Any) -> dict[str, Any] | None:
    """Return the scores by name; None where one is a function of several scores."""
    if scoring is None or isinstance(scoring, str):
        return {"score": scoring}
    if isinstance(scoring, dict):
        return dict(scoring)
    return {name: name for name in scoring} if isinstance(scoring, list | tuple | set) else None


def find_batched_score(estimator: Any, given: Any) -> BatchedScore | None:
    """Return a score of a batched fit's sums; None where it needs another look at the rows."""
    if given is None:
        given = _OWN_SCORES.get(inspect.unwrap(type(estimator).score))
    kind = "classifier" if estimator._classification else "regressor"
    if given == "neg_log_loss" and estimator._loss().name != "log_loss":
        return None
    if isinstance(given, str) and given in CANDIDATE_SCORES[kind]:
        return partial(BatchedFit.score, name=given)
    if not estimator._classification:
        return None
    if isinstance(given, str) and given in {*RANKINGS, *CLASS_RANKINGS}:
        return partial(_score_by_ranking, name=given)
    if n_best := find_top_k(given):
        return partial(_score_by_top_k, n_best=n_best)
    scorer = SCORERS.get(given) if isinstance(given, str) else given
    if isinstance(scorer, Scorer) and scorer.is_of_label_pairs:
        return partial(_score_by_pairs, scorer=scorer)
    return None


def list_score_parts(known: Mapping[str, BatchedScore | None]) -> ScoreParts:
    """Return the parts of a fit's sums that scores are made of."""
    made = {one.func for one in known.values() if isinstance(one, partial)}
    return ScoreParts(_score_by_pairs in made, _score_by_ranking in made, _score_by_top_k in made)


def _score_by_ranking(fit: BatchedFit, role: int, name: str) -> float:
    """Return a ranking score; NaN where the rows themselves have to tell it."""
    # The metric calls the label 1 positive, the batched fit the larger one.
    if name == "average_precision" and fit.estimator.classes_[-1] != 1:
        return np.nan
    return fit.ranking(name, role)


def _score_by_top_k(fit: BatchedFit, role: int, n_best: int) -> float:
    return fit.among(n_best, role)


def _score_by_pairs(fit: BatchedFit, role: int, scorer: Scorer) -> float:
    """Return a score of labels, each pair of a true and a predicted one a row of its weight."""
    classes, weights = fit.estimator.classes_, fit.pairs(role).ravel()
    there = weights > 0
    truth, guess = np.repeat(classes, len(classes)), np.tile(classes, len(classes))
    return scorer.score_answers(
        truth[there], guess[there], fit.estimator, sample_weight=weights[there]
    )


def _score_with_weight(of: BatchedScore, fit: BatchedFit, role: int, split: int) -> float:
    check_weighed({split: fit.sums[role][0]})
    return of(fit, role=role)


class BatchedScorer:
    """Scorer of the columns of batched fits.

    Parameters
    ----------
    splits : Splits
    collection : Collection
    known : mapping of str to callable or None
        Scores of a batched fit's sums; None: it has no sums for it.
    scorers : mapping of str to callable
    train_score : bool
    error_score : "raise" or float
    """

    def __init__(
        self, splits: Splits, collection: Collection, known: Mapping[str, BatchedScore | None],
        scorers: Mapping[str, Any], train_score: bool, error_score: Any,
    ) -> None:  # fmt: skip
        self._known, self._error_score = known, error_score
        sums = {n: partial(_score_with_weight, of) for n, of in known.items() if of is not None}
        self._of_sums = guard_scorers(sums, error_score)
        self._scorers = guard_scorers(scorers, error_score)
        of_ranks = {_score_by_ranking, _score_by_top_k}
        self._ranked = {
            n for n, of in known.items() if isinstance(of, partial) and of.func in of_ranks
        }
        self._roles = (TEST, TRAIN) if train_score else (TEST,)
        self._features = collection.feature_names
        # Rows are cut once, for all columns.
        self._side = cache(splits.side)

    def __call__(self, fit: BatchedFit | FailedCandidate, split: int) -> SplitFit:
        """Return the scores of a column, of a split."""
        if isinstance(fit, FailedCandidate):
            return SplitFit.warn_failure(
                fit.error, "A fit", self._known, len(self._roles) > 1, self._error_score,
                fit.seconds,
            )  # fmt: skip
        if self._features is not None:
            fit.estimator.feature_names_in_ = self._features
        begin, scores = time.perf_counter(), []
        for role in self._roles:
            found = {n: of(fit, role, split) for n, of in self._of_sums.items()}
            # Scores without sums, and rankings whose sums do not tell them, read the rows.
            left = [n for n in self._known if n not in found]
            left += [n for n in self._ranked if np.isnan(found[n])]
            rest = {n: self._scorers[n] for n in left}
            if rest:
                found |= score_sides(rest, fit.estimator, *self._side(split, role), weigh=True)
            scores.append({n: found[n] for n in self._known})
        taken = time.perf_counter() - begin
        train = scores[1] if len(scores) > 1 else {}
        return SplitFit(scores[0], train, fit.seconds, taken, fit.estimator)


# --- rows, targets and class weights -----------------------------------------------------------


def align_targets(
    splits: Splits, classification: bool, *, multi_output: bool = False, class_weight: Any = None
) -> tuple[Collection, Any]:
    """Return the rows, with targets and then codes as columns; and the labels of a classifier."""
    check_one_role_each(splits.by_roles)
    X, y, *weight = splits.inputs
    collection = as_collection(
        X, y, weight[0] if weight else splits.plain.get("sample_weight"),
        classification=classification, multi_output=multi_output,
    )  # fmt: skip
    classes = _find_labels(splits, collection) if classification else None
    factors = None
    if class_weight is not None and classes is not None:
        sums = partial(_sum_label_weights, collection, classes)
        factors = resolve_class_weights(class_weight, classes, sums)
    join = partial(_join_targets_and_codes, classes)
    weigh = partial(_multiply_weights, classes, factors)
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


def resolve_class_weights(
    class_weight: Any, classes: NDArray[Any], sums: Callable[[], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return the weight of each class that the user asked for; `sums` tells that of its rows."""
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


def _sum_label_weights(collection: Collection, classes: NDArray[Any]) -> NDArray[np.float64]:
    """Return the weight of the rows of each label: a weight of two counts as a row twice."""
    return reduce_parts(collection, partial(_sum_block_label_weights, classes), add_arrays)


def _sum_block_label_weights(
    classes: NDArray[Any], index: int, X: Any, y: Any, weight: Any
) -> NDArray[np.float64]:
    codes = np.searchsorted(classes, np.asarray(y))
    given = None if weight is None else np.broadcast_to(np.asarray(weight, float), codes.shape)
    return np.bincount(codes, given, len(classes)).astype(np.float64)


def _multiply_weights(classes: Any, factors: Any, targets: Any, given: Any) -> Any:
    """Return the weights of rows, times the weights of their labels."""
    if factors is None:
        return given
    of_labels = factors[np.searchsorted(classes, np.asarray(targets))]
    return of_labels if given is None else of_labels * np.asarray(given)


def _find_labels(splits: Splits, collection: Collection) -> NDArray[Any]:
    """Return the sorted labels, without another pass where a splitter has counted them."""
    if collection.kind == "memory":
        labels = np.unique(np.asarray(collection.parts[0][1]))
    elif splits.trained is not None and splits.trained.labels is not None:
        labels = splits.trained.labels
    else:
        codes = splits.rows.codes
        codes = codes.codes if isinstance(codes, ThinnedCodes) else codes
        known = codes.order.labels if isinstance(codes, FoldsByPlace | FoldsByRange) else None
        labels = count_labels(collection, first_seen=False)[0] if known is None else known
        labels = np.unique(labels)
    if len(labels) < 2:
        raise InvalidDataError(
            f"y holds one class only: {labels.tolist()}. A classifier needs at least two classes."
        )
    return labels


def _join_targets_and_codes(
    classes: NDArray[Any] | None, targets: Any, codes: Ints
) -> NDArray[np.float64]:
    """Return columns of targets (numbers of labels) and of codes counted from 1, none of them 0."""
    values = np.asarray(targets)
    if classes is not None:
        values = np.searchsorted(classes, values)
    check_numeric_dtype(values.dtype, "y")
    return np.column_stack([values, codes + 1]).astype(np.float64, copy=False)
