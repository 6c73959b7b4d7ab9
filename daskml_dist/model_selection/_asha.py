"""Promotion of candidates as soon as they deserve it, on the workers of a cluster.

L. Li et al., "A system for massively parallel hyperparameter tuning" (ASHA), MLSys 2020.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from distributed import Client, Future, as_completed
from numpy.typing import NDArray
from sklearn.base import clone

from daskml_dist.model_selection._brackets import Bracket, best_of
from daskml_dist.model_selection._resumed import Model, failed, pass_over
from daskml_dist.model_selection._validation import Fitted, Splits, score_sides

__all__ = ["Ladder", "climbed"]


class Ladder:
    """A bracket whose candidates climb as soon as they are among the best of their rung.

    Parameters
    ----------
    bracket : Bracket
    candidates : sequence of int
    factor : float
        Of so many that have come to a rung, one goes on.
    """

    def __init__(self, bracket: Bracket, candidates: Sequence[int], factor: float) -> None:
        self.rungs, self._factor = bracket.rungs, factor
        self._new = list(candidates)
        self._scores: list[dict[int, float]] = [{} for _ in bracket.rungs]
        self._promoted: list[set[int]] = [set() for _ in bracket.rungs]

    def next(self) -> tuple[int, int] | None:
        """A candidate, and the rung that it is to come to; None: wait for others."""
        for rung in range(len(self.rungs) - 2, -1, -1):
            known, gone = self._scores[rung], self._promoted[rung]
            numbers = sorted(known)
            scores = np.array([known[i] for i in numbers])
            most = min(int(len(numbers) / self._factor), self.rungs[rung + 1][0])
            # What has failed is promoted by nobody.
            best = [numbers[k] for k in best_of(scores, most) if not np.isnan(scores[k])]
            for i in best:
                if i not in gone and len(gone) < self.rungs[rung + 1][0]:
                    gone.add(i)
                    return i, rung + 1
        return (self._new.pop(0), 0) if self._new else None

    def tell(self, candidate: int, rung: int, score: float) -> None:
        """A candidate has come to a rung."""
        self._scores[rung][candidate] = score


def climbed(
    client: Client, estimators: Sequence[Any], brackets: Sequence[tuple[Bracket, list[int]]],
    factor: float, splits: Splits, scorers: Mapping[str, Any], classes: NDArray[Any] | None, *,
    train_score: bool, error_score: Any, name: str,
) -> tuple[dict[int, list[Fitted]], list[dict[str, Any]], int]:  # fmt: skip
    """Train candidates as tasks, several at once: each of a split is a task.

    Which are promoted depends on who is first. Rows of a split are gathered on a worker.

    Returns
    -------
    fits : dict of int to list of Fitted
        Of each candidate where it came to, one a split.
    told : list of dict
        Candidate, bracket, passes and score of each rung that was reached.
    calls : int
        Passes of all candidates, of one split.
    """
    ladders = [Ladder(bracket, candidates, factor) for bracket, candidates in brackets]
    rows = client.compute([splits.rows.gathered(split) for split in range(splits.n_splits)])
    fitted = {"scorers": dict(scorers), "train_score": train_score}
    models: dict[int, list[Future[Any]]] = {}
    open_jobs: dict[tuple[int, int, int], dict[int, Fitted]] = {}
    fits: dict[int, list[Fitted]] = {}
    told: list[dict[str, Any]] = []
    jobs, calls, place = as_completed(), 0, {}
    n_places = max(1, sum(client.nthreads().values()))
    try:
        while True:
            while len(open_jobs) * splits.n_splits < 2 * n_places:
                if (found := _next_of(ladders)) is None:
                    break
                ladder, (candidate, rung) = found
                before = models.get(candidate)
                passes = ladders[ladder].rungs[rung][1]
                calls += passes - (ladders[ladder].rungs[rung - 1][1] if rung else 0)
                models[candidate] = [
                    client.submit(
                        _trained, estimators[candidate] if before is None else before[split],
                        rows[split], splits.plain, classes, passes, pure=False,
                    )
                    for split in range(splits.n_splits)
                ]  # fmt: skip
                key = ladder, candidate, rung
                open_jobs[key] = {}
                for split, model in enumerate(models[candidate]):
                    job = client.submit(
                        _scored, model, rows[split], splits.plain, **fitted, pure=False
                    )
                    place[job] = key, split
                    jobs.add(job)
            if not open_jobs:
                return fits, told, calls
            future = next(jobs)
            key, split = place.pop(future)
            result = future.result()
            if isinstance(result, Model):
                result = failed(result, list(scorers), train_score, error_score)
            open_jobs[key][split] = result
            if len(open_jobs[key]) < splits.n_splits:
                continue
            done = open_jobs.pop(key)
            ladder, candidate, rung = key
            fits[candidate] = [done[split] for split in range(splits.n_splits)]
            score = float(np.mean([fit.test[name] for fit in fits[candidate]]))
            ladders[ladder].tell(candidate, rung, score)
            bracket = brackets[ladder][0]
            told.append(
                {
                    "candidate": candidate, "bracket": bracket.number,
                    "passes": bracket.rungs[rung][1], "mean_test_score": score,
                }
            )  # fmt: skip
    finally:
        # Let go of, rather than cancelled: what depends on others is wanted until it is done.
        for future in [*place, *rows, *(future for row in models.values() for future in row)]:
            future.release()


def _next_of(ladders: Sequence[Ladder]) -> tuple[int, tuple[int, int]] | None:
    for number, ladder in enumerate(ladders):
        if (found := ladder.next()) is not None:
            return number, found
    return None


def _sides(rows: Any, plain: dict[str, Any]) -> list[tuple[Any, Any, dict[str, Any]]]:
    """Both sides of a split, with arguments of ``fit``."""
    return [
        (X, y, {**plain, **dict(zip(["sample_weight"], weight, strict=False))})
        for X, y, *weight in rows
    ]


def _trained(given: Any, rows: Any, plain: dict[str, Any], classes: Any, last: int) -> Model:
    """A model as far as it is to come; what it is made of stays as it was."""
    model = deepcopy(given) if isinstance(given, Model) else Model(clone(given))
    train, _ = _sides(rows, plain)
    pass_over(model, *train, classes, last)
    return model


def _scored(
    model: Model, rows: Any, plain: dict[str, Any], scorers: dict[str, Any], train_score: bool
) -> Fitted | Model:
    """Scores of a model; a model that failed is what it is."""
    if model.error is not None:
        return Model(clone(model.estimator), model.passes, model.seconds, model.error)
    train, test = _sides(rows, plain)
    begin = time.perf_counter()
    found = score_sides(scorers, model.estimator, *test, weigh=True)
    taken = time.perf_counter() - begin
    trained = {}
    if train_score:
        trained = score_sides(scorers, model.estimator, *train, weigh=True)
    return Fitted(found, trained, model.seconds, taken)
