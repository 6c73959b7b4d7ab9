"""Batches of linear fits by round solvers: each fit of a search is a column of one fit.

A round solver (L-BFGS, Newton-CG, ...) alternates between sums over all rows, such as the gradient
at a point, and steps that it computes from them. Solvers of many candidates and splits run in lock
step here: one pass over the rows answers the requests of all, and each row counts in the columns
of the splits that train on it. The scores of all fits then take a pass for each role of rows.

From outside: `can_batch` returns whether estimators can form one batch and `fit_batch` fits and
scores them; `open_batched_models` holds the rows for callers with other kinds of fits (`RidgeCV`
and the like, bagging).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.collection import Collection
from daskml_dist.errors import DaskMLDistError
from daskml_dist.estimators.linear.base import BaseLinear
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.models.batched import BatchedLinear, FoldAssignment
from daskml_dist.models.linear import LinearModel
from daskml_dist.solvers.base import SinglePassSolver, Solution, Solver
from daskml_dist.solvers.batched_gradients import SplitLabelWeights, SplitWeights, evaluate_by_split
from daskml_dist.solvers.batched_scores import (
    CANDIDATE_SCORES,
    CLASS_RANKINGS,
    RANKINGS,
    SUMS_ONLY,
    BatchedClassRanks,
    BatchedRankingSolver,
    BatchedRanks,
    BatchedScores,
    ScoreParts,
)
from daskml_dist.solvers.batched_solver import BatchedSolver, Candidate, candidate_solution
from daskml_dist.solvers.lbfgs import LBFGS
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.dataset_info import (
    DatasetInfo,
    TargetSummary,
    balanced_weights,
    named_weights,
)
from daskml_dist.training.in_parts import WholeFitCallbacks
from daskml_dist.training.job import FitJob

#: Maximum candidates of one batch: each solver waits for its sums in a separate thread.
MAX_BATCHED_CANDIDATES = 512
#: Rows times candidates from which solvers start from the solutions for a share of the rows. With
#: fewer, a pass over the share costs about as much as the passes over all rows that it saves.
_MIN_ENTRIES_FOR_SHARE = 1 << 22
#: One run of neighbouring rows in 16 belongs to that share.
_SHARE_OF_ROWS = 16
#: Parameters that must be equal in a batch, since they lay out its one fit.
_SHARED_PARAMETERS = ("run", "device", "callbacks", "verbose")


@dataclass(eq=False)
class BatchedFit:
    """Candidate fitted to the training rows of a split, with the sums needed for its scores.

    Parameters
    ----------
    estimator : estimator
        Fitted.
    sums : dict of int to ndarray
        Sums of :class:`BatchedScores` by role of the rows (`TRAIN`, `TEST`).
    seconds : float
        Share of the batch's time, which is divided evenly.
    ranks : dict of int to ndarray
        Ranking scores by role, in the order of `RANKINGS`, or with more than two labels of
        `CLASS_RANKINGS`.
    """

    estimator: Any
    sums: dict[int, NDArray[np.float64]]
    seconds: float
    ranks: dict[int, NDArray[np.float64]] = field(default_factory=dict)

    def score(self, name: str, role: int) -> float:
        """Return a score, given its name in scikit-learn."""
        kind = "classifier" if self.estimator._classification else "regressor"
        return float(CANDIDATE_SCORES[kind][name](self.sums[role][None, :])[0])

    def ranking(self, name: str, role: int) -> float:
        """Return a ranking score; NaN if it needs another pass over the rows."""
        names = RANKINGS if len(self.estimator.classes_) == 2 else CLASS_RANKINGS
        return float(self.ranks[role][names.index(name)]) if name in names else np.nan

    def compute_top_k(self, n_best: int, role: int) -> float:
        """Return top-k accuracy with k = `n_best`; NaN as in :meth:`ranking`."""
        n_classes = len(self.estimator.classes_)
        # scikit-learn warns that k >= n_classes is perfect, and cuts two classes at a threshold:
        # such cases are left to its own function, which reads the rows.
        if not 2 < n_classes > n_best:
            return np.nan
        # After the sums of a classifier (weight, hits, losses), weights by the label's place.
        sums = self.sums[role]
        return float(sums[3 : 3 + n_best].sum() / sums[0])

    def label_pairs(self, role: int) -> NDArray[np.float64]:
        """Return the confusion matrix of weights, by true and then by predicted label."""
        n_classes = len(self.estimator.classes_)
        return self.sums[role][-n_classes * n_classes :].reshape(n_classes, n_classes)


def can_batch(estimators: Sequence[Any]) -> bool:
    """Return whether estimators can be fitted as one batch."""
    first = estimators[0]
    if not all(isinstance(e, BaseLinear) and isinstance(e, BaseRounds) for e in estimators):
        return False
    if any(type(e) is not type(first) for e in estimators):
        return False
    params = [e._params() for e in estimators]
    alike = all(
        repr(p.get(n)) == repr(params[0].get(n)) for p in params for n in _SHARED_PARAMETERS
    )
    # warm_start needs no check: candidates are clones, which have no last fit.
    return alike and params[0].get("callbacks") is None


def fit_batch(
    estimators: Sequence[Any],
    collection: Collection,
    roles: FoldAssignment,
    classes: Any,
    scored_roles: tuple[int, ...],
    score_parts: ScoreParts,
) -> list[list[BatchedFit]]:
    """Fit clones of estimators to the training rows of each split, and score the fits."""
    for estimator in estimators:
        estimator._check_params()
    begin, n_splits = time.perf_counter(), roles.n_splits
    with open_batched_models(estimators[0], collection, roles, classes) as models:
        pairs = [(number, split) for number in range(len(estimators)) for split in range(n_splits)]
        fits = CandidateFits(models, estimators, pairs, scored_roles, score_parts).compute_fits()
    seconds = (time.perf_counter() - begin) / len(fits)
    for fit in fits:
        fit.seconds = seconds
    return [fits[i : i + n_splits] for i in range(0, len(fits), n_splits)]


@contextmanager
def open_batched_models(
    estimator: Any, collection: Collection, roles: FoldAssignment, classes: Any, *,
    n_targets: int | None = None, client: Any = None, callbacks: CallbackList | None = None,
) -> Iterator[BatchedModels]:  # fmt: skip
    """Hold the rows for a batch of models, laid out as an estimator's `run` and `device` say."""
    with FitJob(collection, client, estimator._run_settings(), callbacks) as job:
        job.rows = DatasetInfo.from_summary(
            job.summarize_rows(), None, None, collection.is_weighted
        )
        # The number of passes is not known yet; 100 is typical of a search.
        job.lay_out_sum_lanes(100)
        summary = TargetSummary(job.rows.summary.infos, n_columns=n_targets)
        # To callbacks, all passes of all solvers look like one fit.
        batch_callbacks = WholeFitCallbacks(job.callbacks, with_parameters=False)
        try:
            rows = replace(job.rows, summary=summary, classes=classes)
            yield BatchedModels(job, rows, roles, batch_callbacks)
        except BaseException as error:
            batch_callbacks.finish(error)
            raise
        batch_callbacks.finish()


class NotBatchableError(DaskMLDistError):
    """Signal that the rows prevent fits from sharing a batch; the caller then fits each alone."""


class SolverFits:
    """Runner of solvers, one after the other, over the rows of one job.

    Attributes
    ----------
    job : FitJob
    records : list of dict
        Records of all passes so far, numbered from 1.
    last : tuple of (FitSpec, FitResult)
        The last fit, from which a history is made.
    """

    def __init__(self, job: FitJob, callbacks: WholeFitCallbacks | None = None) -> None:
        self.job = job
        self._callbacks = callbacks or WholeFitCallbacks(CallbackList(), with_parameters=False)
        self.records: list[dict[str, Any]] = []

    def __call__(self, model: Any, solver: Solver) -> Solution:
        """Run a solver over the rows; return its solution."""
        fit = self.job.plan_rounds(model, solver)
        result = self.job.train(fit, self._callbacks)
        for number, record in enumerate(result.records, start=len(self.records) + 1):
            record["pass"] = number
        self.records += result.records
        self._callbacks.pass_offset = len(self.records)
        result.raise_if_interrupted(len(self.records))
        assert isinstance(result.state, Solution)
        self.last = fit, result
        return result.state

    def split_weights(self, model: BatchedLinear) -> NDArray[np.float64]:
        """Return the weight of each split's training rows, for a classifier by their labels.

        Its shape is (n_splits, n_classes), or (n_splits, 1) for regression.
        """
        weights = model.roles.weights
        if weights is None and model.classes is None:
            return self(model, SinglePassSolver(SplitWeights())).w[:, None]
        if weights is None:
            weights = self(model, SinglePassSolver(SplitLabelWeights())).w
        # A fit to such a split alone would have fewer classes, and so fewer outputs.
        if not weights.all():
            raise NotBatchableError("Training rows of a split lack a label.")
        return weights

    def scores(
        self, model: BatchedLinear, w: NDArray[np.float64], splits: NDArray[np.int64], role: int,
        score_parts: ScoreParts = SUMS_ONLY,
    ) -> NDArray[np.float64]:  # fmt: skip
        """Return the sums needed for candidates' scores, over a role's rows in a split."""

        def sum_scores(w: NDArray[np.float64], splits: NDArray[np.int64]) -> NDArray[np.float64]:
            statistic = BatchedScores(w, splits, role, score_parts.pairs, score_parts.places)
            return self(model, SinglePassSolver(statistic)).w

        return evaluate_by_split(sum_scores, w, splits)

    def rankings(
        self, model: BatchedLinear, w: NDArray[np.float64], splits: NDArray[np.int64], role: int
    ) -> NDArray[np.float64]:
        """Return the candidates' ranking scores, a row each, over a role's rows in their splits.

        They are NaN for regression, and for several classes whose loss has no probabilities.
        """
        statistic = BatchedRanks if model.single_model.width == 1 else BatchedClassRanks
        if model.classes is None or not (
            model.single_model.width == 1 or model.single_model.loss.proba
        ):
            return np.full((len(w), len(statistic.names)), np.nan)
        return evaluate_by_split(
            lambda w, splits: self(model, BatchedRankingSolver(w, splits, role, statistic)).w,
            w,
            splits,
        )


class BatchedModels(SolverFits):
    """Runner of batched fits of linear models, over rows that are laid out once.

    Parameters
    ----------
    job : FitJob
    rows : DatasetInfo
        Facts about all rows, whose targets are without the column of codes.
    roles : FoldAssignment
    callbacks : WholeFitCallbacks
    """

    def __init__(
        self, job: FitJob, rows: DatasetInfo, roles: FoldAssignment, callbacks: WholeFitCallbacks
    ) -> None:
        super().__init__(job, callbacks)
        self.rows, self.roles = rows, roles

    def make_model(self, column_model: LinearModel, class_weight: Any = None) -> BatchedLinear:
        """Return the batch of models of the form `column_model`."""
        classes = self.rows.classes
        codes = None if classes is None else np.arange(len(classes))
        return BatchedLinear(column_model, self.roles, codes, class_weight)

    def make_solver(
        self, candidates: tuple[Candidate, ...], scored: tuple[tuple[int, bool, bool], ...] = ()
    ) -> BatchedSolver:
        """Return the solver of some candidates; large problems begin on a share of the rows."""
        n_rows = sum(info.n_rows for info in self.rows.summary.infos)
        # Streamed rows are read from their source for each pass: reading a share costs as much as
        # all.
        begins_on_share = (
            n_rows * len(candidates) >= _MIN_ENTRIES_FOR_SHARE and self.job.engine.streaming is None
            and all(type(c.solver) is LBFGS and c.start is None for c in candidates)
        )  # fmt: skip
        return BatchedSolver(candidates, _SHARE_OF_ROWS if begins_on_share else 1, scored)

    def describe_split(self, weight: float) -> DatasetInfo:
        """Return the facts about the training rows of a split, given the sum of their weights."""
        summary = self.rows.summary
        assert isinstance(summary, TargetSummary)
        return replace(self.rows, summary=replace(summary, weight=float(weight)))

    def sum_weights(self, column_model: LinearModel) -> NDArray[np.float64]:
        """Return the summed weight of the training rows of each split."""
        return self(self.make_model(column_model), SinglePassSolver(SplitWeights())).w


class CandidateFits:
    """Fits of pairs of an estimator and a split, in as few batches as their models allow.

    Parameters
    ----------
    models : BatchedModels
    estimators : sequence of estimator
    pairs : list of (int, int)
        Indices of an estimator and of a split; the pairs of an estimator are adjacent.
    scored_roles : tuple of int
        Roles of the rows that are scored.
    score_parts : ScoreParts
    """

    def __init__(
        self, models: BatchedModels, estimators: Sequence[Any], pairs: list[tuple[int, int]],
        scored_roles: tuple[int, ...], score_parts: ScoreParts,
    ) -> None:  # fmt: skip
        self._models, self._estimators, self._pairs = models, estimators, pairs
        self._scored_roles, self._score_parts = scored_roles, score_parts

    def compute_fits(self) -> list[BatchedFit]:
        """Return the fits, in the order of the pairs."""
        models = self._models
        weights = models.split_weights(
            models.make_model(self._estimators[0]._problem(models.rows)[0])
        )
        problems: list[tuple[LinearModel, Candidate, DatasetInfo]] = []
        # Problems of one key (the form of the model, and the class weights) can share a batch.
        keys: list[tuple[LinearModel, str]] = []
        for number, pairs in groupby(self._pairs, itemgetter(0)):
            estimator = self._estimators[number]
            factors = self._class_weights(estimator, weights)
            split_weights = (weights if factors is None else weights * factors).sum(axis=1)
            for _, split in pairs:
                # An estimator gets only the weight of its split, as in its own fit: solvers divide
                # by it, and penalties are relative to it.
                info = models.describe_split(split_weights[split])
                model, solver = estimator._problem(info)
                start = estimator._starting_parameters(model, info)
                candidate = Candidate(split, solver, float(split_weights[split]), start)
                problems.append((model, candidate, info))
                keys.append((model, repr(estimator._params()["class_weight"])))
        fits: dict[int, BatchedFit] = {}
        left = list(range(len(problems)))
        while left:
            batch = [i for i in left if keys[i] == keys[left[0]]][:MAX_BATCHED_CANDIDATES]
            factors = self._class_weights(self._estimators[self._pairs[left[0]][0]], weights)
            batched_model = models.make_model(keys[left[0]][0], factors)
            fits |= self._fit_batch(batched_model, {i: problems[i] for i in batch})
            left = [i for i in left if i not in fits]
        return [fits[i] for i in range(len(problems))]

    def _class_weights(
        self, estimator: Any, weights: NDArray[np.float64]
    ) -> NDArray[np.float64] | None:
        """Return the class weights in each split, as in the estimator's own fit."""
        given, classes = estimator._params()["class_weight"], self._models.rows.classes
        if given is None or classes is None:
            return None
        if isinstance(given, str):
            return balanced_weights(weights)
        return np.tile(named_weights(given, classes), (len(weights), 1))

    def _fit_batch(
        self,
        batched_model: BatchedLinear,
        problems: dict[int, tuple[LinearModel, Candidate, DatasetInfo]],
    ) -> dict[int, BatchedFit]:
        """Return the fits of one batch, by the indices of their pairs."""
        candidates = tuple(candidate for _, candidate, _ in problems.values())
        parts, roles = self._score_parts, self._scored_roles
        # Plain sums of scores end the solver's run; rankings need a pass of another kind.
        solver = self._models.make_solver(
            candidates, tuple((r, parts.pairs, parts.places) for r in roles)
        )
        solution = self._models(batched_model, solver)
        splits, sums = np.array([c.split for c in candidates]), solution.extra["scores"]
        ranks = {
            role: self._models.rankings(batched_model, solution.w, splits, role)
            for role in roles if parts.ranks
        }  # fmt: skip
        fits = {}
        for k, (i, (_, _, info)) in enumerate(problems.items()):
            unfitted = self._estimators[self._pairs[i][0]]
            estimator = type(unfitted)(**unfitted.get_params(deep=False))
            own_solution = candidate_solution(solution, k)
            estimator._set_fitted(own_solution, batched_model.single_model, info)
            estimator._set_n_iter(own_solution)
            estimator._warn(own_solution)
            own_sums, own_ranks = (
                {role: of_role[k] for role, of_role in found.items()} for found in (sums, ranks)
            )
            fits[i] = BatchedFit(estimator, own_sums, 0.0, own_ranks)
        return fits
