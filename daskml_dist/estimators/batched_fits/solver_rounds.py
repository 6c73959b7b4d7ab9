"""Batches of linear fits by round solvers: candidates and splits are columns of one fit."""

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
from daskml_dist.models.batched import TEST, TRAIN, BatchedLinear, FoldAssignment
from daskml_dist.models.linear import LinearModel
from daskml_dist.solvers import Solution, Solver
from daskml_dist.solvers.base import SinglePassSolver
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

#: Candidates of one batch at most: each solver has a thread that waits.
_MAX_CANDIDATES = 512
#: Rows times columns from which a share of the rows tells where to begin: for fewer, the passes
#: that this saves are hardly dearer than those it takes; and one row in how many is read then.
_MIN_ENTRIES_FOR_SHARE, _SHARE_OF_ROWS = 1 << 22, 16
#: Parameters that must be alike in a batch, since they lay out its one fit.
_SHARED_PARAMETERS = ("run", "device", "callbacks", "verbose")


@dataclass(eq=False)
class BatchedFit:
    """A candidate, fitted to the training rows of a split.

    Parameters
    ----------
    estimator : estimator
    sums : dict of int to ndarray
        By role.
    seconds : float
        Its share of the batch's time.
    ranks : dict of int to ndarray
        Ranking scores by role, in the order of `RANKINGS`, or of several labels `CLASS_RANKINGS`.
    """

    estimator: Any
    sums: dict[int, NDArray[np.float64]]
    seconds: float
    ranks: dict[int, NDArray[np.float64]] = field(default_factory=dict)

    def score(self, name: str, role: int) -> float:
        """Return a score by scikit-learn's name."""
        kind = "classifier" if self.estimator._classification else "regressor"
        return float(CANDIDATE_SCORES[kind][name](self.sums[role][None, :])[0])

    def ranking(self, name: str, role: int) -> float:
        """Return a ranking score; NaN where it takes another pass over the rows."""
        names = RANKINGS if len(self.estimator.classes_) == 2 else CLASS_RANKINGS
        return float(self.ranks[role][names.index(name)]) if name in names else np.nan

    def among(self, n_best: int, role: int) -> float:
        """Return the share of rows whose label is among the `n_best`; NaN as in :meth:`ranking`."""
        k = len(self.estimator.classes_)
        if not 2 < k > n_best:  # scikit-learn warns of it, or has a threshold of two
            return np.nan
        sums = self.sums[role]
        return float(sums[3 : 3 + n_best].sum() / sums[0])

    def pairs(self, role: int) -> NDArray[np.float64]:
        """Return the weights of the rows by true and predicted label, (n_classes, n_classes)."""
        k = len(self.estimator.classes_)
        return self.sums[role][-k * k :].reshape(k, k)


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
    weighted: bool,
    train_score: bool,
    looks: ScoreParts,
) -> list[list[BatchedFit]]:
    """Fit clones of estimators to the training rows of each split, and score them."""
    for estimator in estimators:
        estimator._check_params()
    begin = time.perf_counter()
    with open_batched_models(estimators[0], collection, roles, classes, weighted) as stack:
        sides = (TEST, TRAIN) if train_score else (TEST,)
        every = [(e, split) for e in range(len(estimators)) for split in range(roles.n_splits)]
        flat = CandidateFits(stack, estimators, every, sides, looks).found()
    found = [flat[i : i + roles.n_splits] for i in range(0, len(flat), roles.n_splits)]
    seconds = (time.perf_counter() - begin) / (len(found) * roles.n_splits)
    for row in found:
        for fit in row:
            fit.seconds = seconds
    return found


@contextmanager
def open_batched_models(
    estimator: Any, collection: Collection, roles: FoldAssignment, classes: Any, weighted: bool,
    *, n_targets: int | None = None, client: Any = None, callbacks: CallbackList | None = None,
) -> Iterator[BatchedModels]:  # fmt: skip
    """Lay the rows of a stack out, as an estimator's parameters say, for as long as it is open."""
    with FitJob(collection, client, estimator._run_settings(), callbacks) as job:
        job.rows = DatasetInfo.of(job.summarize_rows(), None, None, weighted)
        job.lay_out_sum_lanes(100)
        survey = TargetSummary(job.rows.survey.infos, n_columns=n_targets)
        watched = WholeFitCallbacks(job.callbacks, with_parameters=False)
        try:
            rows = replace(job.rows, survey=survey, classes=classes)
            yield BatchedModels(job, rows, roles, watched)
        except BaseException as error:
            watched.finish(error)
            raise
        watched.finish()


class NotBatchableError(DaskMLDistError):
    """Sign that fits cannot be one, found out from their rows. Never seen by the user."""


class SolverFits:
    """Fits of several solvers to the rows of one job.

    Attributes
    ----------
    job : FitJob
    records : list of dict
        Of all passes so far.
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
        """Return the weight of the training rows of each split, of a classifier by their labels.

        Of shape (n_splits, n_classes), or (n_splits, 1).
        """
        found = model.roles.weights
        if found is None and model.classes is None:
            return self(model, SinglePassSolver(SplitWeights())).w[:, None]
        if found is None:
            found = self(model, SinglePassSolver(SplitLabelWeights())).w
        if not found.all():
            raise NotBatchableError("Training rows of a split lack a label.")
        return found

    def scores(
        self, model: BatchedLinear, w: NDArray[np.float64], splits: NDArray[np.int64], role: int,
        looks: ScoreParts = SUMS_ONLY,
    ) -> NDArray[np.float64]:  # fmt: skip
        """Return the sums that candidates' scores are made of, over a role's rows in a split."""

        def sums(w: NDArray[np.float64], splits: NDArray[np.int64]) -> NDArray[np.float64]:
            asked = BatchedScores(w, splits, role, looks.pairs, looks.places)
            return self(model, SinglePassSolver(asked)).w

        return evaluate_by_split(sums, w, splits)

    def rankings(
        self, model: BatchedLinear, w: NDArray[np.float64], splits: NDArray[np.int64], role: int
    ) -> NDArray[np.float64]:
        """Return the candidates' ranking scores, a row each, over a role's rows in their splits.

        NaN where these are not found together.
        """
        question = BatchedRanks if model.each.width == 1 else BatchedClassRanks
        if model.classes is None or not (model.each.width == 1 or model.each.loss.proba):
            return np.full((len(w), len(question.names)), np.nan)
        return evaluate_by_split(
            lambda w, splits: self(model, BatchedRankingSolver(w, splits, role, question)).w,
            w,
            splits,
        )


class BatchedModels(SolverFits):
    """Rows, laid out for any number of fits of linear models to the training rows of splits.

    `rows` are facts of all of them, with targets alone.
    """

    def __init__(
        self, job: FitJob, rows: DatasetInfo, roles: FoldAssignment, callbacks: WholeFitCallbacks
    ) -> None:
        super().__init__(job, callbacks)
        self.rows, self.roles = rows, roles

    def model(self, each: LinearModel, class_weight: Any = None) -> BatchedLinear:
        """Return the model of a batch: one model for each column."""
        classes = self.rows.classes
        codes = None if classes is None else np.arange(len(classes))
        return BatchedLinear(each, self.roles, codes, class_weight)

    def solver(
        self, columns: tuple[Candidate, ...], scored: tuple[tuple[int, bool, bool], ...] = ()
    ) -> BatchedSolver:
        """Return the solver of some candidates; large problems begin on a share of the rows."""
        n_rows = sum(info.n_rows for info in self.rows.survey.infos)
        begins = (
            n_rows * len(columns) >= _MIN_ENTRIES_FOR_SHARE and self.job.engine.streaming is None
            and all(type(c.solver) is LBFGS and c.start is None for c in columns)
        )  # fmt: skip
        return BatchedSolver(columns, _SHARE_OF_ROWS if begins else 1, scored)

    def of_split(self, weight: float) -> DatasetInfo:
        """Return the facts of the training rows of a split, given their weight."""
        survey = self.rows.survey
        assert isinstance(survey, TargetSummary)
        return replace(self.rows, survey=replace(survey, weight=float(weight)))

    def weights(self, each: LinearModel) -> NDArray[np.float64]:
        """Return the weight of the training rows of each split."""
        return self(self.model(each), SinglePassSolver(SplitWeights())).w


class CandidateFits:
    """Fits of candidates to splits.

    Parameters
    ----------
    stack : BatchedModels
    estimators : sequence of estimator
    asked : list of (int, int)
        Numbers of an estimator and of its split; those of an estimator lie together.
    sides : tuple of int
        Roles of the rows that are scored.
    looks : ScoreParts
    """

    def __init__(
        self, stack: BatchedModels, estimators: Sequence[Any], asked: list[tuple[int, int]],
        sides: tuple[int, ...], looks: ScoreParts,
    ) -> None:  # fmt: skip
        self._stack, self._estimators, self._asked = stack, estimators, asked
        self._sides, self._looks = sides, looks

    def found(self) -> list[BatchedFit]:
        """The fits, as they are asked for."""
        stack = self._stack
        weights = stack.split_weights(stack.model(self._estimators[0]._problem(stack.rows)[0]))
        problems: list[tuple[LinearModel, Candidate, DatasetInfo]] = []
        #: Of each problem: columns of a stack have the same.
        kinds: list[tuple[LinearModel, str]] = []
        for number, of_estimator in groupby(self._asked, itemgetter(0)):
            estimator = self._estimators[number]
            factors = self._factors(estimator, weights)
            of_splits = (weights if factors is None else weights * factors).sum(axis=1)
            for _, split in of_estimator:
                weight = of_splits[split]
                of_split = stack.of_split(weight)
                model, solver = estimator._problem(of_split)
                start = estimator._starting_parameters(model, of_split)
                problems.append((model, Candidate(split, solver, float(weight), start), of_split))
                kinds.append((model, repr(estimator._params()["class_weight"])))
        found: dict[int, BatchedFit] = {}
        left = list(range(len(problems)))
        while left:
            some = [i for i in left if kinds[i] == kinds[left[0]]][:_MAX_CANDIDATES]
            factors = self._factors(self._estimators[self._asked[left[0]][0]], weights)
            stacked = stack.model(kinds[left[0]][0], factors)
            found |= self._columns(stacked, {i: problems[i] for i in some})
            left = [i for i in left if i not in found]
        return [found[i] for i in range(len(problems))]

    def _factors(self, estimator: Any, weights: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """Return the class weights in each split, as the estimator's own fit would have them."""
        given, classes = estimator._params()["class_weight"], self._stack.rows.classes
        if given is None or classes is None:
            return None
        if isinstance(given, str):
            return balanced_weights(weights)
        return np.tile(named_weights(given, classes), (len(weights), 1))

    def _columns(
        self,
        stacked: BatchedLinear,
        problems: dict[int, tuple[LinearModel, Candidate, DatasetInfo]],
    ) -> dict[int, BatchedFit]:
        """Return the fits of one batch, by their numbers."""
        columns = tuple(column for _, column, _ in problems.values())
        asked = tuple((side, self._looks.pairs, self._looks.places) for side in self._sides)
        solution = self._stack(stacked, self._stack.solver(columns, asked))
        splits, sums = np.array([c.split for c in columns]), solution.extra["scores"]
        ranks = {
            side: self._stack.rankings(stacked, solution.w, splits, side)
            for side in self._sides if self._looks.ranks
        }  # fmt: skip
        found = {}
        for k, (i, (_, _, rows)) in enumerate(problems.items()):
            candidate = self._estimators[self._asked[i][0]]
            estimator = type(candidate)(**candidate.get_params(deep=False))
            one = candidate_solution(solution, k)
            estimator._set_fitted(one, stacked.each, rows)
            estimator._set_n_iter(one)
            estimator._warn(one)
            of_column = ({s: of[k] for s, of in found_of.items()} for found_of in (sums, ranks))
            found[i] = BatchedFit(estimator, next(of_column), 0.0, next(of_column))
        return found
