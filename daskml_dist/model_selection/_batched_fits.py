"""Batched fits of candidates and splits: linear models that are trained in the same passes.

A pass over the rows of Dask collections costs far more than the arithmetic of one linear model.
`fit_batched` therefore trains the models of all candidates on all splits as columns of one matrix
of coefficients: each pass computes the scores of a row in all columns by one matrix product, and
the row's code determines which columns train on it. `_fit_batched_pipelines` does so with the last
steps of pipelines, with one batched fit for each split, since fitted transformers make the rows of
each split different.

The batch also scores all columns at once while it holds the rows: scores that are functions of sums
over rows (accuracy, R^2, log loss), of the weights of pairs of a true and a predicted label (F1),
or of the order of the rows by their scores (ROC AUC). For other scores `BatchedScorer` reads the
rows of a side again for each column.
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
from daskml_dist.data.conversion import check_class_labels, check_numeric_dtype
from daskml_dist.data.reduce import (
    PassGenerator,
    add_arrays,
    reduce_parts,
    run_computation,
    run_in_lock_step,
)
from daskml_dist.data.row_checks import explain_unsortable_labels
from daskml_dist.diagnostics.operation_progress import report_phase, report_reading
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
    FoldsByPlace,
    FoldsByRange,
    Ints,
    ThinnedCodes,
    count_labels_by_block,
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
from daskml_dist.models.batched import TEST, TRAIN, FoldAssignment
from daskml_dist.parameters.checks import check_weighed
from daskml_dist.solvers.batched_scores import (
    CANDIDATE_SCORES,
    CLASS_RANKINGS,
    RANKINGS,
    ScoreParts,
)
from daskml_dist.training.dataset_info import balanced_weights

#: Function of a batched fit and ``role=`` that returns a score from the fit's sums.
BatchedScore = Callable[..., float]
#: Names of the scores that the `score` methods of this package's estimators return.
_OWN_SCORES: dict[Any, str] = {inspect.unwrap(BaseClassifier.score): "accuracy", score_r2: "r2"}


def can_fit_batched(estimators: Sequence[Any]) -> bool:
    """Return whether estimators can be fitted as one batch, judged by their parameters."""
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
    """Fit and score candidates as batched fits; return a list of fits each, and the batch count.

    None if candidates cannot be fitted as one. `scoring` holds the user's scores by name, and
    `scorers` the scoring functions for them.
    """
    if not splits.can_batch or has_several_columns(splits.inputs[1]):
        return None
    by_rounds = can_batch(estimators)
    # Two kinds: rounds of a solver, which all models make together, or gradient steps, with one
    # batch for each set of equal settings.
    by_steps = None if by_rounds else group_step_estimators(estimators)
    if not by_rounds and by_steps is None:
        return None
    collection, classes = align_targets(splits, estimators[0]._classification)
    score = BatchedScorer(
        estimators[0], splits, collection, scoring, scorers, train_score, error_score
    )
    fit_inputs = collection, splits.roles, classes
    fits: list[list[BatchedFit | FailedCandidate]]
    try:
        if by_steps is None:
            fit_rows = fit_batch(estimators, *fit_inputs, score.roles, score.score_parts)
            fits = [list(row) for row in fit_rows]
        else:
            fits = _fit_step_batches(estimators, by_steps, *fit_inputs, score)
    except NotBatchableError:  # depends on the rows: a split may lack a label
        return None
    n_batches = 1 if by_steps is None else len(by_steps)
    return [list(map(score, row, range(len(row)))) for row in fits], n_batches


@dataclass(eq=False)
class FailedCandidate:
    """Candidate of a batched fit that has diverged on a split.

    Parameters
    ----------
    error : Exception
    seconds : float
        Its share of the batch's time.
    """

    error: Exception
    seconds: float


def _fit_step_batches(
    estimators: Sequence[Any],
    batches: list[list[int]],
    collection: Collection,
    roles: FoldAssignment,
    classes: Any,
    score: BatchedScorer,
) -> list[list[BatchedFit | FailedCandidate]]:
    """Fit candidates by gradient steps, one fit for each batch of candidates' numbers."""
    by_number: dict[int, list[BatchedFit | FailedCandidate]] = {}
    for k, numbers in enumerate(batches):
        report_phase("stacks of candidates", k, len(batches), "stack")
        batch = BatchedSteps([estimators[number] for number in numbers], roles, classes)
        with batch.open_candidates(collection) as columns:
            batch.advance(columns, max(column.stopping.max_iter for column in columns))
            fits = score.collect_fits(batch, columns)
        for k, number in enumerate(numbers):
            # Columns are in the order of the candidates, then of the splits.
            by_number[number] = fits[k * roles.n_splits : (k + 1) * roles.n_splits]
    return [by_number[number] for number in range(len(estimators))]


# --- pipelines ---------------------------------------------------------------------------------


def can_batch_pipelines(estimators: Sequence[Any]) -> bool:
    """Return whether estimators are pipelines whose last steps can be fitted as one batch."""
    for candidate in estimators:
        # Steps must be of this package, with transformers and without a cache: only the pipeline's
        # own fit would read and fill a cache.
        if (
            not isinstance(candidate, Pipeline)
            or len(candidate.steps) < 2
            or candidate.memory is not None
        ):
            return False
        if not takes_dask_collections(candidate):
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
    """Fit and score estimators or pipelines by batched fits; None where these are impossible.

    Scores use the weights of rows. Returns and arguments are those of :func:`fit_batched`.
    """
    fit = _fit_batched_pipelines if can_batch_pipelines(estimators) else fit_batched
    try:
        return fit(
            estimators, splits, scoring, scorers, train_score=train_score, error_score=error_score
        )
    except (InvalidParameterError, InvalidDataError):
        if error_score == "raise":
            raise
        # One bad candidate fails the whole batch. Fits one by one find the failed candidates, and
        # score the others.
        return None


def _fit_batched_pipelines(
    estimators: Sequence[Any],
    splits: Splits,
    scoring: Mapping[str, Any],
    scorers: Mapping[str, Any],
    *,
    train_score: bool,
    error_score: Any = np.nan,
) -> tuple[list[list[SplitFit]], int] | None:
    """Fit and score pipelines by batched fits of their last steps; None if that is impossible.

    Transformers are fitted to the training rows of a split once for all its candidates, and rows
    are transformed as a batched fit reads them.
    """
    if splits.plain or splits.cut or not splits.by_roles or has_several_columns(splits.inputs[1]):
        return None  # arguments of steps, rows that have several roles, or several targets
    if not all(score is None or isinstance(score, str) for score in scoring.values()):
        return None  # a function is called with the whole pipeline, and a batch has last steps only
    options = {"train_score": train_score, "error_score": error_score}
    by_number: dict[int, list[SplitFit]] = {}
    n_batches = 0
    groups = _group_pipelines(estimators)
    # Rows are kept, since the fit of each group and split reads and transforms them again.
    with splits.persist_rows() as splits:
        begin = time.perf_counter()
        heads, splits = _fit_transformers([estimators[numbers[0]] for numbers in groups], splits)
        seconds = (time.perf_counter() - begin) / (len(estimators) * splits.n_splits)
        for numbers, heads_of_group in zip(groups, heads, strict=True):
            for split, head in enumerate(heads_of_group):
                rows = splits.take_split(split, head.transform(splits.inputs[0]))
                last_steps = [clone(estimators[number].steps[-1][1]) for number in numbers]
                result = fit_batched(last_steps, rows, scoring, scorers, **options)
                # If one group cannot be batched, all candidates are fitted one by one.
                if result is None:
                    return None
                n_batches += result[1]
                for number, (fit,) in zip(numbers, result[0], strict=True):
                    fit.fit_time += seconds  # an equal share of the transformers' fits
                    if fit.estimator is not None:
                        # The candidates of a group share the fitted transformers of a split.
                        pipeline = clone(estimators[number])
                        name, _ = pipeline.steps[-1]
                        pipeline.steps = [*head.steps, (name, fit.estimator)]
                        fit.estimator = pipeline
                    by_number.setdefault(number, []).append(fit)
    return [by_number[number] for number in range(len(estimators))], n_batches


def _fit_transformers(
    pipelines: Sequence[Pipeline], splits: Splits
) -> tuple[list[list[Pipeline]], Splits]:
    """Return all steps but the last of each pipeline, fitted to the training rows of each split.

    The splits are returned too, with their training rows counted.
    """
    report_phase(f"fits of the transformers of {splits.n_splits} splits")
    heads = [[clone(Pipeline(p.steps[:-1])) for _ in range(splits.n_splits)] for p in pipelines]
    # Each fit is a generator that yields reductions over rows and receives their results. All
    # generators advance together, so that their reductions share passes, and a block is read once
    # for all splits.
    generators: list[PassGenerator[Any]] = [
        splits.count_trained(pipelines[0].steps[-1][1]._classification)
    ]
    for split in range(splits.n_splits):
        X, y, _ = splits.select_side(split, TRAIN)
        for heads_of_splits in heads:
            if splits.codes is None:
                generators.append(fit_in_passes(heads_of_splits[split], X, y))
            else:
                heads_of_splits[split].fit(X, y)
    with report_reading("transformers"):
        trained, *_ = run_computation(run_in_lock_step(generators))
    splits_with_counts = copy.copy(splits)
    splits_with_counts.trained = trained
    return heads, splits_with_counts


def _group_pipelines(estimators: Sequence[Any]) -> list[list[int]]:
    """Return the numbers of pipelines, in groups with the same transformers and parameters."""
    groups: dict[str, list[int]] = {}
    for number, pipeline in enumerate(estimators):
        # Compared by values of parameters, not by identity: each candidate has its own
        # transformers.
        key = [
            (name, type(step), step if isinstance(step, str) else step.get_params())
            for name, step in pipeline.steps[:-1]
        ]
        groups.setdefault(tokenize(key), []).append(number)
    return list(groups.values())


# --- scores of a batched fit's sums ------------------------------------------------------------


def name_scores(scoring: Any) -> dict[str, Any] | None:
    """Return the scores by name; None for a callable, which may return several scores."""
    if scoring is None or isinstance(scoring, str):
        return {"score": scoring}
    if isinstance(scoring, dict):
        return dict(scoring)
    return {name: name for name in scoring} if isinstance(scoring, list | tuple | set) else None


def find_batched_score(estimator: Any, user_score: Any) -> BatchedScore | None:
    """Return a score as a function of a batched fit's sums; None if it needs the rows.

    `user_score` is the user's: a name, a scorer, or None for the estimator's own score.
    """
    if user_score is None:
        user_score = _OWN_SCORES.get(inspect.unwrap(type(estimator).score))
    kind = "classifier" if estimator._classification else "regressor"
    # The sums hold the loss that the fit minimises: this is the log loss only for a fit that
    # minimises it.
    if user_score == "neg_log_loss" and estimator._loss().name != "log_loss":
        return None
    if isinstance(user_score, str) and user_score in CANDIDATE_SCORES[kind]:
        return partial(BatchedFit.score, name=user_score)
    if not estimator._classification:
        return None
    if isinstance(user_score, str) and user_score in {*RANKINGS, *CLASS_RANKINGS}:
        return partial(_score_by_ranking, name=user_score)
    if n_best := find_top_k(user_score):  # k of a top-k accuracy
        return partial(_score_by_top_k, n_best=n_best)
    scorer = SCORERS.get(user_score) if isinstance(user_score, str) else user_score
    if isinstance(scorer, Scorer) and scorer.is_of_label_pairs:
        return partial(_score_by_pairs, scorer=scorer)
    return None


def _score_by_ranking(fit: BatchedFit, role: int, name: str) -> float:
    """Return a ranking score, such as ROC AUC; NaN if the rows must be read for it."""
    # Average precision treats the label 1 as the positive one, and the batched fit the larger one.
    if name == "average_precision" and fit.estimator.classes_[-1] != 1:
        return np.nan
    return fit.ranking(name, role)


def _score_by_top_k(fit: BatchedFit, role: int, n_best: int) -> float:
    """Return the share of rows whose label is among the `n_best`; NaN if rows are needed."""
    return fit.compute_top_k(n_best, role)


def _score_by_pairs(fit: BatchedFit, role: int, scorer: Scorer) -> float:
    """Return a score of predicted labels from the confusion matrix, each cell a weighted row."""
    classes, weights = fit.estimator.classes_, fit.label_pairs(role).ravel()
    # Empty cells are left out: as a row of weight 0 a cell would give the scorer a label that no
    # row has, and a mean over labels would count it.
    filled = weights > 0
    y_true, y_pred = np.repeat(classes, len(classes)), np.tile(classes, len(classes))
    return scorer.score_answers(
        y_true[filled], y_pred[filled], fit.estimator, sample_weight=weights[filled]
    )


def _score_with_weight(score: BatchedScore, fit: BatchedFit, role: int, split: int) -> float:
    """Return a score; raise an error if the weights of a split's rows sum to zero."""
    check_weighed({split: fit.sums[role][0]})
    return score(fit, role=role)


class BatchedScorer:
    """Scorer of the columns of batched fits, called with a column's fit and its split.

    Parameters
    ----------
    estimator : estimator
        Any of the candidates.
    splits : Splits
    collection : Collection
    scoring : mapping of str to object
        The user's scores by name.
    scorers : mapping of str to callable
        The same scores as functions of an estimator and rows.
    train_score : bool
    error_score : "raise" or float

    Attributes
    ----------
    roles : tuple of int
        Roles of the rows that are scored.
    score_parts : ScoreParts
        Parts of a fit's sums that the scores are made of.
    """

    def __init__(
        self, estimator: Any, splits: Splits, collection: Collection, scoring: Mapping[str, Any],
        scorers: Mapping[str, Any], train_score: bool, error_score: Any,
    ) -> None:  # fmt: skip
        # Scores as functions of the sums that a batch computes from its rows; None: rows are read.
        batched_scores = {
            name: find_batched_score(estimator, user_score) for name, user_score in scoring.items()
        }
        self._batched_scores, self._error_score = batched_scores, error_score
        # The batch computes only the sums that some score needs.
        kinds = {score.func for score in batched_scores.values() if isinstance(score, partial)}
        self.score_parts = ScoreParts(
            pairs=_score_by_pairs in kinds,
            ranks=_score_by_ranking in kinds,
            places=_score_by_top_k in kinds,
        )
        scores_of_sums = {
            name: partial(_score_with_weight, score)
            for name, score in batched_scores.items()
            if score is not None
        }
        self._sum_scorers = guard_scorers(scores_of_sums, error_score)
        self._row_scorers = guard_scorers(scorers, error_score)
        ranking = {_score_by_ranking, _score_by_top_k}
        self._ranked = {
            name
            for name, score in batched_scores.items()
            if isinstance(score, partial) and score.func in ranking
        }
        self.roles = (TEST, TRAIN) if train_score else (TEST,)
        self._features = collection.feature_names
        # A side of a split is selected once for all columns.
        self._select_side = cache(splits.select_side)

    def collect_fits(
        self, batch: BatchedSteps, columns: Sequence[StepCandidate]
    ) -> list[BatchedFit | FailedCandidate]:
        """Return the fit of each column, with the sums for its scores."""
        # Now, while the batch holds the rows: later each score would have to read them again.
        sums = {role: batch.scores(columns, role, self.score_parts) for role in self.roles}
        ranks = {
            role: batch.rankings(columns, role) for role in self.roles if self.score_parts.ranks
        }
        fits: list[BatchedFit | FailedCandidate] = []
        for k, column in enumerate(columns):
            column_sums = {role: of_columns[k] for role, of_columns in sums.items()}
            column_ranks = {role: of_columns[k] for role, of_columns in ranks.items()}
            try:
                estimator = batch.make_fitted(column)
            except DivergedError as error:
                # A column that diverges does not affect the others.
                fits.append(FailedCandidate(error, column.seconds))
            else:
                fits.append(BatchedFit(estimator, column_sums, column.seconds, column_ranks))
        return fits

    def __call__(self, fit: BatchedFit | FailedCandidate, split: int) -> SplitFit:
        """Return the scores of a column."""
        if isinstance(fit, FailedCandidate):
            return SplitFit.warn_failure(
                fit.error, "A fit", self._batched_scores, len(self.roles) > 1, self._error_score,
                fit.seconds,
            )  # fmt: skip
        if self._features is not None:  # a batch sees arrays, and no names of columns
            fit.estimator.feature_names_in_ = self._features
        begin, scores = time.perf_counter(), []
        for role in self.roles:
            scores_of_role = {
                name: score(fit, role, split) for name, score in self._sum_scorers.items()
            }
            # Rows are read for scores without sums, and for rankings that the sums do not
            # determine.
            remaining = [name for name in self._batched_scores if name not in scores_of_role]
            remaining += [name for name in self._ranked if np.isnan(scores_of_role[name])]
            if remaining:
                scorers = {name: self._row_scorers[name] for name in remaining}
                scores_of_role |= score_sides(
                    scorers, fit.estimator, *self._select_side(split, role), is_weighted=True
                )
            scores.append({name: scores_of_role[name] for name in self._batched_scores})
        seconds = time.perf_counter() - begin
        train = scores[1] if len(scores) > 1 else {}
        return SplitFit(scores[0], train, fit.seconds, seconds, fit.estimator)


# --- rows, targets and class weights -----------------------------------------------------------


def align_targets(
    splits: Splits, classification: bool, *, multi_output: bool = False, class_weight: Any = None
) -> tuple[Collection, Any]:
    """Return the rows in the form that a batched fit reads, and the labels of a classifier.

    The targets of the collection have the rows' codes as the last column. With `class_weight` the
    weights of rows are multiplied by those of their labels.
    """
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
        factors = weigh_classes_by_sums(class_weight, classes, sums)
    join = partial(_join_targets_and_codes, classes)
    weigh = partial(_multiply_weights, classes, factors)
    if collection.kind == "memory":
        ((rows, targets, user_weights),) = collection.parts
        parts = [(rows, join(targets, splits.codes), weigh(targets, user_weights))]
    else:
        lazily = delayed(join, pure=False)
        # Without class weights the given ones are passed on unchanged: for example None, which is
        # no task.
        weighed = delayed(weigh, pure=False) if factors is not None else weigh
        parts = [
            (rows, lazily(targets, codes), weighed(targets, user_weights))
            for (rows, targets, user_weights), codes in zip(
                collection.parts, splits.rows.code_parts, strict=True
            )
        ]
    # At this point a target is two columns of numbers: the encoded label, and the code.
    return replace(
        collection, parts=parts, multi_output=True, classification=False,
        inputs=(X, None, weight[0] if weight else None),
    ), classes  # fmt: skip


def weigh_classes_by_sums(
    class_weight: Any, classes: NDArray[Any], sums: Callable[[], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return one weight for each class, from "balanced" or a dict of labels.

    `sums` computes the summed weights of the rows of each class.
    """
    if isinstance(class_weight, str):
        class_sums = sums()
        if not (class_sums.min() >= 0 and np.isfinite(class_sums).all()):
            return np.ones(len(classes))  # the fit will name the row of the invalid weight
        if not class_sums.all():
            raise InvalidDataError(
                f'class_weight="balanced": the weights of the rows of {classes[class_sums == 0]} '
                "sum to zero. Leave these rows out, or give the weight of each class."
            )
        # n / (n_classes * n_c), the heuristic of G. King and L. Zeng, "Logistic regression in rare
        # events data", 2001.
        return balanced_weights(class_sums)
    labels = classes.tolist()
    if unknown := [label for label in class_weight if label not in labels]:
        raise InvalidParameterError(
            f"The given class_weight dict must have the class labels as keys: {unknown} are none "
            f"of {labels}."
        )
    return np.array([float(class_weight.get(label, 1.0)) for label in labels])


def _sum_label_weights(collection: Collection, classes: NDArray[Any]) -> NDArray[np.float64]:
    """Return the summed weights of the rows of each label: a weight of 2 equals a repeated row."""
    return reduce_parts(collection, partial(_sum_block_label_weights, classes), add_arrays)


def _sum_block_label_weights(
    classes: NDArray[Any], index: int, X: Any, y: Any, weight: Any
) -> NDArray[np.float64]:
    codes = np.searchsorted(classes, np.asarray(y))
    # A weight may be one number for all rows.
    row_weights = (
        None if weight is None else np.broadcast_to(np.asarray(weight, float), codes.shape)
    )
    return np.bincount(codes, row_weights, len(classes)).astype(np.float64)


def _multiply_weights(classes: Any, factors: Any, targets: Any, user_weights: Any) -> Any:
    """Return the weights of rows, times the weights of their labels if there are any."""
    if factors is None:
        return user_weights
    weights = factors[np.searchsorted(classes, np.asarray(targets))]
    return weights if user_weights is None else weights * np.asarray(user_weights)


def _find_labels(splits: Splits, collection: Collection) -> NDArray[Any]:
    """Return the sorted labels, without another pass if a splitter has counted them."""
    if collection.kind == "memory":
        with explain_unsortable_labels("y"):
            labels = np.unique(np.asarray(collection.parts[0][1]))
    elif splits.trained is not None and splits.trained.labels is not None:
        labels = splits.trained.labels
    else:
        # A stratified splitter has found the labels, since it orders the rows by them.
        codes = splits.rows.codes
        codes = codes.codes if isinstance(codes, ThinnedCodes) else codes
        counted = codes.order.labels if isinstance(codes, FoldsByPlace | FoldsByRange) else None
        labels = (
            count_labels_by_block(collection, first_seen=False)[0] if counted is None else counted
        )
        labels = np.unique(labels)
    if len(labels) < 2:
        raise InvalidDataError(
            f"y holds one class only: {labels.tolist()}. A classifier needs at least two classes."
        )
    return check_class_labels(labels)


def _join_targets_and_codes(
    classes: NDArray[Any] | None, targets: Any, codes: Ints
) -> NDArray[np.float64]:
    """Return float64 columns of targets and of codes plus 1.

    Labels are encoded as their positions among `classes`. `BatchedLinear` takes codes plus 1.
    """
    values = np.asarray(targets)
    if classes is not None:
        values = np.searchsorted(classes, values)
    check_numeric_dtype(values.dtype, "y")
    return np.column_stack([values, codes + 1]).astype(np.float64, copy=False)
