"""Alternating least squares: factors of all users given those of all items, and the reverse.

:class:`ALSSolver` is a solver over keys: a trainer solves for the factors of its own keys,
fetches those of the other side that its ratings touch, and sums the loss over all trainers.

Given the factors Y of all items, those of a user solve a small ridge problem by its own ratings. Of
implicit ratings every pair counts, but the matrix of a user's normal equations is Y'Y, which all
users share, plus a term for each pair with a rating (Hu et al., section 4). So a step costs the
ratings, and one sum of Gram matrices over all trainers.

References
----------
Y. Zhou, D. Wilkinson, R. Schreiber and R. Pan, "Large-scale parallel collaborative filtering for
the Netflix prize", AAIM 2008 (explicit ratings). Y. Hu, Y. Koren and C. Volinsky, "Collaborative
filtering for implicit feedback datasets", ICDM 2008. G. Takacs, I. Pilaszy and D. Tikk,
"Applications of the conjugate gradient method for implicit feedback collaborative filtering",
RecSys 2011.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.als import MAX_RATINGS_AT_ONCE, LeastSquares, Ratings, Regressors, System
from daskml_dist.errors import DivergedError
from daskml_dist.models.rated_pairs import FactorModel
from daskml_dist.solvers.keyed import EntrySide, KeyedEntries, KeyedRows, KeyedSolution, KeyedSolver

#: Ratings by their users, and by their items.
SIDES = (EntrySide("user", "user", "item", 0), EntrySide("item", "item", "user", 1))
#: The other side of each side.
_OPPOSITE_SIDE = {"user": "item", "item": "user"}


@dataclass(frozen=True)
class ALSSolver(KeyedSolver):
    """Solver of users' and items' factors by alternating least squares.

    A sweep solves for the factors of the side with more ids, and then for those of the other one,
    which are all that the next sweep needs (by Cholesky), and the smaller snapshot.

    Parameters
    ----------
    model : FactorModel
    equations : LeastSquares
    max_iter : int
        Most sweeps.
    tol : float or None
        The sweeps end if the loss decreases by a smaller share; None: after `max_iter`.
    seed : int
    """

    model: FactorModel
    equations: LeastSquares
    max_iter: int
    tol: float | None
    seed: int

    @property
    def max_passes(self) -> int:
        return self.max_iter

    def solve(self, keyed: KeyedEntries) -> KeyedSolution:
        """Make sweeps over the ratings; ``extra["mean"]`` is the mean rating."""
        sweeps = _ALSSweeps(self, keyed)
        converged = False
        while sweeps.n_iter < self.max_iter and not converged:
            last_loss = sweeps.loss
            sweeps.make_sweep()
            converged = self.tol is not None and sweeps.loss >= (1 - self.tol) * last_loss
            if keyed.should_stop:
                break
        return KeyedSolution(
            np.empty(0),
            sweeps.n_iter,
            converged or self.tol is None,
            "the loss is still falling",
            {"mean": sweeps.mean},
            values=sweeps.factors,
        )


class _ALSSweeps:
    """Progress of a fit in one trainer: its own factors, the loss and the number of sweeps.

    Parameters
    ----------
    solver : ALSSolver
    keyed : KeyedEntries
    """

    def __init__(self, solver: ALSSolver, keyed: KeyedEntries) -> None:
        self._solver, self._model, self._keyed = solver, solver.model, keyed
        more_users = keyed.n_keys["user"] >= keyed.n_keys["item"]
        #: The side that is solved for first, and the other one.
        self._side_order = ("user", "item") if more_users else ("item", "user")
        self._n_ratings, self.mean, self._confidence = self._count_and_mean()
        self.n_iter, self.loss = keyed.n_done, np.inf
        self.factors = {side: self._initial_factors(side) for side in self._side_order}
        if keyed.solver_state is not None:
            self.loss = float(keyed.solver_state[0])
        self._gram = self._sum_gram(self._side_order[1])

    def _count_and_mean(self) -> tuple[float, float, float]:
        """Return the number of ratings, their mean, and the sum of the confidences of all pairs."""
        keyed = self._keyed
        counts = keyed.map(lambda rows: len(rows.indices), "user")
        totals = [users.strengths[0].sum() for users in keyed.ranges("user")]
        n, total = keyed.sum([*map(list, zip(counts, totals, strict=True))]).tolist()
        # The confidence of a pair is 1 + alpha * rating.
        pairs = float(keyed.n_keys["user"]) * float(keyed.n_keys["item"])
        return n, total / max(n, 1.0), self._solver.equations.alpha * total + pairs

    def _initial_factors(self, side: str) -> NDArray[Any]:
        """Return a side's initial factors: those of the snapshot, or random ones."""
        if self._keyed.kept is not None and side in self._keyed.kept:
            return np.array(self._keyed.kept[side], self._model.dtype)
        model, seed = self._model, self._solver.seed + (side == "item")
        # Drawn by the keys' indices among all keys, so that they are the same on any workers.
        parts = [
            model.start(slice(lane_range.first, lane_range.first + len(lane_range)), seed)
            for lane_range in self._keyed.ranges(side)
        ]
        return np.concatenate([np.empty((0, model.width), model.dtype), *parts])

    def make_sweep(self) -> None:
        """Solve for the factors of both sides once, and evaluate the loss."""
        first, last = self._side_order
        # Given the last side's factors (and their Gram matrix), solve for the first side's.
        self._solve_side(first, self._gram)
        first_gram = self._sum_gram(first)
        # The other way round. The loss is evaluated while the ratings are read.
        errors = np.zeros(len(self.factors[last]))
        self._solve_side(last, first_gram, errors)
        self._gram = self._sum_gram(last)
        self.loss = self._compute_loss(last, errors, first_gram)
        self.n_iter += 1
        # Conjugate gradients start from a side's last factors, so both sides are kept.
        kept_sides = self._side_order if self._solver.equations.steps is not None else (last,)
        values = {side: self.factors[side] for side in kept_sides}
        # The history divides the loss by the number of entries of both sides: multiply by it.
        self._keyed.keep(values, self.n_iter, [self.loss], self.loss * 2 * self._n_ratings)

    def _sum_gram(self, side: str) -> NDArray[np.float64]:
        """Return Y'Y of a side's factors Y, over all trainers; zeros for explicit ratings."""
        model, factors = self._model, self.factors[side]
        if not model.implicit:
            return np.zeros((model.width, model.width))
        return self._keyed.sum(
            self._keyed.map(lambda rows: model.gram(factors[rows.range.own_slice]), side)
        )

    def _iterate_ratings(
        self, side: str, gram: NDArray[np.float64], only_long_rows: bool = False
    ) -> Iterator[Any]:
        """Yield the regressors (the other side's factors) and a function that maps over ratings.

        A part of the rows at a time, if not all regressors fit in memory; `gram` is that of all of
        them. With `only_long_rows`, only the pieces of long rows.
        """
        equations, values = self._solver.equations, self.factors[_OPPOSITE_SIDE[side]]
        prepare = _merge_duplicates if self._model.implicit else _fill_missing_values
        # Cholesky needs the sum over a row's ratings, which can be cut into pieces; conjugate
        # gradients read a row's ratings in every step, so rows are whole.
        max_ratings = MAX_RATINGS_AT_ONCE if equations.steps is None else None
        for touched, map_rows in self._keyed.in_parts(
            side, values, prepare, max_ratings, only_long_rows
        ):
            yield self._model.regressors(touched, gram, self.mean), map_rows

    def _solve_side(
        self, side: str, gram: NDArray[np.float64], errors: NDArray[np.float64] | None = None
    ) -> None:
        """Solve for the factors of a side; write each row's part of the loss to `errors`."""
        equations, factors = self._solver.equations, self.factors[side]
        #: By lane, the normal equations of a long row of which some pieces were added.
        open_systems: dict[int, System] = {}

        def add_errors(fixed_side: Regressors, rows: KeyedRows) -> None:
            if errors is not None:
                own_factors, own_errors = (
                    factors[rows.range.own_slice],
                    errors[rows.range.own_slice],
                )
                equations.errors(_csr_ratings(rows), fixed_side, own_factors, own_errors)

        def solve(fixed_side: Regressors, rows: KeyedRows) -> None:
            own_factors = factors[rows.range.own_slice]
            # An overflow shows in the factors.
            with np.errstate(over="ignore", invalid="ignore"):
                if rows.of_row is None:
                    failed = equations.solve(_csr_ratings(rows), fixed_side, own_factors).tolist()
                else:
                    failed = self._take_piece(rows, fixed_side, own_factors, open_systems)
            if failed:
                raise self._singular_error(side, rows, failed[0])
            if not np.isfinite(own_factors).all():
                raise DivergedError(
                    f"The factors of some {side}s are not finite: ratings are too large for "
                    f"{own_factors.dtype}. Scale them, or raise reg_param={equations.reg}."
                )
            if rows.of_row is None:
                add_errors(fixed_side, rows)

        for regressors, map_rows in self._iterate_ratings(side, gram):
            map_rows(partial(solve, regressors))
        # The errors of a row in pieces need its factors, known after the last piece: read it again.
        if errors is not None:
            for regressors, map_rows in self._iterate_ratings(side, gram, only_long_rows=True):
                map_rows(partial(add_errors, regressors))

    def _take_piece(
        self,
        rows: KeyedRows,
        fixed_side: Regressors,
        own_factors: NDArray[Any],
        open_: dict[int, System],
    ) -> list[int]:
        """Add a piece of a long row to its normal equations; solve them after the last piece.

        Return the positions of rows that cannot be solved: none, or 0.
        """
        equations, lane, ratings = self._solver.equations, rows.range.lane, _csr_ratings(rows)
        assert rows.of_row is not None
        n_before, n = rows.of_row
        if not n_before:
            open_[lane] = equations.make_empty_equations(fixed_side)
        equations.add(open_[lane], ratings, fixed_side, own_factors.shape[1])
        if n_before + len(ratings.indices) < n:
            return []
        return [] if equations.solve_equations(open_.pop(lane), n, own_factors[0]) else [0]

    def _singular_error(self, side: str, rows: KeyedRows, row: int) -> DivergedError:
        n = int(np.diff(rows.indptr)[row]) if rows.of_row is None else rows.of_row[1]
        name = rows.range.ids[row : row + 1].tolist()[0]
        return DivergedError(
            f"The least squares of {side} {name!r} are singular: there are {n} rating(s), "
            f"{self._model.width} unknowns, and reg_param={self._solver.equations.reg}. Raise "
            "reg_param, or lower rank; scale ratings that are huge."
        )

    def _compute_loss(
        self, side: str, errors: NDArray[np.float64], other_gram: NDArray[np.float64]
    ) -> float:
        """Return the RMSE, or for implicit ratings the weighted mean square over all pairs."""
        parts = [[errors[lane_range.own_slice].sum()] for lane_range in self._keyed.ranges(side)]
        (total,) = self._keyed.sum(parts).tolist()
        # The squared predictions of all pairs sum to the product of the two Gram matrices; `errors`
        # has what pairs with a rating add to that.
        if self._model.implicit:
            return float(max(total + (other_gram * self._gram).sum(), 0.0) / self._confidence)
        return float(np.sqrt(total / max(self._n_ratings, 1.0)))


def _csr_ratings(rows: KeyedRows) -> Ratings:
    assert rows.values is not None
    return Ratings(rows.indptr, rows.indices, rows.values)


def _fill_missing_values(rows: KeyedRows) -> KeyedRows:
    """Return the ratings with values, which are 1 if none were given."""
    return rows if rows.values is not None else replace(rows, values=np.ones(len(rows.indices)))


def build_ratings(
    rows: NDArray[Any], other_keys: NDArray[Any], values: NDArray[Any], n_rows: int, implicit: bool
) -> Ratings:
    """Return ratings, given by their row, other key and value, in CSR form.

    Implicit ratings of the same pair are added up.
    """
    order = np.lexsort((other_keys, rows))
    indptr = np.append(0, np.bincount(rows, minlength=n_rows).cumsum()).astype(np.int64)
    ratings = Ratings(indptr, other_keys[order].astype(np.int32), values[order])
    return _sum_duplicate_pairs(ratings) if implicit else ratings


def _merge_duplicates(rows: KeyedRows) -> KeyedRows:
    """Return the ratings with the values of equal pairs added up; pairs are sorted."""
    rows = _fill_missing_values(rows)
    return replace(rows, **_sum_duplicate_pairs(_csr_ratings(rows))._asdict())


def _sum_duplicate_pairs(ratings: Ratings) -> Ratings:
    """Return sorted ratings with the values of equal pairs added up."""
    values, indices, starts = ratings.values, ratings.indices, ratings.indptr[:-1]
    # The first rating of each run of equal pairs; a row begins a run.
    is_first = np.ones(len(values), np.bool_)
    np.not_equal(indices[1:], indices[:-1], out=is_first[1:])
    is_first[starts[starts < len(values)]] = True
    if is_first.all():
        return ratings
    (first_indices,) = np.nonzero(is_first)
    sums = np.add.reduceat(values, first_indices, dtype=np.float64)
    indptr = np.searchsorted(first_indices, ratings.indptr).astype(np.int64)
    return Ratings(indptr, indices[first_indices], sums)
