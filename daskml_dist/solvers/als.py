"""Alternating least squares: the factors of all users, given those of all items, and so on.

References
----------
Y. Zhou, D. Wilkinson, R. Schreiber and R. Pan, "Large-scale parallel collaborative filtering for
the Netflix prize", AAIM 2008 (explicit ratings). Y. Hu, Y. Koren and C. Volinsky, "Collaborative
filtering for implicit feedback datasets", ICDM 2008. G. Takacs, I. Pilaszy and D. Tikk,
"Applications of the conjugate gradient method for implicit feedback collaborative filtering",
RecSys 2011.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.als import LeastSquares, Ratings, Regressors
from daskml_dist.errors import DivergedError
from daskml_dist.models.factors import Factors
from daskml_dist.solvers.keyed import Keyed, KeyedRows, KeyedSolution, KeyedSolver, KeyRange, Side

__all__ = ["SIDES", "ALSSolver"]

#: Ratings by their users, and by their items.
SIDES = (Side("user", "user", "item", 0), Side("item", "item", "user", 1))
_OTHER = {"user": "item", "item": "user"}


@dataclass(frozen=True)
class ALSSolver(KeyedSolver):
    """Alternating least squares of users' and items' factors.

    A sweep solves for the factors of the side with more ids, and then for those of the other one;
    the latter are all that the next sweep needs (by Cholesky), and what is kept for a loss.

    Parameters
    ----------
    model : Factors
    equations : LeastSquares
    max_iter : int
        Sweeps.
    tol : float or None
        Relative decrease of the loss at which they end; None: after `max_iter`.
    seed : int
    """

    model: Factors
    equations: LeastSquares
    max_iter: int
    tol: float | None
    seed: int

    @property
    def max_passes(self) -> int:
        return self.max_iter

    def solve(self, keyed: Keyed) -> KeyedSolution:
        """Make sweeps over the ratings; ``extra["mean"]`` is the mean of these."""
        sweeps = _Sweeps(self, keyed)
        converged = False
        while sweeps.n_iter < self.max_iter and not converged:
            before = sweeps.loss
            sweeps.make_one()
            converged = self.tol is not None and sweeps.loss >= (1 - self.tol) * before
            if keyed.should_stop:
                break
        return KeyedSolution(
            np.empty(0),
            sweeps.n_iter,
            converged or self.tol is None,
            "the loss still falls",
            {"mean": sweeps.mean},
            values=sweeps.factors,
        )


class _Sweeps:
    """Progress of a fit in one trainer.

    Parameters
    ----------
    solver : ALSSolver
    keyed : Keyed
    """

    def __init__(self, solver: ALSSolver, keyed: Keyed) -> None:
        self._solver, self._model, self._keyed = solver, solver.model, keyed
        more_users = keyed.n_keys["user"] >= keyed.n_keys["item"]
        #: The side that is solved for first, and the other one.
        self._sides = ("user", "item") if more_users else ("item", "user")
        self._n_ratings, self.mean, self._confidence = self._moments()
        #: By side and lane: ratings that were made ready once.
        self._ready: dict[tuple[str, int], Ratings] = {}
        self.n_iter, self.loss = keyed.n_done, np.inf
        self.factors = {side: self._first(side) for side in self._sides}
        if keyed.small is not None:
            self.loss = float(keyed.small[0])
        self._gram = self._gram_of(self._sides[1])

    def _moments(self) -> tuple[float, float, float]:
        """Number of ratings, their mean, and the confidences of all pairs, summed."""
        keyed = self._keyed
        parts = keyed.map(_count, "user")
        for part, own in zip(parts, keyed.ranges("user"), strict=True):
            part[1] = own.strengths[0].sum()
        n, total = keyed.sum(parts).tolist()
        pairs = float(keyed.n_keys["user"]) * float(keyed.n_keys["item"])
        return n, total / max(n, 1.0), self._solver.equations.alpha * total + pairs

    def _first(self, side: str) -> NDArray[Any]:
        """Factors to begin with, those that were kept or new ones."""
        if self._keyed.kept is not None and side in self._keyed.kept:
            return np.array(self._keyed.kept[side], self._model.dtype)
        model, seed = self._model, self._solver.seed
        ranges = self._keyed.ranges(side)
        parts = [model.start(_numbers(own), seed + (side == "item")) for own in ranges]
        return np.concatenate([np.empty((0, model.width), model.dtype), *parts])

    def make_one(self) -> None:
        """One sweep: the factors of both sides, and the loss."""
        first, last = self._sides
        self._solve(first, self._regressors(first, self._gram))
        others = self._gram_of(first)
        by = self._regressors(last, others)
        self._solve(last, by)
        self._gram = self._gram_of(last)
        self.loss = self._loss(last, by, others)
        self.n_iter += 1
        # Conjugate gradients go on from the factors of both sides.
        kept = self._sides if self._solver.equations.steps is not None else (last,)
        values = {side: self.factors[side] for side in kept}
        # A record's loss is divided by the entries of both sides.
        self._keyed.keep(values, self.n_iter, [self.loss], self.loss * 2 * self._n_ratings)

    def _gram_of(self, side: str) -> NDArray[np.float64]:
        """Sum of the squares of a side's factors; zeros where none is asked for."""
        model, factors = self._model, self.factors[side]
        if not model.implicit:
            return np.zeros((model.width, model.width))
        return self._keyed.sum(self._keyed.map(lambda rows: model.gram(_own(factors, rows)), side))

    def _regressors(self, side: str, gram: NDArray[np.float64]) -> Regressors:
        """Factors by which a side's ratings are explained; `gram` is of the other side's."""
        touched = self._keyed.touched(side, self.factors[_OTHER[side]])
        return self._model.regressors(touched, gram, self.mean)

    def _solve(self, side: str, by: Regressors) -> None:
        """Solve for the factors of a side."""
        equations, factors = self._solver.equations, self.factors[side]

        def solve(rows: KeyedRows) -> None:
            own = _own(factors, rows)
            with np.errstate(over="ignore", invalid="ignore"):  # looked for below
                failed = equations.solve(self._ratings(side, rows), by, own)
            if len(failed):
                raise self._singular(side, rows, int(failed[0]))
            if not np.isfinite(own).all():
                raise DivergedError(
                    f"The factors of some {side}s are not finite: ratings are too large for "
                    f"{own.dtype}. Scale them, or raise reg_param={equations.reg}."
                )

        self._keyed.map(solve, side)

    def _ratings(self, side: str, rows: KeyedRows) -> Ratings:
        """Ratings of a lane; implicit ones of the same pair are summed."""
        key = side, rows.range.lane
        if key not in self._ready:
            values = np.ones(len(rows.indices)) if rows.values is None else rows.values
            plain = Ratings(rows.indptr, rows.indices, values)
            self._ready[key] = _summed(rows, values) if self._model.implicit else plain
        return self._ready[key]

    def _singular(self, side: str, rows: KeyedRows, row: int) -> DivergedError:
        n, name = int(np.diff(rows.indptr)[row]), rows.range.ids[row : row + 1].tolist()[0]
        return DivergedError(
            f"The least squares of {side} {name!r} are singular: there are {n} rating(s), "
            f"{self._model.width} unknowns, and reg_param={self._solver.equations.reg}. Raise "
            "reg_param, or lower rank; scale ratings that are huge."
        )

    def _loss(self, side: str, by: Regressors, others: NDArray[np.float64]) -> float:
        """Root mean squared error; of implicit ratings the mean weighted square over all pairs."""
        equations, factors = self._solver.equations, self.factors[side]
        parts = self._keyed.map(
            lambda rows: [equations.errors(self._ratings(side, rows), by, _own(factors, rows))],
            side,
        )
        (total,) = self._keyed.sum(parts).tolist()
        if self._model.implicit:
            return float(max(total + (others * self._gram).sum(), 0.0) / self._confidence)
        return float(np.sqrt(total / max(self._n_ratings, 1.0)))


def _count(rows: KeyedRows) -> list[float]:
    return [float(len(rows.indices)), 0.0]


def _numbers(own: KeyRange) -> slice:
    """Numbers of some keys among all."""
    return slice(own.first, own.first + len(own))


def _own(factors: NDArray[Any], rows: KeyedRows) -> NDArray[Any]:
    """The factors of a lane's own rows."""
    return factors[rows.range.own]


def _summed(rows: KeyedRows, values: NDArray[np.float64]) -> Ratings:
    """Ratings of which those of the same pair are added up; pairs are in order."""
    of_row = np.repeat(np.arange(len(rows.indptr) - 1), np.diff(rows.indptr))
    is_first = np.ones(len(values), np.bool_)
    is_first[1:] = (of_row[1:] != of_row[:-1]) | (rows.indices[1:] != rows.indices[:-1])
    if is_first.all():
        return Ratings(rows.indptr, rows.indices, values)
    (at,) = np.nonzero(is_first)
    counts = np.bincount(of_row[at], minlength=len(rows.indptr) - 1)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Ratings(indptr, rows.indices[at], np.add.reduceat(values, at))
