"""Promotion of candidates as soon as they deserve it, on the workers of a cluster.

L. Li et al., "A system for massively parallel hyperparameter tuning" (ASHA), MLSys 2020.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
from distributed import Client, Future, as_completed
from numpy.typing import NDArray
from sklearn.base import clone

from daskml_dist.dask_internals.cluster import is_dask_error
from daskml_dist.diagnostics.works import tell, tell_rung
from daskml_dist.errors import TrainingError
from daskml_dist.model_selection._brackets import Bracket, best_of
from daskml_dist.model_selection._failures import safe
from daskml_dist.model_selection._resumed import ResumableModel, failed, pass_over
from daskml_dist.model_selection._validation import Fitted, Splits, score_sides, with_cut

__all__ = ["Climb", "Ladder"]

#: What makes arguments of ``fit`` of the values of those that are cut.
_Params = Callable[[Sequence[Any]], dict[str, Any]]


class Ladder:
    """A bracket whose candidates climb as soon as they are among the best of their rung.

    Parameters
    ----------
    bracket : Bracket
    candidates : sequence of int
    factor : float or None
        Of so many that have come to a rung, one goes on; None: as many as the bracket's rungs have.
    stops : callable, optional
        Tells of the scores of a candidate, by passes, whether it goes on no more.
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

    def next(self) -> tuple[int, int] | None:
        """A candidate, and the rung that it is to come to; None: wait for others."""
        for rung in range(len(self.rungs) - 2, -1, -1):
            known, gone = self._scores[rung], self._promoted[rung]
            numbers = sorted(known)
            scores = np.array([known[i] for i in numbers])
            (n_here, _), (n_next, _) = self.rungs[rung : rung + 2]
            factor = n_here / n_next if self._factor is None else self._factor
            most = min(int(len(numbers) / factor), n_next)
            # What has failed is promoted by nobody.
            best = [numbers[k] for k in best_of(scores, most) if not np.isnan(scores[k])]
            best = [i for i in best if i not in self._stopped]
            for i in best:
                if i not in gone and len(gone) < self.rungs[rung + 1][0]:
                    gone.add(i)
                    return i, rung + 1
        return (self._new.pop(0), 0) if self._new else None

    def tell(self, candidate: int, rung: int, score: float) -> None:
        """A candidate has come to a rung."""
        self._scores[rung][candidate] = score
        passes = [passes for _, passes in self.rungs[: rung + 1]]
        known = zip(passes, self._scores, strict=False)
        if self._stops is not None and self._stops({n: scores[candidate] for n, scores in known}):
            self._stopped.add(candidate)


class Climb:
    """Candidates that are trained as tasks, several at once: each of a split is a task.

    Which are promoted depends on who is first. Rows of a split are gathered on a worker.

    Parameters
    ----------
    client : Client
    estimators : sequence of estimator
    brackets : sequence of (Bracket, list of int)
        With the candidates of each.
    factor, stops
        As in :class:`Ladder`.
    splits : Splits
    scorers : mapping of str to callable
        The one score.
    classes : ndarray or None
        All labels.
    train_score : bool
    error_score : "raise" or float

    Attributes
    ----------
    fits : dict of int to list of Fitted
        Of each candidate where it came to, one a split.
    told : list of dict
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
        self._ladders = [Ladder(bracket, some, factor, stops) for bracket, some in brackets]
        self._scorers, self._classes = safe(scorers, error_score), classes
        self._train_score, self._error_score = train_score, error_score
        self._rows: list[Future[Any]] = []
        self._models: dict[int, list[Future[Any]]] = {}
        #: Ladder, candidate, rung and split of each score that is not there yet.
        self._open: dict[Future[Any], tuple[int, int, int, int]] = {}
        self._found: dict[int, dict[int, Fitted]] = {}
        self.fits: dict[int, list[Fitted]] = {}
        self.told: list[dict[str, Any]] = []
        self.calls = 0

    def run(self) -> None:
        """Train until nobody is to be promoted."""
        n_splits, jobs = self._splits.n_splits, as_completed()
        gathered = [self._splits.rows.gathered(split) for split in range(n_splits)]
        # As many tasks as keep all threads at work, and no candidate before it is needed.
        most = 2 * max(1, sum(self._client.nthreads().values()))
        try:
            self._rows = self._client.compute(gathered)
            while True:
                while len(self._open) < most and (found := _next_of(self._ladders)) is not None:
                    for job in self._begin(*found):
                        jobs.add(job)
                if not self._open:
                    return
                self._end(next(jobs))
        finally:
            # Let go of, not cancelled: what depends on others is wanted until it is done.
            models = (future for row in self._models.values() for future in row)
            for future in [*self._open, *self._rows, *models]:
                future.release()

    def _begin(self, ladder: int, candidate: int, rung: int) -> list[Future[Any]]:
        """Tasks that bring a candidate to a rung, and score it."""
        rungs, before = self._ladders[ladder].rungs, self._models.get(candidate)
        passes = rungs[rung][1]
        params = partial(with_cut, self._splits.plain, self._splits.cut)
        self.calls += passes - (rungs[rung - 1][1] if rung else 0)
        self._found[candidate], self._models[candidate] = {}, []
        submit, jobs = self._client.submit, []
        for split, rows in enumerate(self._rows):
            given = self._estimators[candidate] if before is None else before[split]
            model = submit(_trained, given, rows, params, self._classes, passes, pure=False)
            job = submit(_scored, model, rows, params, self._scorers, self._train_score, pure=False)
            self._models[candidate].append(model)
            self._open[job] = ladder, candidate, rung, split
            jobs.append(job)
        return jobs

    def _end(self, job: Future[Any]) -> None:
        """Take a score; with the last of a candidate, its ladder is told."""
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
                raise self._splits.rows.unread(error) from error
            raise
        del self._open[job]  # what raises is let go of with all others
        if isinstance(result, ResumableModel):
            result = failed(result, list(self._scorers), self._train_score, self._error_score)
        of_splits[split] = result
        if len(of_splits) < self._splits.n_splits:
            return
        self.fits[candidate] = [of_splits[split] for split in sorted(of_splits)]
        (name,) = self._scorers
        score = float(np.mean([fit.test[name] for fit in self.fits[candidate]]))
        self._ladders[ladder].tell(candidate, rung, score)
        bracket = self._brackets[ladder]
        told: dict[str, Any] = {"candidate": candidate, "bracket": bracket.number,
                "passes": bracket.rungs[rung][1], "mean_test_score": score}  # fmt: skip
        self.told.append(told)
        here = {"candidate": candidate, "bracket": bracket.number,
                "resource": bracket.rungs[rung][1], "score": score}  # fmt: skip
        tell_rung(f"bracket {bracket.number}, candidate {candidate}", [here])
        tell("candidates scored at rungs", len(self.told))


def _next_of(ladders: Sequence[Ladder]) -> tuple[int, int, int] | None:
    """Ladder, candidate and rung."""
    for number, ladder in enumerate(ladders):
        if (found := ladder.next()) is not None:
            return number, *found
    return None


def _sides(rows: Any, params: _Params) -> list[tuple[Any, Any, dict[str, Any]]]:
    """Both sides of a split, with arguments of ``fit``."""
    return [(X, y, params(cut)) for X, y, *cut in rows]


def _trained(given: Any, rows: Any, params: _Params, classes: Any, last: int) -> ResumableModel:
    """A model as far as it is to come; what it is made of stays as it was."""
    model = deepcopy(given) if isinstance(given, ResumableModel) else ResumableModel(clone(given))
    train, _ = _sides(rows, params)
    pass_over(model, *train, classes, last)
    return model


def _scored(
    model: ResumableModel, rows: Any, params: _Params, scorers: dict[str, Any], train_score: bool
) -> Fitted | ResumableModel:
    """Scores of a model; a model that failed is what it is."""
    if model.error is not None:
        return ResumableModel(clone(model.estimator), model.passes, model.seconds, model.error)
    train, test = _sides(rows, params)
    begin = time.perf_counter()
    found = score_sides(scorers, model.estimator, *test, weigh=True)
    taken = time.perf_counter() - begin
    trained = {}
    if train_score:
        trained = score_sides(scorers, model.estimator, *train, weigh=True)
    return Fitted(found, trained, model.seconds, taken)
