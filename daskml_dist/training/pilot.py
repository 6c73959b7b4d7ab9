"""Pilot of a fit by steps: on a sample of the rows it finds where to start, and how fast to go.

A linear model's loss on some thousand rows is minimised in no time, by a quasi-Newton method in
coordinates in which the units and the correlations of features do not matter. From there the steps
need only go the way from the sample's minimum to that of all rows, which is short (Daneshmand,
Lucchi and Hofmann 2016). How long they are to be is tried out: some rates go that way from the
minimum of half of the sample to that of the sample (Bottou 2012 calibrates so).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import OptimizeResult, minimize

from daskml_dist.backends.numpy_backend import NumpyBackend
from daskml_dist.models.base import BatchRows
from daskml_dist.models.linear import LinearModel
from daskml_dist.optimizers import Optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.solvers.owlqn import orthant_wise
from daskml_dist.training import rate_search
from daskml_dist.training.coordinates import FEW, Coordinates

__all__ = ["BENT", "ENOUGH", "Pilot", "trial_starts"]

Array = NDArray[Any]

#: Steps that gain less than this share of the first loss; after so many the way ends.
_FTOL, _SMALL_STEPS = 1e-5, 1
#: Inverse of the curvature of a loss, roughly, where a fit ends: the weight of a penalty.
BENT = 40.0
#: Batches of a trial at most, fewer of more parameters than these.
_STEPS, _SMALL = 64, 1 << 17
#: Gradients of this share of the first are none.
_GTOL = 1e-4
#: Numbers whose reading costs nothing, and the share of these two down to which they are then read:
#: where columns are more than rows, the last digits of the loss are those of the norm.
_CHEAP, _FINE = 1 << 20, 0.1
#: The same for so few that the minimum is found to nearly all digits: weights are repeated rows.
_TINY, _FINEST = 1 << 14, 1e-6
#: Rows for each parameter from which its minimum is taken for that of other rows.
ENOUGH = 20
#: Steps without a smaller loss of the other half, after which there is no smaller one.
_PATIENCE = 5


class Pilot:
    """The maths of a pilot, of rows in memory.

    Parameters
    ----------
    model : LinearModel
    X : ndarray or CSR matrix of shape (n, n_features)
    y : ndarray of shape (n,)
        As the model encodes them.
    weight : ndarray of shape (n,) or None
    penalty : Penalty
    seed : int
    """

    def __init__(
        self, model: LinearModel, X: Any, y: Array, weight: Array | None, penalty: Penalty,
        seed: int,
    ) -> None:  # fmt: skip
        self.model = model
        self.penalty = penalty
        self.backend = _Uncompiled() if X.size > _TINY else NumpyBackend()
        if sparse.issparse(X) and X.shape[1] <= FEW:
            X = X.toarray()
        order = np.random.default_rng((seed, 1)).permutation(len(y))
        self.X, self.y = X[order], y[order]
        self.weight = None if weight is None else weight[order]
        self.n_rows = len(y)

    # -- the minimum ---------------------------------------------------------------------------

    def minimum(self, start: Array, most: int) -> tuple[Array, bool]:
        """Minimise the penalised mean loss of all rows.

        Returns
        -------
        w : ndarray of float64
        converged : bool
            Whether it took fewer than `most` iterations.
        """
        found = self._minimised(start, slice(0, self.n_rows), most, tol=self.tol)
        return found.w, found.n_iter < most

    @property
    def tol(self) -> float:
        """Factor on the tolerances of the minimum of all rows."""
        size = self.n_rows * self._places.n_coordinates * self.model.width
        if self._places.n_coordinates < self.X.shape[1]:
            return _FINEST
        return _FINEST if size <= _TINY else _FINE if size <= _CHEAP else 1.0

    def of_half(self, start: Array, most: int) -> tuple[Array, int]:
        """Point of the way to the minimum of one half at which the loss of the other is smallest.

        Where rows are many for the parameters, that is the minimum.

        Returns
        -------
        w : ndarray of float64
        n_iter : int
            Iterations made up to there; `most` at the minimum.
        """
        half = -(-self.n_rows // 2)
        watched = slice(half, self.n_rows) if self.watches(start.size) else None
        found = self._minimised(start, slice(0, half), most, watched)
        return found.w, most if watched is None else found.n_iter

    def watches(self, n_parameters: int) -> bool:
        """Whether the loss of the other half is watched on the way to the minimum of one."""
        # Rows enough are not overfitted, while a few wild ones can mislead who watches.
        return -(-self.n_rows // 2) < ENOUGH * n_parameters

    def _minimised(
        self, start: Array, at: slice, most: int, watched: slice | None = None, tol: float = 1.0
    ) -> _Way:
        places = self._places
        here = _Objective(self, places, at)
        there = None if watched is None else _Objective(self, places, watched)
        inside = places.inside(start.astype(np.float64))
        first = inside.ravel()
        value, slope = here(first)
        # Deviances leave out what no parameter changes, and are below 0 too.
        unit = _power(abs(value) or 1.0)
        # So long a step along the first gradient is worth about the loss itself.
        step = _power(unit / (float(np.linalg.norm(slope)) or unit))
        first /= step
        way = _Way(first, None if there is None else there(first * step)[0], tol * _FTOL)
        tol *= _GTOL * (float(np.abs(slope).max()) * step / unit or 1.0)
        l1 = self._l1(places, inside.shape) * (step / unit)

        def scaled(v: Array) -> tuple[float, Array]:
            value, gradient = here(v * step)
            return value / unit, gradient * (step / unit)

        def is_over(v: Array, value: float) -> bool:
            return way.to(v, value, None if there is None else there(v * step)[0])

        if l1.any():
            last = _Last(scaled, l1)
            orthant_wise(
                last, first, l1, max_iter=most, tol=tol,
                should_stop=lambda: is_over(last.v, last.value),
            )  # fmt: skip
        else:

            def on_step(intermediate_result: OptimizeResult) -> None:
                if is_over(intermediate_result.x, intermediate_result.fun):
                    raise StopIteration

            options = {"maxiter": most, "maxfun": 2 * most, "ftol": 0.0, "gtol": tol}
            minimize(scaled, first, method="L-BFGS-B", jac=True, callback=on_step, options=options)
        way.w = places.outside(way.w.reshape(inside.shape) * step)
        return way

    @cached_property
    def _places(self) -> Coordinates:
        return Coordinates.of(
            self.X,
            self.weight,
            centred=self.model.fit_intercept,
            turned=not self.penalty.l1,
            least=BENT * self.penalty.l2,
        )

    @cached_property
    def _inside(self) -> Any:
        return self.backend.to_device(self._places.rows(self.X))

    def _l1(self, places: Coordinates, shape: tuple[int, ...]) -> Array:
        strengths = np.zeros(shape)
        if self.penalty.l1:  # and places are those of the columns
            strengths[: self.model.n_penalised] = self.penalty.l1 / places.scale[:, None]
        return strengths.ravel()

    def value(self, w: Array) -> float:
        """Penalised mean loss of all rows of the sample."""
        rows = BatchRows(self._rows, self.y, self.weight)
        dtype = self.X.dtype
        with np.errstate(all="ignore"):
            loss = self.model.add_gradient(
                w.astype(dtype), rows, np.zeros(w.shape, dtype), self.backend
            )
        total = self.n_rows if self.weight is None else float(self.weight.sum()) or 1.0
        return float(loss) / total + self.penalty.value(w[: self.model.n_penalised])

    # -- the rate ------------------------------------------------------------------------------

    def warmed(
        self, optimizer: Optimizer, w: Array, opt_state: dict[str, Array], batch: int
    ) -> dict[str, Array]:
        """State of an optimizer that has seen the sample's batches at `w`."""
        own = {name: array.copy() for name, array in opt_state.items()}
        return self._passed(optimizer, w.copy(), own, 0.0, batch)[1]

    def best_rate(
        self, optimizer: Optimizer, w: Array, opt_state: dict[str, Array], base: float, batch: int
    ) -> float:
        """The factor on the `base` rate by which the other half's batches lead farthest down."""
        search = rate_search.best(self.value(w))
        return self._rate(search, optimizer, w, opt_state, base, batch)

    def calm_rate(
        self, optimizer: Optimizer, w: Array, opt_state: dict[str, Array], base: float, batch: int
    ) -> float:
        """A factor on the `base` rate, small enough that steps at a minimum stay there."""
        search = rate_search.calm(self.value(w))
        return self._rate(search, optimizer, w, opt_state, base, batch)

    def _rate(
        self, search: rate_search.Search, optimizer: Optimizer, w: Array,
        opt_state: dict[str, Array], base: float, batch: int,
    ) -> float:  # fmt: skip
        def losses(_: list[int], asked: list[int]) -> list[float]:
            rates = [base * rate_search.factor(k) for k in asked]
            return [self._value_after(optimizer, w, opt_state, rate, batch) for rate in rates]

        return rate_search.found([search], losses)[0]

    def _value_after(
        self, optimizer: Optimizer, w: Array, opt_state: dict[str, Array], rate: float, batch: int
    ) -> float:
        """The loss of all rows after batches of the other half; infinite where steps diverge."""
        own = {name: array.copy() for name, array in opt_state.items()}
        moved, _ = self._passed(optimizer, w.copy(), own, rate, batch, self.n_rows // 2)
        value = self.value(moved) if np.isfinite(moved).all() else np.inf
        return value if np.isfinite(value) else np.inf

    @property
    def _rows(self) -> Any:
        return self.backend.to_device(self.X)

    def _passed(
        self, optimizer: Optimizer, w: Array, opt_state: dict[str, Array], rate: float, batch: int,
        first: int = 0,
    ) -> tuple[Array, dict[str, Array]]:  # fmt: skip
        """Parameters and optimizer state after the batches from a row on, or the first of these."""
        X, k = self._rows, self.model.n_penalised
        l1: Any = 0.0
        if self.penalty.l1 and rate:
            l1 = np.zeros((len(w), 1), w.dtype)
            l1[:k] = self.penalty.l1
        starts = trial_starts(first, self.n_rows, batch, w.size)
        with np.errstate(all="ignore"):
            for number, start in enumerate(starts, 1):
                at = slice(start, min(start + batch, self.n_rows))
                weight = None if self.weight is None else self.weight[at]
                rows = BatchRows(self.backend.rows(X, at), self.y[at], weight)
                gradient = np.zeros_like(w)
                self.model.add_gradient(w, rows, gradient, self.backend)
                gradient /= at.stop - at.start
                if self.penalty.l2:
                    gradient[:k] += self.penalty.l2 * w[:k]
                optimizer.update(w, gradient, opt_state, rate, number, l1)
        return w, opt_state


def trial_starts(first: int, n_rows: int, batch: int, n_parameters: int) -> range:
    """First rows of the batches of a trial."""
    most = max(_STEPS * _SMALL // max(n_parameters, _SMALL), 4)
    return range(first, n_rows, batch)[:most]


class _Uncompiled(NumpyBackend):
    """NumPy alone for dense rows.

    A pilot is hardly faster with compiled loops, and a client that only waits for workers would
    load numba for it: a fourth of the time of its first fit.
    """

    def add_fused(
        self, kernel: str | None, w: Array, X: Any, y: Array, weight: Array | None, out: Array,
        parameters: tuple[float, ...] = (),
    ) -> float | None:  # fmt: skip
        """None of dense rows."""
        if isinstance(X, np.ndarray):
            return None
        return super().add_fused(kernel, w, X, y, weight, out, parameters)


class _Way:
    """The way of a minimisation: the best point on it, and the steps up to there.

    Parameters
    ----------
    w : ndarray
        Where it begins.
    watched : float or None
        The other half's loss there; None: the last point is the best.
    ftol : float
        Steps that gain less are small.
    """

    def __init__(self, w: Array, watched: float | None, ftol: float) -> None:
        self.w, self.n_iter, self.n_steps = w, 0, 0
        self._best, self._value, self._n_small, self._ftol = watched, np.inf, 0, ftol

    def to(self, w: Array, value: float, watched: float | None) -> bool:
        """Take a step to `w`; whether it is the last one."""
        self.n_steps += 1
        self._n_small = self._n_small + 1 if self._value - value < self._ftol else 0
        self._value = value
        if watched is None or self._best is None or watched < self._best:
            self.w, self._best, self.n_iter = w.copy(), watched, self.n_steps
        return self._n_small == _SMALL_STEPS or self.n_steps - self.n_iter > _PATIENCE


class _Last:
    """A function that remembers its last point, and the value there with its l1 part."""

    def __init__(self, function: Callable[[Array], tuple[float, Array]], l1: Array) -> None:
        self._function, self._strengths = function, l1
        self.v, self.value = l1, np.inf

    def __call__(self, v: Array) -> tuple[float, Array]:
        smooth, gradient = self._function(v)
        self.v, self.value = v, smooth + float(self._strengths @ np.abs(v))
        return smooth, gradient


class _Objective:
    """Penalised mean loss of some rows of a pilot, and its gradient, in other coordinates."""

    def __init__(self, pilot: Pilot, places: Coordinates, at: slice) -> None:
        self._pilot, self._places = pilot, places
        self._model = replace(pilot.model, n_features=places.n_coordinates)
        Z, y = pilot._inside[at], pilot.y[at]
        self._dtype = Z.dtype
        self._weight = None if pilot.weight is None else pilot.weight[at].astype(Z.dtype)
        self._total = len(y) if self._weight is None else float(self._weight.sum()) or 1.0
        self._rows = BatchRows(Z, y.astype(Z.dtype) if y.dtype.kind == "f" else y, self._weight)

    def __call__(self, flat: Array) -> tuple[float, Array]:
        model, l2 = self._model, self._pilot.penalty.l2
        v, k = flat.reshape(model.shape), model.n_penalised
        gradient = np.zeros(model.shape)
        # A step that a line search tries may be far too long.
        with np.errstate(all="ignore"):
            w = v.astype(self._dtype)
            loss = float(model.add_gradient(w, self._rows, gradient, self._pilot.backend))
        loss, gradient = loss / self._total, gradient / self._total
        if l2:
            coef = self._places.coef(v[:k])
            loss += l2 / 2 * float(np.vdot(coef, coef))
            gradient[:k] += l2 * self._places.transposed(coef)
        return loss, gradient.ravel()


def _power(number: float) -> float:
    """The nearest power of two, by which numbers are multiplied without rounding."""
    return float(2.0 ** round(math.log2(number))) if 0 < number < math.inf else 1.0
