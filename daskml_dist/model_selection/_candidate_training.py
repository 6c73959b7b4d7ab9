"""Candidates that are trained on from where they stopped, for searches that drop candidates early.

Brackets say how many candidates get how many passes. Candidates are columns of batched fits
(`BatchedTraining`), models with ``partial_fit`` one after the other (`PartialFitTraining`), or
tasks on the workers that are promoted as soon as they deserve it (`AsyncTraining`).

L. Li, K. Jamieson, G. DeSalvo, A. Rostamizadeh and A. Talwalkar, "Hyperband: a novel bandit-based
approach to hyperparameter optimization", JMLR 18, 2018; L. Li et al., "A system for massively
parallel hyperparameter tuning" (ASHA), MLSys 2020.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from dask.base import persist
from numpy.typing import NDArray
from sklearn.base import clone

from daskml_dist.dask_internals.cluster import is_dask_error
from daskml_dist.data.lazy import is_dask
from daskml_dist.diagnostics.works import tell, tell_rung
from daskml_dist.errors import TrainingError
from daskml_dist.estimators.batched_fits.gradient_steps import (
    BatchedSteps,
    StepCandidate,
    group_step_estimators,
)
from daskml_dist.estimators.batched_fits.solver_rounds import NotBatchableError
from daskml_dist.model_selection._batched_fits import (
    BatchedScorer,
    align_targets,
    collect_fits,
    find_batched_score,
    list_score_parts,
)
from daskml_dist.model_selection._fold_rows import TEST, TRAIN
from daskml_dist.model_selection._validation import (
    SplitFit,
    Splits,
    guard_scorers,
    merge_fit_params,
    score_fitted,
)
from daskml_dist.solvers.batched_scores import ScoreParts

if TYPE_CHECKING:
    from distributed import Client, Future


#: Makes arguments of ``fit`` of the values of the cut ones.
_MakeParams = Callable[[Sequence[Any]], dict[str, Any]]


# --- brackets ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bracket:
    """One run of successive halving.

    Parameters
    ----------
    number : int
        Rungs behind the first.
    rungs : tuple of (int, int)
        Candidates of each rung, and the passes that they have made at its end.
    """

    number: int
    rungs: tuple[tuple[int, int], ...]

    @property
    def n_models(self) -> int:
        """Return the number of candidates that begin."""
        return self.rungs[0][0]

    @property
    def calls(self) -> int:
        """Return the passes of all candidates together, of one split."""
        done, total = 0, 0
        for n, passes in self.rungs:
            total += n * (passes - done)
            done = passes
        return total

    def describe(self) -> dict[str, Any]:
        """Return the bracket as an entry of ``metadata``."""
        return {
            "bracket": self.number, "n_models": self.n_models,
            "partial_fit_calls": self.calls, "rungs": list(self.rungs),
        }  # fmt: skip


def plan_brackets(max_iter: int, factor: float) -> list[Bracket]:
    """Return the brackets for candidates of `max_iter` passes at most; the most daring first."""
    # Algorithm 1 of the paper; 1e-9 keeps powers that rounding puts just below a whole number.
    last = int(np.log(max_iter) / np.log(factor) + 1e-9)
    found = []
    for number in range(last, -1, -1):
        n = int(np.ceil((last + 1) / (number + 1) * factor**number - 1e-9))
        rungs: list[tuple[int, int]] = []
        for rung in range(number + 1):
            left = max(1, int(n * factor**-rung + 1e-9))
            passes = max(1, round(max_iter * factor ** (rung - number)))
            if rungs and passes <= rungs[-1][1]:
                continue
            rungs.append((left, passes))
        found.append(Bracket(number, tuple(rungs)))
    return found


def plan_decaying_bracket(n_models: int, max_iter: int, decay_rate: float, every: int) -> Bracket:
    """Return a bracket with a rung after each `every` passes, of ever fewer candidates."""
    passes = [*range(every, max_iter, every), max_iter]
    left = [max(1, int(np.ceil(n_models * (1 + k) ** -decay_rate))) for k in range(len(passes))]
    return Bracket(len(passes) - 1, tuple(zip(left, passes, strict=True)))


def find_best_scores(scores: NDArray[np.float64], n: int) -> NDArray[np.intp]:
    """Return the places of the `n` best scores, in their order; NaN counts as the lowest."""
    order = np.argsort(-np.where(np.isnan(scores), -np.inf, scores), kind="stable")
    return np.sort(order[:n])


def has_plateaued(scores: Mapping[int, float], patience: int, tol: float) -> bool:
    """Return whether no score of the last `patience` passes is better than before by `tol`."""
    last = max(scores)
    before = [passes for passes in scores if passes <= last - patience]
    if not before:
        return False
    reference = scores[max(before)] + tol
    return all(score <= reference for passes, score in scores.items() if passes > max(before))


# --- training in turns -------------------------------------------------------------------------


class CandidateTraining(ABC):
    """Base class of candidates in training; each is fitted to the training rows of every split."""

    @abstractmethod
    def advance(self, candidates: Sequence[int], last: int) -> int:
        """Train some candidates up to a pass; return the passes that were made in one split."""

    @abstractmethod
    def score(self, candidates: Sequence[int]) -> list[list[SplitFit]]:
        """Return the scores of some candidates, of each one a split."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:  # noqa: B027 (not all hold rows)
        """Release the rows."""


class BatchedTraining(CandidateTraining):
    """Candidates as columns of batched fits.

    Parameters
    ----------
    stacks : sequence of (list of int, BatchedSteps)
        With the candidates of each.
    given : tuple
        Collection, and whether it has weights.
    scorer : BatchedScorer
    train_score : bool
        Whether training rows are scored too.
    score_parts : ScoreParts
    """

    def __init__(
        self, stacks: Sequence[tuple[list[int], BatchedSteps]], given: tuple[Any, bool],
        scorer: BatchedScorer, train_score: bool, score_parts: ScoreParts,
    ) -> None:  # fmt: skip
        self._stacks, self._given = stacks, given
        self._scorer, self._summed = scorer, (train_score, score_parts)
        self._open = ExitStack()
        self._columns: dict[int, tuple[BatchedSteps, list[StepCandidate]]] = {}

    @property
    def n_stacks(self) -> int:
        """Return the number of batched fits."""
        return len(self._stacks)

    def open(self) -> None:
        """Hold the rows, until the end of a ``with`` statement."""
        with ExitStack() as opened:
            for numbers, stack in self._stacks:
                columns = opened.enter_context(stack.opened(*self._given))
                n = len(columns) // len(numbers)
                for k, number in enumerate(numbers):
                    self._columns[number] = stack, columns[k * n : (k + 1) * n]
            self._open = opened.pop_all()

    def __exit__(self, *error: object) -> None:
        self._open.__exit__(*error)  # type: ignore[arg-type]

    def advance(self, candidates: Sequence[int], last: int) -> int:
        """Train some candidates up to a pass; return the passes that were made in one split."""

        def count_passes() -> int:
            return sum(max(c.n_iter for c in self._columns[i][1]) for i in candidates)

        before = count_passes()
        for stack, some in self._group_by_stack(candidates):
            stack.advance([column for i in some for column in self._columns[i][1]], last)
        return count_passes() - before

    def score(self, candidates: Sequence[int]) -> list[list[SplitFit]]:
        """Return the scores of some candidates, of each one a split."""
        found: dict[int, list[SplitFit]] = {}
        for stack, some in self._group_by_stack(candidates):
            columns = [column for i in some for column in self._columns[i][1]]
            fits = collect_fits(stack, columns, *self._summed)
            n = len(columns) // len(some)
            for k, i in enumerate(some):
                found[i] = list(map(self._scorer, fits[k * n : (k + 1) * n], range(n)))
        return [found[i] for i in candidates]

    def _group_by_stack(self, candidates: Sequence[int]) -> list[tuple[BatchedSteps, list[int]]]:
        asked = set(candidates)
        found = [(stack, [i for i in numbers if i in asked]) for numbers, stack in self._stacks]
        return [(stack, some) for stack, some in found if some]


def begin_batched_training(
    estimators: Sequence[Any], splits: Splits, scoring: Mapping[str, Any],
    scorers: Mapping[str, Any], *, train_score: bool, error_score: Any,
) -> BatchedTraining | None:  # fmt: skip
    """Return candidates as columns of batched fits, open; None where they cannot be."""
    if not splits.can_batch or (of_steps := group_step_estimators(estimators)) is None:
        return None
    collection, classes = align_targets(splits, estimators[0]._classification)
    known = {name: find_batched_score(estimators[0], given) for name, given in scoring.items()}
    stacks = [
        (numbers, BatchedSteps([estimators[i] for i in numbers], splits.roles, classes))
        for numbers in of_steps
    ]
    scorer = BatchedScorer(splits, collection, known, scorers, train_score, error_score)
    given = collection, collection.parts[0][2] is not None
    found = BatchedTraining(stacks, given, scorer, train_score, list_score_parts(known))
    try:
        found.open()
    except NotBatchableError:
        return None
    return found


class PartialFitTraining(CandidateTraining):
    """Candidates with ``partial_fit``, one after the other: each on the whole cluster.

    Parameters
    ----------
    estimators : sequence of estimator
    splits : Splits
    scorers : mapping of str to callable
    classes : ndarray or None
        All labels.
    train_score : bool
    error_score : "raise" or float
    """

    def __init__(
        self, estimators: Sequence[Any], splits: Splits, scorers: Mapping[str, Any],
        classes: NDArray[Any] | None, *, train_score: bool, error_score: Any,
    ) -> None:  # fmt: skip
        n = splits.n_splits
        self._models = [[ResumableModel(clone(one)) for _ in range(n)] for one in estimators]
        self._sides = [
            [_persist_side(splits.side(split, role)) for role in (TRAIN, TEST)]
            for split in range(n)
        ]
        self._scorers, self._classes = guard_scorers(scorers, error_score), classes
        self._train_score, self._error_score = train_score, error_score

    def advance(self, candidates: Sequence[int], last: int) -> int:
        """Train some candidates up to a pass; return the passes that were made in one split."""
        made = 0
        for i in candidates:
            calls = [
                train_by_passes(model, *train, self._classes, last)
                for model, (train, _) in zip(self._models[i], self._sides, strict=True)
            ]
            made += max(calls)
        return made

    def score(self, candidates: Sequence[int]) -> list[list[SplitFit]]:
        """Return the scores of some candidates, of each one a split."""
        return [
            [self._score(m, *sides) for m, sides in zip(self._models[i], self._sides, strict=True)]
            for i in candidates
        ]

    def _score(self, model: ResumableModel, train: Any, test: Any) -> SplitFit:
        if model.error is not None:
            names = list(self._scorers)
            return score_failed_model(model, names, self._train_score, self._error_score)
        return model.score(self._scorers, train, test, train_score=self._train_score)


def _persist_side(side: tuple[Any, Any, dict[str, Any]]) -> tuple[Any, Any, dict[str, Any]]:
    """Return one side of a split, whose lazy rows stay on the workers while candidates train."""
    X, y, params = side
    lazy = [value for value in (X, y, *params.values()) if is_dask(value)]
    if not lazy:
        return side
    # Unoptimised: fused tasks would bear keys that the blocks of fits and scores have unfused, and
    # the scheduler keeps tasks of a key that comes with two graphs.
    kept = iter(persist(*lazy, optimize_graph=False))
    take = [next(kept) if is_dask(value) else value for value in (X, y, *params.values())]
    return take[0], take[1], dict(zip(params, take[2:], strict=True))


# --- one model by passes -----------------------------------------------------------------------


@dataclass(eq=False)
class ResumableModel:
    """A model in training, and the passes that it has made.

    Parameters
    ----------
    estimator : estimator
    passes : int
    seconds : float
    error : Exception or None
        Failure that ended its training.
    """

    estimator: Any
    passes: int = 0
    seconds: float = 0.0
    error: Exception | None = None

    def score(
        self, scorers: Mapping[str, Any], train: Any, test: Any, *, train_score: bool
    ) -> SplitFit:
        """Return the scores of the test side, and of the training side where asked."""
        sides = [lambda: test, *([lambda: train] if train_score else [])]
        return score_fitted(scorers, self.estimator, sides, self.seconds)


def train_by_passes(
    model: ResumableModel, X: Any, y: Any, params: dict[str, Any], classes: Any, last: int
) -> int:
    """Train a model by ``partial_fit``, a call a pass, up to the last; return the calls made."""
    begin, before = time.perf_counter(), model.passes
    named = {} if classes is None else {"classes": classes}
    try:
        while model.error is None and model.passes < last:
            model.estimator.partial_fit(X, y, **named, **params)
            model.passes += 1
    except Exception as error:
        model.error = error
    model.seconds += time.perf_counter() - begin
    return model.passes - before


def score_failed_model(
    model: ResumableModel, names: Sequence[str], train_score: bool, error_score: Any
) -> SplitFit:
    """Return the scores of a model that failed, with a warning."""
    assert model.error is not None
    what = f"A fit of {type(model.estimator).__name__}"
    return SplitFit.warn_failure(model.error, what, names, train_score, error_score, model.seconds)


# --- training as tasks, with asynchronous promotion --------------------------------------------


class PromotionLadder:
    """A bracket whose candidates are promoted as soon as they are among the best of their rung.

    Parameters
    ----------
    bracket : Bracket
    candidates : sequence of int
    factor : float or None
        One in `factor` of the candidates scored at a rung is promoted; None: as the bracket's
        rungs have it.
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
        """Return a candidate and the rung to train it to; None: wait for others."""
        # From the top: a promotion to a higher rung goes before one to a lower rung.
        for rung in range(len(self.rungs) - 2, -1, -1):
            known, gone = self._scores[rung], self._promoted[rung]
            numbers = sorted(known)
            scores = np.array([known[i] for i in numbers])
            (n_here, _), (n_next, _) = self.rungs[rung : rung + 2]
            factor = n_here / n_next if self._factor is None else self._factor
            most = min(int(len(numbers) / factor), n_next)
            # A candidate that failed has no score and is never promoted.
            best = [numbers[k] for k in find_best_scores(scores, most) if not np.isnan(scores[k])]
            for i in best:
                if i not in self._stopped and i not in gone and len(gone) < n_next:
                    gone.add(i)
                    return i, rung + 1
        return (self._new.pop(0), 0) if self._new else None

    def add_score(self, candidate: int, rung: int, score: float) -> None:
        """Add the score of a candidate at a rung."""
        self._scores[rung][candidate] = score
        passes = [passes for _, passes in self.rungs[: rung + 1]]
        known = zip(passes, self._scores, strict=False)
        if self._stops is not None and self._stops({n: scores[candidate] for n, scores in known}):
            self._stopped.add(candidate)


class AsyncTraining:
    """Candidates that are trained as tasks, several at once: each of a split is a task.

    Which are promoted depends on who is first. Rows of a split are gathered on a worker.

    Parameters
    ----------
    client : Client
    estimators : sequence of estimator
    brackets : sequence of (Bracket, list of int)
        With the candidates of each.
    factor, stops
        As in :class:`PromotionLadder`.
    splits : Splits
    scorers : mapping of str to callable
        The one score.
    classes : ndarray or None
        All labels.
    train_score : bool
    error_score : "raise" or float

    Attributes
    ----------
    fits : dict of int to list of SplitFit
        Of each candidate after its last pass, one a split.
    history : list of dict
        Candidate, bracket, passes and score of each rung that was reached.
    calls : int
        Passes of all candidates, of one split.
    """

    def __init__(
        self, client: Client, estimators: Sequence[Any],
        brackets: Sequence[tuple[Bracket, list[int]]], factor: float | None, splits: Splits,
        scorers: Mapping[str, Any], classes: NDArray[Any] | None, *, train_score: bool,
        error_score: Any, stops: Callable[[Mapping[int, float]], bool] | None = None,
    ) -> None:  # fmt: skip
        self._client, self._estimators, self._splits = client, estimators, splits
        self._brackets = [bracket for bracket, _ in brackets]
        self._ladders = [PromotionLadder(one, some, factor, stops) for one, some in brackets]
        self._scorers, self._classes = guard_scorers(scorers, error_score), classes
        self._train_score, self._error_score = train_score, error_score
        self._rows: list[Future[Any]] = []
        self._models: dict[int, list[Future[Any]]] = {}
        #: Ladder, candidate, rung and split of each score that is not there yet.
        self._open: dict[Future[Any], tuple[int, int, int, int]] = {}
        self._found: dict[int, dict[int, SplitFit]] = {}
        self.fits: dict[int, list[SplitFit]] = {}
        self.history: list[dict[str, Any]] = []
        self.calls = 0

    def run(self) -> None:
        """Train until no candidate is left to promote."""
        from distributed import as_completed

        n_splits, jobs = self._splits.n_splits, as_completed()
        gathered = [self._splits.rows.gather_split(split) for split in range(n_splits)]
        # As many tasks as keep all threads at work, and no candidate before it is needed.
        most = 2 * max(1, sum(self._client.nthreads().values()))
        try:
            self._rows = self._client.compute(gathered)
            while True:
                while len(self._open) < most and (found := _find_next_job(self._ladders)):
                    for job in self._submit(*found):
                        jobs.add(job)
                if not self._open:
                    return
                self._take_score(next(jobs))
        finally:
            # Released, not cancelled: a task that others depend on is wanted until they are done.
            models = (future for row in self._models.values() for future in row)
            for future in [*self._open, *self._rows, *models]:
                future.release()

    def _submit(self, ladder: int, candidate: int, rung: int) -> list[Future[Any]]:
        """Submit the tasks that train a candidate to a rung, and return those of its scores."""
        rungs, before = self._ladders[ladder].rungs, self._models.get(candidate)
        passes = rungs[rung][1]
        params = partial(merge_fit_params, self._splits.plain, self._splits.cut)
        self.calls += passes - (rungs[rung - 1][1] if rung else 0)
        self._found[candidate], self._models[candidate] = {}, []
        submit, jobs = self._client.submit, []
        for split, rows in enumerate(self._rows):
            given = self._estimators[candidate] if before is None else before[split]
            train = given, rows, params, self._classes, passes
            model = submit(_train_candidate, *train, pure=False)
            score = model, rows, params, self._scorers, self._train_score
            job = submit(_score_candidate, *score, pure=False)
            self._models[candidate].append(model)
            self._open[job] = ladder, candidate, rung, split
            jobs.append(job)
        return jobs

    def _take_score(self, job: Future[Any]) -> None:
        """Take the score of a split; with the last of a candidate, add it to the ladder."""
        ladder, candidate, rung, split = self._open[job]
        try:
            result, of_splits = job.result(), self._found[candidate]
        except Exception as error:
            if is_dask_error(error):
                raise TrainingError(
                    f"Tasks of candidates were lost: {error} Give the workers more memory, or "
                    "stop what ends them, then fit again."
                ) from error
            if self._rows[split].exception() is not None:
                raise self._splits.rows.make_unread_error(error) from error
            raise
        del self._open[job]  # a job that raises stays, and is released with all others
        if isinstance(result, ResumableModel):
            names = list(self._scorers)
            result = score_failed_model(result, names, self._train_score, self._error_score)
        of_splits[split] = result
        if len(of_splits) < self._splits.n_splits:
            return
        self.fits[candidate] = [of_splits[split] for split in sorted(of_splits)]
        (name,) = self._scorers
        score = float(np.mean([fit.test[name] for fit in self.fits[candidate]]))
        self._ladders[ladder].add_score(candidate, rung, score)
        bracket = self._brackets[ladder]
        passes = bracket.rungs[rung][1]
        facts: dict[str, Any] = {"candidate": candidate, "bracket": bracket.number}
        self.history.append({**facts, "passes": passes, "mean_test_score": score})
        reached = {**facts, "resource": passes, "score": score}
        tell_rung(f"bracket {bracket.number}, candidate {candidate}", [reached])
        tell("candidates scored at rungs", len(self.history))


def _find_next_job(ladders: Sequence[PromotionLadder]) -> tuple[int, int, int] | None:
    """Return the ladder, candidate and rung of the next training; None: wait for others."""
    for number, ladder in enumerate(ladders):
        if (found := ladder.find_next()) is not None:
            return number, *found
    return None


def _train_candidate(
    given: Any, rows: Any, params: _MakeParams, classes: Any, last: int
) -> ResumableModel:
    """Return a model trained up to a pass; the given one stays as it was."""
    model = deepcopy(given) if isinstance(given, ResumableModel) else ResumableModel(clone(given))
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
    """Return the scores of a model; a model that failed without what it has learned."""
    if model.error is not None:
        return ResumableModel(clone(model.estimator), model.passes, model.seconds, model.error)
    found = model.score(scorers, *_make_sides(rows, params), train_score=train_score)
    found.estimator = None  # it stays on the worker
    return found


def _make_sides(rows: Any, params: _MakeParams) -> list[tuple[Any, Any, dict[str, Any]]]:
    """Return both sides of a split, with arguments of ``fit``."""
    return [(X, y, params(cut)) for X, y, *cut in rows]
