"""Scores of boosting as its iterations go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.solvers.binned_rows import BinnedRows
from daskml_dist.solvers.boosting_losses import BoostLoss
from daskml_dist.solvers.exact_sums import exact_sums
from daskml_dist.solvers.own_rows import OwnRows
from daskml_dist.solvers.scored import ScoredRows, are_within
from daskml_dist.solvers.stopping import Range, Scorer, Stopping, Watching

__all__ = ["BoostScores"]

Array = NDArray[Any]
#: Rows trained on that a scorer sees, roughly; a loss sees all.
_ENOUGH = 10_000


class _Part:
    """Rows that are scored together: those of some binned rows whose numbers lie in a range."""

    def __init__(
        self, rows: OwnRows, rooms: Sequence[BinnedRows], loss: BoostLoss, within: Range | None
    ) -> None:
        self._rows, self._rooms, self._loss, self._within = rows, rooms, loss, within
        self._gathered: ScoredRows | None = None

    def gather(self, share: float, seed: int) -> None:
        """Gather a share of the rows to one trainer, for scores that need more than sums."""
        weighted = np.array([float(any(room.weight is not None for room in self._rooms))])
        self._gathered = ScoredRows(
            self._rows, self._rooms, share, seed, bool(self._rows.largest(weighted)[0]),
            self._within,
        )  # fmt: skip

    def score(self, scorer: Scorer | None) -> float:
        """Return a score of the rows as they are predicted now; None: minus the mean loss."""
        if scorer is not None:
            assert self._gathered is not None
            return self._gathered.score(scorer)
        loss, weight = exact_sums(self._rows, self._rooms, self._losses_of, 2)
        return float(-loss / weight) if weight else 0.0

    def _losses_of(self, room: BinnedRows, at: slice) -> list[Array]:
        y = room.y[at]
        weight = np.ones(len(y)) if room.weight is None else room.weight[at]
        losses = self._loss.losses(y, room.extra["raw"][:, at]) * weight
        if self._within is None:
            return [losses, weight]
        assert room.numbers is not None
        is_within = are_within(room.numbers[at], self._within)
        return [np.where(is_within, losses, 0.0), np.where(is_within, weight, 0.0)]


class BoostScores:
    """Scores of the rows trained on, of those held out, and of those that the user watches.

    Parameters
    ----------
    rows : OwnRows
    stopping : Stopping or None
        None: no rows are scored for early stopping.
    watching : Watching or None
    loss : BoostLoss
    given : mapping of str to sequence of float
        Scores of early stopping that were found before.
    """

    def __init__(
        self,
        rows: OwnRows,
        stopping: Stopping | None,
        watching: Watching | None,
        loss: BoostLoss,
        given: Mapping[str, Sequence[float]],
    ) -> None:
        self._rows, self._stopping, self._watching, self._loss = rows, stopping, watching, loss
        self.found = {name: list(given[name]) for name in ("train_score", "validation_score")}
        self._parts: dict[str, _Part] = {}
        self._watched: list[_Part] = []

    def begin(
        self, rooms: Sequence[BinnedRows], held: Sequence[BinnedRows], n: int, seed: int
    ) -> None:
        """Look at the rows: `n` are trained on, of all trainers."""
        stopping, watching = self._stopping, self._watching
        if stopping is not None:
            self._parts = {"train_score": _Part(self._rows, rooms, self._loss, None)}
            if stopping.by_held:
                validation = _Part(self._rows, held, self._loss, stopping.within)
                self._parts["validation_score"] = validation
            if stopping.scorer is not None:
                for name, part in self._parts.items():
                    part.gather(min(1.0, _ENOUGH / n) if name == "train_score" else 1.0, seed)
        if watching is not None:
            self._watched = [_Part(self._rows, held, self._loss, of) for of in watching.sets]
            if any(scorer is not None for scorer in watching.scorers):
                for part in self._watched:
                    part.gather(1.0, seed)

    def add(self) -> None:
        """Score the rows as they are predicted now, for early stopping."""
        assert self._stopping is not None
        for name, part in self._parts.items():
            self.found[name].append(part.score(self._stopping.scorer))

    def watched(self) -> list[float]:
        """Return the scores that the user watches, of the rows as they are predicted now."""
        if self._watching is None:
            return []
        return [part.score(one) for part in self._watched for one in self._watching.scorers]

    def end(self) -> bool:
        """Whether it is time to stop."""
        if self._stopping is None:
            return False
        name = "validation_score" if self._stopping.by_held else "train_score"
        return self._stopping.ends(self.found[name])
