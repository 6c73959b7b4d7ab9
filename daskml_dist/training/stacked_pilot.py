"""Pilots of fits that differ in their l2 penalty alone, as columns of one matrix.

What each finds is what :class:`daskml_dist.training.pilot.Pilot` finds, up to where minimisation
ends; the rows of the sample are read once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.entries import of_arrays
from daskml_dist.backends.row_threads import over_threads
from daskml_dist.models.base import BatchRows
from daskml_dist.models.stacked import TRAIN, FoldAssignment
from daskml_dist.models.wide import WideLinear
from daskml_dist.optimizers import Optimizer
from daskml_dist.solvers.columns_lbfgs import minimised
from daskml_dist.training import rate_search
from daskml_dist.training.coordinates import FEW, Coordinates
from daskml_dist.training.pilot import BENT, Pilot, trial_starts

__all__ = ["StackedPilot"]

Array = NDArray[Any]

#: Rows whose raw predictions a cache holds, and those that one thread adds up.
_TILE, _TOGETHER = 1 << 10, 1 << 12
#: Entries of all columns' coordinates at most.
_MAPS = 1 << 22


class StackedPilot:
    """The maths of many pilots.

    Parameters
    ----------
    pilot : Pilot
        One of them, of which :meth:`serves`.
    l2 : sequence of float
        Penalty of each.
    """

    def __init__(self, pilot: Pilot, l2: Sequence[float]) -> None:
        self.pilot, self.l2 = pilot, np.array(l2, np.float64)
        self._dtype = pilot.X.dtype
        weight = np.ones(pilot.n_rows) if pilot.weight is None else pilot.weight
        self._y = np.column_stack([pilot.y, weight]).astype(self._dtype)
        self._weight = weight.astype(np.float64)
        self._models: dict[int, WideLinear] = {}

    @staticmethod
    def serves(pilot: Pilot, n_columns: int) -> bool:
        """Whether pilots like this one can be columns."""
        model, X = pilot.model, pilot.X
        if not isinstance(X, np.ndarray) or model.width > 1 or model.n_targets is not None:
            return False
        d = X.shape[1]
        few = d <= FEW and n_columns * d * d <= _MAPS
        return few and not pilot.penalty.l1 and not pilot.watches(model.shape[0])

    def starts(self, begin: Array, most: int, whole: bool) -> tuple[list[Array], list[Array]]:
        """Minima of half of the sample's rows, and of all of them.

        Parameters
        ----------
        begin : ndarray of shape (n_rows, 1)
            Where all begin.
        most : int
            Iterations of the quasi-Newton method at most.
        whole : bool
            The sample is all rows: the minimum of these is returned twice.
        """
        places, n = self._places, self.pilot.n_rows
        v = np.stack([p.inside(begin.astype(np.float64))[:, 0] for p in places])
        every, share = self._objective(slice(0, n)), self.pilot.tol
        if whole:
            v, _ = minimised(every, v, most, share=share)
            half = v
        else:
            half, tols = minimised(self._objective(slice(0, -(-n // 2))), v, most)
            v, _ = minimised(every, half, most, tols, share)

        def outside(found: Array) -> list[Array]:
            return [p.outside(v[:, None]) for p, v in zip(places, found, strict=True)]

        return outside(half), outside(v)

    def values(self, w: Array, at: Sequence[int] | None = None) -> Array:
        """Penalised mean losses of some columns at parameters of shape (n_rows, n_columns)."""
        l2, k = self.l2 if at is None else self.l2[list(at)], self.pilot.model.n_penalised
        losses, _ = self._sums(self.pilot.X, slice(0, self.pilot.n_rows), w)
        with np.errstate(all="ignore"):
            total = float(self._weight.sum()) or 1.0
            bent: Array = l2 / 2 * (w[:k].astype(np.float64) ** 2).sum(axis=0)
            return bent + losses / total

    def warmed(
        self, optimizer: Optimizer, w: Array, opt_state: dict[str, Array], batch: int
    ) -> dict[str, Array]:
        """States of an optimizer that has seen the sample's batches at `w`."""
        every = np.arange(len(self.l2))
        return self._passed(optimizer, w, opt_state, np.zeros(len(every)), batch, 0, every)[1]

    def rates(
        self, optimizer: Optimizer, w: Array, opt_state: dict[str, Array], base: Sequence[float],
        batch: int, search: Callable[[float], rate_search.Search] = rate_search.best,
    ) -> list[float]:  # fmt: skip
        """As :meth:`Pilot.best_rate` or, with another search, `calm_rate`, of each column."""
        own = np.array(base)

        def losses(at: list[int], asked: list[int]) -> list[float]:
            rates = own[at] * np.array([rate_search.factor(k) for k in asked])
            some = {name: array[:, at] for name, array in opt_state.items()}
            first = self.pilot.n_rows // 2
            moved, _ = self._passed(optimizer, w[:, at], some, rates, batch, first, np.array(at))
            found = self.values(moved, at)
            finite = np.isfinite(found) & np.isfinite(moved).all(axis=0)
            return [float(value) for value in np.where(finite, found, np.inf)]

        return rate_search.found([search(float(v)) for v in self.values(w)], losses)

    # -- sums over rows ------------------------------------------------------------------------

    def _model(self, n_columns: int) -> WideLinear:
        if n_columns not in self._models:
            one = WideLinear(self.pilot.model, _OneSplit(), None, (0,) * n_columns, (1.0,))
            self._models[n_columns] = one
        return self._models[n_columns]

    def _sums(self, X: Array, at: slice, w: Array) -> tuple[Array, Array]:
        """Summed losses of columns, and their gradients."""
        model, wide = self._model(w.shape[1]), _with_row(w.astype(self._dtype))
        # Sums of the same rows, whoever takes them, so that digits do not tell of the machine.
        starts = range(at.start, at.stop, _TOGETHER)
        parts = np.zeros((len(starts), *wide.shape))

        def add(some: slice) -> None:
            with np.errstate(all="ignore"):
                for part, first in zip(parts[some], starts[some], strict=True):
                    last = min(first + _TOGETHER, at.stop)
                    for start in range(first, last, _TILE):
                        tile = slice(start, min(start + _TILE, last))
                        rows = BatchRows(X[tile], self._y[tile], None)
                        model.add_gradient(wide, rows, part, self.pilot.backend)

        over_threads(add, len(starts), least=1)
        out = parts.sum(axis=0)
        return -out[-1], out[:-1]

    @cached_property
    def _places(self) -> list[Coordinates]:
        pilot = self.pilot
        leasts = (BENT * self.l2).tolist()
        return Coordinates.several(
            pilot.X, pilot.weight, centred=pilot.model.fit_intercept, turned=True, leasts=leasts
        )

    def _objective(self, at: slice) -> Callable[[Array, Array], tuple[Array, Array]]:
        """Penalised mean losses and gradients of columns, each in its own coordinates."""
        places = self._places
        # Rows as the least penalised column has them: the others' are shorter in all directions.
        least = places[int(np.argmin(self.l2))]
        Z, d = least.rows(self.pilot.X), self.pilot.model.n_penalised
        turns = np.stack([p.turn for p in places])  # type: ignore[misc]
        maps = least.back @ turns
        coefs = turns / least.scale[:, None]
        total = float(self._weight[at].sum()) or 1.0

        def value(v: Array, columns: Array) -> tuple[Array, Array]:
            own, l2 = v[:, :d, None], self.l2[columns]
            w = np.concatenate([(maps[columns] @ own)[:, :, 0], v[:, d:]], axis=1).T
            losses, gradient = self._sums(Z, at, np.ascontiguousarray(w))
            losses, gradient = losses / total, np.ascontiguousarray(gradient.T) / total
            coef = coefs[columns] @ own
            bent = np.swapaxes(maps[columns], 1, 2) @ gradient[:, :d, None]
            bent += l2[:, None, None] * (np.swapaxes(coefs[columns], 1, 2) @ coef)
            gradient[:, :d] = bent[:, :, 0]
            return losses + l2 / 2 * (coef[:, :, 0] ** 2).sum(axis=1), gradient

        return value

    def _passed(
        self, optimizer: Optimizer, w: Array, opt_state: dict[str, Array], rates: Array, batch: int,
        first: int, columns: Array,
    ) -> tuple[Array, dict[str, Array]]:  # fmt: skip
        """Parameters and optimizer state after the batches from a row on, or the first of these."""
        pilot, k = self.pilot, self.pilot.model.n_penalised
        w, opt_state = w.copy(), {name: array.copy() for name, array in opt_state.items()}
        l2, rate = (a.astype(w.dtype)[None, :] for a in (self.l2[columns], rates))
        state = w, *map(opt_state.__getitem__, optimizer.state_names)
        move = of_arrays(type(optimizer).elementwise_update, np)
        starts = trial_starts(first, pilot.n_rows, batch, len(w))
        model, wide = self._model(len(columns)), _with_row(w)
        with np.errstate(all="ignore"):
            for number, start in enumerate(starts, 1):
                at = slice(start, min(start + batch, pilot.n_rows))
                wide[:-1] = w
                out = np.zeros_like(wide)
                rows = BatchRows(pilot.X[at], self._y[at], None)
                model.add_gradient(wide, rows, out, pilot.backend)
                gradient = out[:-1] / w.dtype.type(at.stop - at.start)
                gradient[:k] += l2 * w[:k]
                move(state, ..., gradient, rate, optimizer.coefficients(number))
        return w, opt_state


class _OneSplit(FoldAssignment):
    """Roles of rows that are all trained on."""

    n_splits = 1

    def played(self, codes: NDArray[np.int64], split: int) -> NDArray[np.int8]:
        """Train."""
        return np.full(len(codes), TRAIN, np.int8)


def _with_row(w: Array) -> Array:
    """Parameters with a last row for losses."""
    return np.concatenate([w, np.zeros_like(w[:1])])
