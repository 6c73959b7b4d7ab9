"""Training of candidates pass by pass, for searches that stop most candidates early.

A *bracket* is one run of successive halving: a plan of *rungs*, each with a number of candidates
and the number of passes over the rows after which they are scored. The training of the best of a
rung continues to the next one. Hyperband [1] runs several brackets, which cover the range from many
candidates with few passes to few candidates with many.

Candidates are trained in one of three ways. As columns of batched fits (`BatchedTraining`) or by
``partial_fit`` one after the other, each on the whole cluster (`PartialFitTraining`), all of a rung
are scored before any is promoted; as tasks on the workers (`AsyncTraining`) a candidate is promoted
as soon as it is among the best 1/eta of the scores known at its rung, so that no worker waits for
the slowest candidate: asynchronous successive halving (ASHA, [2], Algorithm 2).

[1] L. Li, K. Jamieson, G. DeSalvo, A. Rostamizadeh and A. Talwalkar, "Hyperband: a novel
bandit-based approach to hyperparameter optimization", JMLR 18, 2018.
[2] L. Li et al., "A system for massively parallel hyperparameter tuning", MLSys 2020.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from dask.base import persist
from numpy.typing import NDArray
from sklearn.base import clone

from daskml_dist.dask_internals.cluster import is_dask_error
from daskml_dist.data.collection import Collection
from daskml_dist.data.lazy import is_dask
from daskml_dist.diagnostics.operation_progress import report_phase, report_rung
from daskml_dist.errors import TrainingError
from daskml_dist.estimators.batched_fits.gradient_steps import (
    BatchedSteps,
    StepCandidate,
    group_step_estimators,
)
from daskml_dist.estimators.batched_fits.solver_rounds import NotBatchableError
from daskml_dist.model_selection._batched_fits import BatchedScorer, align_targets
from daskml_dist.model_selection._validation import (
    SplitFit,
    Splits,
    guard_scorers,
    merge_fit_params,
    score_fitted,
)
from daskml_dist.models.batched import TEST, TRAIN

if TYPE_CHECKING:
    from distributed import Client, Future


#: Function from those values of arguments of ``fit`` that are split to all arguments.
_MakeParams = Callable[[Sequence[Any]], dict[str, Any]]


# --- brackets ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bracket:
    """Plan of one run of successive halving.

    Parameters
    ----------
    number : int
        Number of rungs after the first: s of the paper.
    rungs : tuple of (int, int)
        For each rung the number of candidates, and the passes that they have made at its end.
    """

    number: int
    rungs: tuple[tuple[int, int], ...]

    @property
    def n_models(self) -> int:
        """Return the number of candidates of the first rung."""
        return self.rungs[0][0]

    @property
    def calls(self) -> int:
        """Return the sum of the passes of all candidates, for one split."""
        passes_before, total = 0, 0
        for n, passes in self.rungs:
            total += n * (passes - passes_before)  # training continues
            passes_before = passes
        return total

    def describe(self) -> dict[str, Any]:
        """Return the bracket as an entry of ``metadata``."""
        return {
            "bracket": self.number, "n_models": self.n_models,
            "partial_fit_calls": self.calls, "rungs": list(self.rungs),
        }  # fmt: skip


def plan_brackets(max_iter: int, factor: float) -> list[Bracket]:
    """Return Hyperband's brackets for at most `max_iter` passes, first that of most candidates.

    `factor` is eta of the paper: one in `factor` candidates is kept, for `factor` times the passes.
    """
    # Algorithm 1 of [1] with R = max_iter and s = number. The 1e-9 corrects rounding of logs and
    # powers, which would turn log(27) / log(3) = 3 into 2, and an int into one too small.
    s_max = int(np.log(max_iter) / np.log(factor) + 1e-9)
    brackets = []
    for number in range(s_max, -1, -1):
        # All brackets have about the same number of passes in total: n = ceil((s_max + 1) / (s + 1)
        # * eta^s).
        n = int(np.ceil((s_max + 1) / (number + 1) * factor**number - 1e-9))
        rungs: list[tuple[int, int]] = []
        for rung in range(number + 1):
            n_kept = max(1, int(n * factor**-rung + 1e-9))
            # r_i = R * eta^(i - s): total passes at the rung's end, including those of earlier
            # rungs.
            passes = max(1, round(max_iter * factor ** (rung - number)))
            if rungs and passes <= rungs[-1][1]:
                continue  # with a factor near 1 rungs are rounded to the same pass
            rungs.append((n_kept, passes))
        brackets.append(Bracket(number, tuple(rungs)))
    return brackets


def plan_decaying_bracket(
    n_models: int, max_iter: int, decay_rate: float, passes_per_rung: int
) -> Bracket:
    """Return a bracket with a rung after each `passes_per_rung` passes, with ever fewer candidates.

    Rung k has ``n_models * (1 + k)**-decay_rate`` candidates, as in dask-ml's inverse decay.
    """
    passes = [*range(passes_per_rung, max_iter, passes_per_rung), max_iter]
    sizes = [max(1, int(np.ceil(n_models * (1 + k) ** -decay_rate))) for k in range(len(passes))]
    return Bracket(len(passes) - 1, tuple(zip(sizes, passes, strict=True)))


def find_best_scores(scores: NDArray[np.float64], n: int) -> NDArray[np.intp]:
    """Return the indices of the `n` best scores, ascending; NaN counts as the lowest score."""
    # Stable, so that of equal scores the earlier candidate is kept.
    order = np.argsort(-np.where(np.isnan(scores), -np.inf, scores), kind="stable")
    return np.sort(order[:n])


def has_plateaued(scores: Mapping[int, float], patience: int, tol: float) -> bool:
    """Return whether no score of the last `patience` passes is better than before by `tol`.

    `scores` are those of one candidate by its number of passes.
    """
    last = max(scores)
    earlier_passes = [passes for passes in scores if passes <= last - patience]
    if not earlier_passes:
        return False  # trained for less than `patience` passes
    reference = scores[max(earlier_passes)] + tol
    return all(
        score <= reference for passes, score in scores.items() if passes > max(earlier_passes)
    )


# --- training in turns -------------------------------------------------------------------------


class CandidateTraining(ABC):
    """Base class of candidates in training; each is fitted to the training rows of every split.

    Used in a ``with`` statement, which holds the rows.
    """

    @abstractmethod
    def advance(self, candidates: Sequence[int], last: int) -> int:
        """Train candidates until they have made `last` passes; return the number of passes made.

        The passes of all these candidates are summed; those of the splits, which are equal, are
        counted once.
        """

    @abstractmethod
    def score(self, candidates: Sequence[int]) -> list[list[SplitFit]]:
        """Return the current scores of candidates: for each a list with one for each split."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:  # noqa: B027 (not all hold rows)
        """Release the rows."""


class BatchedTraining(CandidateTraining):
    """Candidates as columns of batched fits, so that a pass over the rows trains all of them.

    Parameters
    ----------
    batches : sequence of (list of int, BatchedSteps)
        Batched fits, each with the numbers of its candidates.
    collection : Collection
        Rows with their targets and codes.
    scorer : BatchedScorer
    """

    def __init__(
        self, batches: Sequence[tuple[list[int], BatchedSteps]], collection: Collection,
        scorer: BatchedScorer,
    ) -> None:  # fmt: skip
        self._batches, self._collection, self._scorer = batches, collection, scorer
        self._open_batches = ExitStack()
        #: For each candidate its batched fit, and its columns there, one for each split.
        self._columns: dict[int, tuple[BatchedSteps, list[StepCandidate]]] = {}

    @property
    def n_batches(self) -> int:
        """Return the number of batched fits."""
        return len(self._batches)

    def open(self) -> None:
        """Open the batched fits, which hold the rows until the end of the ``with`` statement."""
        with ExitStack() as opened:
            for numbers, batch in self._batches:
                columns = opened.enter_context(batch.open_candidates(self._collection))
                # A candidate's columns, one for each split, are adjacent.
                n_splits = len(columns) // len(numbers)
                for k, number in enumerate(numbers):
                    self._columns[number] = batch, columns[k * n_splits : (k + 1) * n_splits]
            # All are open: from now on __exit__ closes them; an error above closes them at once.
            self._open_batches = opened.pop_all()

    def __exit__(self, *error: object) -> None:
        self._open_batches.__exit__(*error)  # type: ignore[arg-type]

    def advance(self, candidates: Sequence[int], last: int) -> int:
        """Train candidates until they have made `last` passes; return the passes made."""

        def count_passes() -> int:
            return sum(max(c.n_iter for c in self._columns[i][1]) for i in candidates)

        # Counted, not computed: the estimator's own stopping rule may end columns earlier.
        passes_before = count_passes()
        for batch, numbers in self._group_by_batch(candidates):
            batch.advance([column for i in numbers for column in self._columns[i][1]], last)
        return count_passes() - passes_before

    def score(self, candidates: Sequence[int]) -> list[list[SplitFit]]:
        """Return the scores of candidates, one for each split."""
        scores: dict[int, list[SplitFit]] = {}
        for batch, numbers in self._group_by_batch(candidates):
            columns = [column for i in numbers for column in self._columns[i][1]]
            fits = self._scorer.collect_fits(batch, columns)
            n_splits = len(columns) // len(numbers)
            for k, i in enumerate(numbers):
                candidate_fits = fits[k * n_splits : (k + 1) * n_splits]
                scores[i] = list(map(self._scorer, candidate_fits, range(n_splits)))
        return [scores[i] for i in candidates]

    def _group_by_batch(self, candidates: Sequence[int]) -> list[tuple[BatchedSteps, list[int]]]:
        """Return the batched fits that hold any of the given candidates, with those candidates."""
        chosen = set(candidates)
        groups = [(batch, [i for i in numbers if i in chosen]) for numbers, batch in self._batches]
        return [(batch, chosen_numbers) for batch, chosen_numbers in groups if chosen_numbers]


def begin_batched_training(
    estimators: Sequence[Any], splits: Splits, scoring: Mapping[str, Any],
    scorers: Mapping[str, Any], *, train_score: bool, error_score: Any,
) -> BatchedTraining | None:  # fmt: skip
    """Return candidates as columns of open batched fits; None if they cannot be batched."""
    if not splits.can_batch or (groups := group_step_estimators(estimators)) is None:
        return None
    collection, classes = align_targets(splits, estimators[0]._classification)
    batches = [
        (numbers, BatchedSteps([estimators[i] for i in numbers], splits.roles, classes))
        for numbers in groups
    ]
    scorer = BatchedScorer(
        estimators[0], splits, collection, scoring, scorers, train_score, error_score
    )
    training = BatchedTraining(batches, collection, scorer)
    try:
        training.open()
    # Known only from the rows: the training rows of a split may lack a label.
    except NotBatchableError:
        return None
    return training


class SplitSides(Protocol):
    """Both sides of each split of some rows."""

    n_splits: int

    def select_side(self, split: int, role: int) -> tuple[Any, Any, dict[str, Any]]:
        """Return the rows, targets and arguments of ``fit`` of one side (TRAIN or TEST)."""


class PartialFitTraining(CandidateTraining):
    """Candidates with ``partial_fit``, trained one after the other, each on the whole cluster.

    Parameters
    ----------
    estimators : sequence of estimator
    splits : SplitSides
    scorers : mapping of str to callable
    classes : ndarray or None
        All labels, which the first ``partial_fit`` of a classifier needs as an argument.
    train_score : bool
    error_score : "raise" or float
    """

    def __init__(
        self, estimators: Sequence[Any], splits: SplitSides, scorers: Mapping[str, Any],
        classes: NDArray[Any] | None, *, train_score: bool, error_score: Any,
    ) -> None:  # fmt: skip
        n = splits.n_splits
        self._models = [
            [ResumableModel(clone(estimator)) for _ in range(n)] for estimator in estimators
        ]
        self._split_sides = [
            [_persist_side(splits.select_side(split, role)) for role in (TRAIN, TEST)]
            for split in range(n)
        ]
        self._scorers, self._classes = guard_scorers(scorers, error_score), classes
        self._train_score, self._error_score = train_score, error_score

    def advance(self, candidates: Sequence[int], last: int) -> int:
        """Train candidates until they have made `last` passes; return the passes made."""
        n_passes = 0
        for i in candidates:
            calls = [
                train_by_passes(model, *train, self._classes, last)
                for model, (train, _) in zip(self._models[i], self._split_sides, strict=True)
            ]
            n_passes += max(calls)  # a model that failed in one split makes fewer
        return n_passes

    def score(self, candidates: Sequence[int]) -> list[list[SplitFit]]:
        """Return the scores of candidates, one for each split."""
        return [
            [
                self._score(m, *sides)
                for m, sides in zip(self._models[i], self._split_sides, strict=True)
            ]
            for i in candidates
        ]

    def _score(self, model: ResumableModel, train: Any, test: Any) -> SplitFit:
        if model.error is not None:
            # It has not made all passes, so its scores could not be compared.
            names = list(self._scorers)
            return score_failed_model(model, names, self._train_score, self._error_score)
        return model.score(self._scorers, train, test, train_score=self._train_score)


def _persist_side(side: tuple[Any, Any, dict[str, Any]]) -> tuple[Any, Any, dict[str, Any]]:
    """Return one side of a split, whose lazy rows stay on the workers while candidates train."""
    X, y, params = side
    inputs = (X, y, *params.values())
    lazy = [value for value in inputs if is_dask(value)]
    if not lazy:
        return side
    # Not optimised: fusion would submit other tasks under keys that fits and scores submit unfused,
    # and the scheduler may never release the tasks of a key that came with two graphs.
    persisted = iter(persist(*lazy, optimize_graph=False))
    X, y, *values = (next(persisted) if is_dask(value) else value for value in inputs)
    return X, y, dict(zip(params, values, strict=True))


# --- one model by passes -----------------------------------------------------------------------


@dataclass(eq=False)
class ResumableModel:
    """Model in training by ``partial_fit``, which further passes continue.

    Parameters
    ----------
    estimator : estimator
    passes : int
        Passes made so far.
    seconds : float
        Time of these passes.
    error : Exception or None
        Error that ended the training; None if there was none.
    """

    estimator: Any
    passes: int = 0
    seconds: float = 0.0
    error: Exception | None = None

    def score(
        self, scorers: Mapping[str, Any], train: Any, test: Any, *, train_score: bool
    ) -> SplitFit:
        """Return the scores of the test side, and with `train_score` of the training side."""
        return score_fitted(
            scorers, self.estimator, test, train if train_score else None, self.seconds
        )


def train_by_passes(
    model: ResumableModel, X: Any, y: Any, params: dict[str, Any], classes: Any, last: int
) -> int:
    """Call ``partial_fit`` until a model has made `last` passes; return the number of calls."""
    begin, passes_before = time.perf_counter(), model.passes
    class_params = {} if classes is None else {"classes": classes}
    try:
        while model.error is None and model.passes < last:
            model.estimator.partial_fit(X, y, **class_params, **params)
            model.passes += 1
    except Exception as error:
        model.error = error
    model.seconds += time.perf_counter() - begin
    return model.passes - passes_before


def score_failed_model(
    model: ResumableModel, names: Sequence[str], train_score: bool, error_score: Any
) -> SplitFit:
    """Return the scores of a model that failed, with a warning."""
    assert model.error is not None
    subject = f"A fit of {type(model.estimator).__name__}"
    return SplitFit.warn_failure(
        model.error, subject, names, train_score, error_score, model.seconds
    )


# --- training as tasks, with asynchronous promotion --------------------------------------------


class PromotionLadder:
    """State of a bracket whose candidates are promoted asynchronously (ASHA, Algorithm 2 of [2]).

    Parameters
    ----------
    bracket : Bracket
    candidates : sequence of int
    factor : float or None
        One in `factor` of the candidates scored at a rung is promoted: eta of the paper. None: the
        ratio of the bracket's own rungs.
    stops : callable, optional
        Takes the scores of a candidate, by passes, and returns whether it is never promoted again.
    """

    def __init__(
        self,
        bracket: Bracket,
        candidates: Sequence[int],
        factor: float | None,
        stops: Callable[[Mapping[int, float]], bool] | None = None,
    ) -> None:
        self.rungs, self._factor, self._stops = bracket.rungs, factor, stops
        self._stopped: set[int] = set()
        self._new = list(candidates)
        self._scores: list[dict[int, float]] = [{} for _ in bracket.rungs]
        self._promoted: list[set[int]] = [set() for _ in bracket.rungs]

    def find_next(self) -> tuple[int, int] | None:
        """Return the next candidate to train and its rung; None if there is none at present."""
        # get_job of the paper: rungs from the top, since a promotion to a higher rung is nearer to
        # a result; a new candidate starts at the bottom only if no promotion is possible.
        for rung in range(len(self.rungs) - 2, -1, -1):
            score_of, promoted = self._scores[rung], self._promoted[rung]
            numbers = sorted(score_of)
            scores = np.array([score_of[i] for i in numbers])
            (n_here, _), (n_next, _) = self.rungs[rung : rung + 2]
            factor = n_here / n_next if self._factor is None else self._factor
            n_best = min(int(len(numbers) / factor), n_next)
            # A candidate that failed has the score NaN and is never promoted.
            best = [numbers[k] for k in find_best_scores(scores, n_best) if not np.isnan(scores[k])]
            for i in best:
                # The best change with each score, so more candidates may have been among them than
                # the bracket's next rung has room for. (In the paper rungs have no limit.)
                if i not in self._stopped and i not in promoted and len(promoted) < n_next:
                    promoted.add(i)
                    return i, rung + 1
        return (self._new.pop(0), 0) if self._new else None

    def add_score(self, candidate: int, rung: int, score: float) -> None:
        """Add the score of a candidate at a rung, and check whether to stop it."""
        self._scores[rung][candidate] = score
        if self._stops is None:
            return
        so_far = zip(self.rungs[: rung + 1], self._scores, strict=False)
        if self._stops({passes: scores[candidate] for (_, passes), scores in so_far}):
            self._stopped.add(candidate)


class AsyncTraining:
    """Training of candidates as parallel tasks, one for each candidate, rung and split.

    Which candidates are promoted depends on the order in which tasks end. The rows of a split are
    gathered on a worker.

    Parameters
    ----------
    client : Client
    estimators : sequence of estimator
    brackets : sequence of (Bracket, list of int)
        Brackets, each with the numbers of its candidates.
    factor, stops
        As in :class:`PromotionLadder`.
    splits : Splits
    scorers : mapping of str to callable
        A single score.
    classes : ndarray or None
        All labels, which the first ``partial_fit`` of a classifier needs as an argument.
    train_score : bool
    error_score : "raise" or float

    Attributes
    ----------
    fits : dict of int to list of SplitFit
        Scores of each candidate after its last pass, one for each split.
    history : list of dict
        Candidate, bracket, passes and score of each rung that was reached.
    calls : int
        Sum of the passes of all candidates, for one split.
    """

    def __init__(
        self, client: Client, estimators: Sequence[Any],
        brackets: Sequence[tuple[Bracket, list[int]]], factor: float | None, splits: Splits,
        scorers: Mapping[str, Any], classes: NDArray[Any] | None, *, train_score: bool,
        error_score: Any, stops: Callable[[Mapping[int, float]], bool] | None = None,
    ) -> None:  # fmt: skip
        self._client, self._estimators, self._splits = client, estimators, splits
        self._brackets = [bracket for bracket, _ in brackets]
        self._ladders = [
            PromotionLadder(bracket, candidates, factor, stops) for bracket, candidates in brackets
        ]
        self._scorers, self._classes = guard_scorers(scorers, error_score), classes
        self._train_score, self._error_score = train_score, error_score
        self._rows: list[Future[Any]] = []
        self._models: dict[int, list[Future[Any]]] = {}
        #: Ladder, candidate, rung and split of each score that has not arrived yet.
        self._pending: dict[Future[Any], tuple[int, int, int, int]] = {}
        #: For each candidate the scores of its current rung that have arrived, by split.
        self._by_split: dict[int, dict[int, SplitFit]] = {}
        self.fits: dict[int, list[SplitFit]] = {}
        self.history: list[dict[str, Any]] = []
        self.calls = 0

    def run(self) -> None:
        """Train until no candidate is left to promote."""
        from distributed import as_completed

        n_splits, jobs = self._splits.n_splits, as_completed()
        gathered = [self._splits.rows.gather_split(split) for split in range(n_splits)]
        # Two for each thread keep all threads busy while scores are sent to the client. With more,
        # new candidates would start before promotions that have priority.
        max_pending = 2 * max(1, sum(self._client.nthreads().values()))
        try:
            self._rows = self._client.compute(gathered)
            while True:
                while len(self._pending) < max_pending and (next_job := self._find_next_job()):
                    for job in self._submit(*next_job):
                        jobs.add(job)
                if not self._pending:
                    return
                self._take_score(next(jobs))
        finally:
            # Released, not cancelled: a task that others depend on is needed until they are done.
            models = (future for row in self._models.values() for future in row)
            for future in [*self._pending, *self._rows, *models]:
                future.release()

    def _find_next_job(self) -> tuple[int, int, int] | None:
        """Return the ladder, candidate and rung to train next; None: wait for scores."""
        for number, ladder in enumerate(self._ladders):
            if (candidate_and_rung := ladder.find_next()) is not None:
                return number, *candidate_and_rung
        return None

    def _submit(self, ladder: int, candidate: int, rung: int) -> list[Future[Any]]:
        """Submit the tasks that train a candidate to a rung, and return those of its scores."""
        rungs, models_before = self._ladders[ladder].rungs, self._models.get(candidate)
        passes = rungs[rung][1]
        params = partial(merge_fit_params, self._splits.plain, self._splits.cut)
        self.calls += passes - (rungs[rung - 1][1] if rung else 0)
        self._by_split[candidate], self._models[candidate] = {}, []
        submit, jobs = self._client.submit, []
        for split, rows in enumerate(self._rows):
            # The model of the previous rung is a future: models stay on the workers.
            unfitted_or_model = (
                self._estimators[candidate] if models_before is None else models_before[split]
            )
            train = unfitted_or_model, rows, params, self._classes, passes
            model = submit(_train_candidate, *train, pure=False)
            score = model, rows, params, self._scorers, self._train_score
            job = submit(_score_candidate, *score, pure=False)
            self._models[candidate].append(model)
            self._pending[job] = ladder, candidate, rung, split
            jobs.append(job)
        return jobs

    def _take_score(self, job: Future[Any]) -> None:
        """Take the score of a split; with the last of a candidate, add it to the ladder."""
        ladder, candidate, rung, split = self._pending[job]
        try:
            result, fit_of_split = job.result(), self._by_split[candidate]
        except Exception as error:
            if is_dask_error(error):
                raise TrainingError(
                    f"Tasks of candidates were lost: {error} Give the workers more memory, or "
                    "find out why they die, then fit again."
                ) from error
            if self._rows[split].exception() is not None:
                raise self._splits.rows.make_unread_error(error) from error
            raise
        del self._pending[job]  # a job that raises stays, and is released with all others
        if isinstance(result, ResumableModel):
            names = list(self._scorers)
            result = score_failed_model(result, names, self._train_score, self._error_score)
        fit_of_split[split] = result
        if len(fit_of_split) < self._splits.n_splits:
            return
        self.fits[candidate] = [fit_of_split[split] for split in sorted(fit_of_split)]
        (name,) = self._scorers
        score = float(np.mean([fit.test[name] for fit in self.fits[candidate]]))
        self._ladders[ladder].add_score(candidate, rung, score)
        bracket = self._brackets[ladder]
        passes = bracket.rungs[rung][1]
        facts: dict[str, Any] = {"candidate": candidate, "bracket": bracket.number}
        self.history.append({**facts, "passes": passes, "mean_test_score": score})
        record = {**facts, "resource": passes, "score": score}
        report_rung(f"bracket {bracket.number}, candidate {candidate}", [record])
        report_phase("candidates scored at rungs", len(self.history))


def _train_candidate(
    model_or_estimator: Any, rows: Any, params: _MakeParams, classes: Any, last: int
) -> ResumableModel:
    """Return a model that has made `last` passes, continuing a `ResumableModel` if given one."""
    # A copy: Dask may run the task again after a loss of data, and its argument must be unchanged.
    model = (
        deepcopy(model_or_estimator)
        if isinstance(model_or_estimator, ResumableModel)
        else ResumableModel(clone(model_or_estimator))
    )
    train, _ = _make_sides(rows, params)
    train_by_passes(model, *train, classes, last)
    return model


def _score_candidate(
    model: ResumableModel,
    rows: Any,
    params: _MakeParams,
    scorers: dict[str, Any],
    train_score: bool,
) -> SplitFit | ResumableModel:
    """Return the scores of a model, or the model if it failed, without its fitted attributes."""
    if model.error is not None:
        return ResumableModel(clone(model.estimator), model.passes, model.seconds, model.error)
    fit = model.score(scorers, *_make_sides(rows, params), train_score=train_score)
    fit.estimator = None  # it stays on the worker
    return fit


def _make_sides(rows: Any, params: _MakeParams) -> list[tuple[Any, Any, dict[str, Any]]]:
    """Return both sides of a split: rows, targets and arguments of ``fit`` of each."""
    return [(X, y, params(cut)) for X, y, *cut in rows]
