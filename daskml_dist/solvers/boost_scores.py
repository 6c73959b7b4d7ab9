"""Scores of boosting as its iterations go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.solvers.binned_rows import BinnedRows
from daskml_dist.solvers.boost_losses import BoostLoss
from daskml_dist.solvers.exact_sums import exact_sums
from daskml_dist.solvers.own_rows import OwnRows
from daskml_dist.solvers.scored import ScoredRows
from daskml_dist.solvers.stopping import Stopping

__all__ = ["BoostScores"]

Array = NDArray[Any]
#: Rows trained on that a scorer sees, roughly; a loss sees all.
_ENOUGH = 10_000


class BoostScores:
    """Scores of the rows trained on, and of those held out.

    Parameters
    ----------
    rows : OwnRows
    stopping : Stopping or None
        None: nothing is scored.
    loss : BoostLoss
    given : mapping of str to sequence of float
        Those that were found before.
    """

    def __init__(
        self,
        rows: OwnRows,
        stopping: Stopping | None,
        loss: BoostLoss,
        given: Mapping[str, Sequence[float]],
    ) -> None:
        self._rows, self._stopping, self._loss = rows, stopping, loss
        self.found = {name: list(given[name]) for name in ("train_score", "validation_score")}
        self._rooms: dict[str, Sequence[BinnedRows]] = {}
        self._scored: dict[str, ScoredRows] = {}

    def begin(
        self, rooms: Sequence[BinnedRows], held: Sequence[BinnedRows], n: int, seed: int
    ) -> None:
        """Look at the rows: `n` are trained on, of all trainers."""
        if self._stopping is None:
            return
        self._rooms = {"train_score": rooms}
        if self._stopping.aside is not None:
            self._rooms["validation_score"] = held
        if self._stopping.scorer is not None:
            for name, some in self._rooms.items():
                share = min(1.0, _ENOUGH / n) if name == "train_score" else 1.0
                weighted = np.array([float(any(room.weight is not None for room in some))])
                self._scored[name] = ScoredRows(
                    self._rows, some, share, seed, bool(self._rows.largest(weighted)[0])
                )

    def add(self) -> None:
        """Score the rows as they are predicted now."""
        for name, rooms in self._rooms.items():
            self.found[name].append(self._score(name, rooms))

    def end(self) -> bool:
        """Whether it is time to stop."""
        if self._stopping is None:
            return False
        name = "train_score" if self._stopping.aside is None else "validation_score"
        return self._stopping.ends(self.found[name])

    def _score(self, name: str, rooms: Sequence[BinnedRows]) -> float:
        if name in self._scored:
            assert self._stopping is not None
            assert self._stopping.scorer is not None
            return self._scored[name].score(self._stopping.scorer)
        loss, weight = exact_sums(self._rows, rooms, self._losses_of, 2)
        return float(-loss / weight) if weight else 0.0

    def _losses_of(self, room: BinnedRows, at: slice) -> list[Array]:
        y = room.y[at]
        weight = np.ones(len(y)) if room.weight is None else room.weight[at]
        return [self._loss.losses(y, room.extra["raw"][:, at]) * weight, weight]
