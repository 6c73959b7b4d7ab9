"""Scores of gradient boosting after each iteration: for early stopping, and for the user.

Minus the mean loss is a sum over all trainers. A scorer needs all predictions: those rows are
gathered to one trainer (:class:`GatheredRows`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.hashed import draw_by_hash
from daskml_dist.solvers.binning import BinnedRows
from daskml_dist.solvers.boosting_losses import BoostLoss
from daskml_dist.solvers.exact_sums import sum_exactly
from daskml_dist.solvers.own_rows import Array, OwnRows

__all__ = [
    "BoostScores",
    "GatheredRows",
    "RowRange",
    "Scorer",
    "StoppingRule",
    "WatchedScores",
    "is_in_range",
]

#: Key of this use of the seed, so that draws do not repeat another use's.
_SCORE_DRAW = 5
#: Raw predictions of rows, of shape (n, n_outputs), their targets, and weights or None.
Scorer = Callable[[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64] | None], float]
#: Half-open range of row numbers among all rows.
RowRange = tuple[int, int]
#: Training rows that a scorer sees, about, as in scikit-learn; a loss sees all.
_MAX_SCORED_ROWS = 10_000


@dataclass(frozen=True)
class StoppingRule:
    """Rule of early stopping.

    Parameters
    ----------
    n_iter_no_change : int
    tol : float
    by_held : bool
        Whether rows held out are scored; else the rows trained on.
    scorer : callable or None
        Score of some rows, from their raw predictions, targets and weights; None: minus the mean
        loss, which need not gather them.
    within : RowRange or None
        Rows held out that are scored; None: all of them.
    """

    n_iter_no_change: int
    tol: float
    by_held: bool = False
    scorer: Scorer | None = None
    within: RowRange | None = None

    def ends(self, scores: Sequence[float]) -> bool:
        """Return whether none of the last scores beats the score before them by more than `tol`."""
        if len(scores) <= self.n_iter_no_change:
            return False
        reference = scores[-self.n_iter_no_change - 1] + self.tol
        return not any(score > reference for score in scores[-self.n_iter_no_change :])


@dataclass(frozen=True)
class WatchedScores:
    """Sets of held-out rows that the user watches, and their scorers.

    Parameters
    ----------
    sets : tuple of Range
        Rows of each set, all of them held out.
    scorers : tuple of callable or None
        Scores of each set; None: minus the mean loss.
    names : tuple of str
        Keys of the scores in the records of a fit, those of a set side by side.
    """

    sets: tuple[RowRange, ...]
    scorers: tuple[Scorer | None, ...]
    names: tuple[str, ...]


class _ScoredPart:
    """Set of rows that are scored together: binned rows whose numbers lie in a range."""

    def __init__(
        self, rows: OwnRows, rooms: Sequence[BinnedRows], loss: BoostLoss, within: RowRange | None
    ) -> None:
        self._rows, self._rooms, self._loss, self._within = rows, rooms, loss, within
        self._gathered: GatheredRows | None = None

    def gather(self, share: float, seed: int) -> None:
        """Gather a share of the rows to one trainer, for scores that need more than sums."""
        weighted = np.array([float(any(room.weight is not None for room in self._rooms))])
        self._gathered = GatheredRows(
            self._rows, self._rooms, share, seed, bool(self._rows.max_trainers(weighted)[0]),
            self._within,
        )  # fmt: skip

    def score(self, scorer: Scorer | None) -> float:
        """Return a score of the rows as they are predicted now; None: minus the mean loss."""
        if scorer is not None:
            assert self._gathered is not None
            return self._gathered.score(scorer)
        loss, weight = sum_exactly(self._rows, self._rooms, self._losses_of, 2)
        return float(-loss / weight) if weight else 0.0

    def _losses_of(self, room: BinnedRows, at: slice) -> list[Array]:
        y = room.y[at]
        weight = np.ones(len(y)) if room.weight is None else room.weight[at]
        losses = self._loss.losses(y, room.extra["raw"][:, at]) * weight
        if self._within is None:
            return [losses, weight]
        assert room.numbers is not None
        is_within = is_in_range(room.numbers[at], self._within)
        return [np.where(is_within, losses, 0.0), np.where(is_within, weight, 0.0)]


class BoostScores:
    """Scores of the training rows, of the held-out rows, and of the sets that the user watches.

    Parameters
    ----------
    rows : OwnRows
    stopping : StoppingRule or None
        None: no rows are scored for early stopping.
    watching : WatchedScores or None
    loss : BoostLoss
    given : mapping of str to sequence of float
        Scores of early stopping that were found before.
    """

    def __init__(
        self,
        rows: OwnRows,
        stopping: StoppingRule | None,
        watching: WatchedScores | None,
        loss: BoostLoss,
        given: Mapping[str, Sequence[float]],
    ) -> None:
        self._rows, self._stopping, self._watching, self._loss = rows, stopping, watching, loss
        self.found = {name: list(given[name]) for name in ("train_score", "validation_score")}
        self._parts: dict[str, _ScoredPart] = {}
        self._watched: list[_ScoredPart] = []

    def start_scoring(
        self, rooms: Sequence[BinnedRows], held: Sequence[BinnedRows], n: int, seed: int
    ) -> None:
        """Look at the rows: `n` are trained on, of all trainers."""
        stopping, watching = self._stopping, self._watching
        if stopping is not None:
            self._parts = {"train_score": _ScoredPart(self._rows, rooms, self._loss, None)}
            if stopping.by_held:
                validation = _ScoredPart(self._rows, held, self._loss, stopping.within)
                self._parts["validation_score"] = validation
            if stopping.scorer is not None:
                for name, part in self._parts.items():
                    part.gather(
                        min(1.0, _MAX_SCORED_ROWS / n) if name == "train_score" else 1.0, seed
                    )
        if watching is not None:
            self._watched = [_ScoredPart(self._rows, held, self._loss, of) for of in watching.sets]
            if any(scorer is not None for scorer in watching.scorers):
                for part in self._watched:
                    part.gather(1.0, seed)

    def score_for_stopping(self) -> None:
        """Score the rows as they are predicted now, for early stopping."""
        assert self._stopping is not None
        for name, part in self._parts.items():
            self.found[name].append(part.score(self._stopping.scorer))

    def score_watched(self) -> list[float]:
        """Return the scores that the user watches, of the rows as they are predicted now."""
        if self._watching is None:
            return []
        return [part.score(one) for part in self._watched for one in self._watching.scorers]

    def is_finished(self) -> bool:
        """Return whether early stopping ends the fit now."""
        if self._stopping is None:
            return False
        name = "validation_score" if self._stopping.by_held else "train_score"
        return self._stopping.ends(self.found[name])


class GatheredRows:
    """Rows of all trainers, gathered to one trainer for a scorer.

    One trainer scores them for all: what a user's function answers need not be the same twice.

    Parameters
    ----------
    rows : OwnRows
    rooms : sequence of BinnedRows
        Of each own lane, with their numbers.
    share : float
        Of the rows that are scored, drawn; 1: all.
    seed : int
    weighted : bool
        Whether any trainer's have weights.
    within : RowRange or None, default=None
        Numbers of the rows that are scored; None: of all.
    """

    def __init__(
        self,
        rows: OwnRows,
        rooms: Sequence[BinnedRows],
        share: float,
        seed: int,
        weighted: bool,
        within: RowRange | None = None,
    ) -> None:
        self._rows, self._rooms, self._weighted = rows, list(rooms), weighted
        last = np.uint64(min(int(share * 2.0**64), 2**64 - 1))
        self._at = []
        for room in rooms:
            is_scored = draw_by_hash(_row_numbers(room), seed, _SCORE_DRAW) <= last
            if within is not None:
                is_scored &= is_in_range(_row_numbers(room), within)
            self._at.append(np.flatnonzero(is_scored))
        numbers = self._gather_in_order(
            [_row_numbers(room)[at] for room, at in self._scored_rows()]
        )
        self._order = np.argsort(numbers, kind="stable")
        self._y = self._gather_in_order([room.y[at] for room, at in self._scored_rows()])[
            self._order
        ]
        self._weight: NDArray[np.float64] | None = None
        if weighted:
            of_rooms = [
                np.ones(len(at)) if room.weight is None else room.weight[at]
                for room, at in self._scored_rows()
            ]
            self._weight = self._gather_in_order(of_rooms)[self._order]

    def score(self, scorer: Scorer) -> float:
        """Return the score of the rows as they are predicted now."""
        raw = self._gather_in_order(
            [room.extra["raw"][:, at].T for room, at in self._scored_rows()]
        )
        told = np.zeros(1)
        if self._rows.rank == 0:
            told[0] = scorer(raw[self._order], self._y, self._weight)
        # As whole numbers, so that what is not finite comes as it is.
        return float(self._rows.sum_trainers(told.view(np.int64)).view(np.float64)[0])

    def _scored_rows(self) -> list[tuple[BinnedRows, NDArray[np.intp]]]:
        return list(zip(self._rooms, self._at, strict=True))

    def _gather_in_order(self, parts: list[NDArray]) -> NDArray:  # type: ignore[type-arg]
        """Return the rows of all trainers on the first trainer, and the own rows elsewhere."""
        own = np.ascontiguousarray(np.concatenate(parts))
        others = [own if rank == 0 else own[:0] for rank in range(self._rows.size)]
        found = self._rows.exchange_arrays(others)
        return np.concatenate(found)


def is_in_range(numbers: NDArray[np.int64], within: RowRange) -> NDArray[np.bool_]:
    """Return which numbers of rows lie in a range."""
    return np.asarray((numbers >= within[0]) & (numbers < within[1]))


def _row_numbers(room: BinnedRows) -> NDArray[np.int64]:
    assert room.numbers is not None
    return room.numbers
