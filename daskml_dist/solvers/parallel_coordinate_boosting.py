"""Parallel-update boosting of linear models: a safe step in all coordinates at once.

The objective at ``w + d`` is bounded by a sum of functions of one coordinate each: the absolute
entries of a row sum to at most R, so the exponential of ``x' d`` is at most the mean of those of
``R d`` weighted by ``|x| / R`` (Jensen's inequality; Collins et al.). Each coordinate takes the
minimum of its own function, so all may move at once and the objective still falls.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from daskml_dist.backends.base import Backend
from daskml_dist.backends.namespace import arithmetic_dtype, namespace, ones, scalar, total
from daskml_dist.errors import InvalidParameterError
from daskml_dist.losses.margin import LogLoss
from daskml_dist.models.base import BatchRows
from daskml_dist.solvers.base import (
    Array,
    PenalisedSolver,
    Solution,
    Statistic,
    Sums,
    initial_parameters,
)
from daskml_dist.solvers.lbfgs import pseudo_gradient
from daskml_dist.solvers.rows import map_entries, row_tiles, to_rows_dtype

#: Longest step, in units of 1 / (longest row). The bound has no minimum in the coordinate of a
#: feature that only one class has.
_LONGEST_STEP = 3.0
#: Most Newton iterations for a step; about five are usual.
_MAX_NEWTON_STEPS = 50


@dataclass(frozen=True)
class LongestRow(Statistic):
    """Largest l1-norm of a row."""

    additive = False
    in_parts: ClassVar[bool] = True

    def shape(self, model: Any) -> tuple[int, ...]:
        return (1,)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> None:
        X = rows.X
        ones_column = ones((X.shape[1], 1), arithmetic_dtype(X), like=out)
        xp = namespace(ones_column)
        for tile in row_tiles(X, backend):
            norms = backend.dot(map_entries(xp.abs, backend.borrow_rows(X, tile)), ones_column)
            self.merge(out, xp.max(norms, keepdims=True))

    def merge(self, total: Array, part: Array) -> None:
        total[...] = namespace(total).maximum(total, part)


@dataclass(frozen=True, eq=False)
class Correlations(Statistic):
    """Losses at `w`, and correlations of each feature with the rows' residuals.

    ``[loss, *(W- - W+), *(W- + W+)]``, where `W+` sums the products of entries and residuals that
    pull a coefficient up, and `W-` those that pull it down. Their difference is the gradient of the
    summed loss.
    """

    w: Array
    in_parts: ClassVar[bool] = True

    def shape(self, model: Any) -> tuple[int, ...]:
        return (1 + 2 * self.w.size,)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        xp, w = namespace(out), to_rows_dtype(self.w, rows.X, backend)
        parts = xp.reshape(out[1:], (2, *w.shape))
        loss_sum = 0.0
        for tile in row_tiles(rows.X, backend):
            part = rows.part(tile, backend)
            X, weight = part.X, part.weight
            losses, g = model.loss.value_and_gradient(
                model.targets(part.y, w.dtype), model.raw_prediction(w, X, backend)
            )
            if weight is not None:
                losses, g = losses * weight, g * (weight if g.ndim == 1 else weight[:, None])
            # W- - W+ is the gradient; W- + W+ is the sum of the products' absolute values.
            _add_correlations(model, X, g, parts[0, ...], backend)
            _add_correlations(model, map_entries(xp.abs, X), xp.abs(g), parts[1, ...], backend)
            loss_sum += scalar(total(losses, dtype=xp.float64))
        out[0] += loss_sum
        return loss_sum


def _add_correlations(model: Any, X: Any, g: Any, out: Any, backend: Backend) -> None:
    backend.add_tdot(X, g, out[: model.n_features, ...])
    if model.fit_intercept:
        out[-1, ...] += total(g, axis=0, dtype=namespace(g).float64)


@dataclass(frozen=True)
class Boosting(PenalisedSolver):
    """Parallel-update boosting of the log loss, for wide sparse rows.

    Every round is one pass. It sums, for each feature, the pulls toward a larger coefficient (`W+`)
    and toward a smaller one (`W-`), and moves all coefficients at once, each to the minimum of a
    bound of the objective in which coefficients are separate; without a penalty by
    ``log(W+ / W-) / (2 R)``, where `R` is the largest l1-norm of a row. So the objective falls in
    every round, without a line search or a learning rate, whatever the number of features. Steps
    are short if rows are long: scale features to 1 at most, and expect hundreds of rounds.

    It stops once no component of the gradient is larger than `tol`.

    References
    ----------
    M. Collins, R. E. Schapire and Y. Singer, "Logistic regression, AdaBoost and Bregman
    distances", Machine Learning 48, 2002: the bound, and the parallel update.
    J. Duchi and Y. Singer, "Boosting with structural sparsity", ICML 2009: with penalties.
    T. Chandra et al., "Sibyl: a system for large scale machine learning", LADIS 2010 (keynote).

    Examples
    --------
    >>> from daskml_dist.penalties import Penalty
    >>> from daskml_dist.solvers import Boosting
    >>> Boosting(Penalty(0.1, 1.0), max_iter=100, tol=1e-4).handles_l1
    True
    """

    name = "boosting"
    handles_l1 = True

    @property
    def max_passes(self) -> int:
        """Return one pass a round, one for the longest row, and one at the end."""
        return self.max_iter + 2

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Minimise the penalised mean loss.

        Raises
        ------
        InvalidParameterError
            For another loss than the log loss: the bound is specific to it.
        """
        if not isinstance(model.loss, LogLoss):
            raise InvalidParameterError(
                f'solver="boosting" minimises the log loss, not {model.loss!r}. Use "lbfgs".'
            )
        if (snapshot := sums.kept) is None:
            w, n_iter = initial_parameters(model, start), 0
            reach = _largest_change(model, float(sums(LongestRow())[0]))
        else:
            w, n_iter, reach = snapshot["w"], int(snapshot["n_iter"]), float(snapshot["reach"])
        l1, l2 = np.zeros((len(w), 1)), np.zeros((len(w), 1))
        l1[: model.n_penalised], l2[: model.n_penalised] = self.penalty.l1, self.penalty.l2
        while True:
            total = sums(Correlations(w))[1:].reshape(2, *w.shape) / sums.n_rows
            steepest = float(np.abs(pseudo_gradient(w, total[0] + l2 * w, l1)).max())
            if steepest <= self.tol:
                return Solution(w, n_iter)
            # Before `should_stop`, which the last pass sets as well.
            if n_iter == self.max_iter:
                message = f"a component of the gradient is still {steepest:.2g}"
                return Solution(w, n_iter, False, message)
            if sums.should_stop:
                return Solution(w, n_iter)
            # W+ and W-, from their sum and difference; never negative by rounding.
            more, less = np.maximum([total[1] - total[0], total[1] + total[0]], 0) / 2
            w = _minimize_bound(w, more, less, reach, l1, l2)
            n_iter += 1
            sums.keep(w, partial(_pack_boosting_state, w, n_iter, reach))


def _pack_boosting_state(w: Array, n_iter: int, reach: float) -> dict[str, Array]:
    """Return a snapshot of a round as arrays by name."""
    return {"w": w, "n_iter": np.array(float(n_iter)), "reach": np.array(reach)}


def _largest_change(model: Any, longest: float) -> float:
    """Return how far raw predictions can move with a step in all parameters at once."""
    longest += float(model.fit_intercept)
    # With several outputs, a loss depends on their differences.
    return (longest if model.width == 1 else 2 * longest) or 1.0


def _minimize_bound(
    w: Array, w_plus: Array, w_minus: Array, reach: float, l1: Array, l2: Array
) -> Array:
    """Return the parameters that minimise the bound, coordinate by coordinate.

    With `z` the step times `reach`, it is ``(more * exp(-z) + less * exp(z)) / reach`` plus the
    penalty at ``w + z / reach``. It is convex, so a shortened step still lowers it.
    """
    # The step that would make a coefficient exactly zero.
    to_zero = -reach * w
    sign = np.zeros_like(w)
    if l1.any():
        clipped = np.clip(to_zero, -500, 500)
        at_zero = w_minus * np.exp(clipped) - w_plus * np.exp(-clipped)
        # The side of zero on which the minimum lies, or 0 if the l1 part holds it at zero: known
        # from the derivative at zero, so that Newton's steps below need not cross the kink.
        sign = np.where(np.abs(at_zero) > l1, -np.sign(at_zero), 0.0)
    z = np.zeros_like(w)
    for _ in range(_MAX_NEWTON_STEPS):
        rising, falling = w_minus * np.exp(z), w_plus * np.exp(-z)
        # Newton's step on the bound of each coordinate, all at once.
        slope = rising - falling + l2 * (w + z / reach) + l1 * sign
        curvature = rising + falling + l2 / reach
        change = np.divide(slope, curvature, out=np.zeros_like(w), where=curvature > 0)
        last_z, z = z, np.clip(z - change, -_LONGEST_STEP, _LONGEST_STEP)
        if np.abs(z - last_z).max() < 1e-12:
            break
    zero = (sign == 0) & (l1 > 0)
    z = np.where(zero, np.clip(to_zero, -_LONGEST_STEP, _LONGEST_STEP), z)
    return np.where(zero & (z == to_zero), 0.0, w + z / reach)
