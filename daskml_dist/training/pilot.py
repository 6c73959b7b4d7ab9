"""Pilot of a fit by steps: finds on a sample where to start, and how large steps should be.

The loss on some thousand rows is minimised by a quasi-Newton method, in coordinates free of the
features' units and correlations (`Coordinates`). Steps of the fit then only cover the short way
from the sample's minimum to that of all rows (Daneshmand, Lucchi and Hofmann 2016). Their rate is
tried out between the minimum of half of the sample and that of the whole (Bottou 2012 calibrates
so). `StackedPilot` runs pilots that differ in their l2 penalty as columns of one matrix; searches
for a rate are generators, so that many run side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import OptimizeResult, minimize

from daskml_dist.backends.entries import lift_to_arrays
from daskml_dist.backends.numpy_backend import NumpyBackend
from daskml_dist.backends.row_slices import run_over_threads
from daskml_dist.models.base import BatchRows
from daskml_dist.models.batched import TRAIN, BatchedStepLinear, FoldAssignment
from daskml_dist.models.linear import LinearModel
from daskml_dist.optimizers import Optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.solvers.lbfgs import minimize_orthant_wise, minimize_side_by_side

__all__ = [
    "BENT",
    "ENOUGH",
    "FEW",
    "Coordinates",
    "Pilot",
    "StackedPilot",
    "list_trial_starts",
    "rate_factor",
    "run_rate_searches",
    "search_best_rate",
    "search_calm_rate",
]

Array = NDArray[Any]
#: Most columns, or rows, whose correlations are removed: an eigendecomposition takes the cube of
#: their number.
FEW = 256
#: Share of the largest variance that every direction counts at least, so that none is divided by
#: zero.
_FLAT = 1e-10
#: Ratio of spreads from which units differ; share of a column's magnitude below which its spread is
#: rounding.
_FAR, _CONSTANT = 10.0, 1e-6
#: Share of the largest variance below which few rows do not span a direction.
_NOTHING = 1e-14
#: Entries that are worked on at once: 512 KiB in float64, a share of the L2 cache.
CACHED_ENTRIES = 1 << 16


@dataclass(frozen=True, eq=False)
class Coordinates:
    """An affine map of rows, ``(x - mean) / scale @ turn``, and of a linear model's parameters.

    Parameters
    ----------
    mean, scale : ndarray of shape (n_features,)
    turn, back : ndarray of shape (n_features, n_coordinates) and its transpose's, or None
        A matrix and its inverse from the left; None: the identity.
    """

    mean: Array | None
    scale: Array
    turn: Array | None = None
    back: Array | None = None

    @classmethod
    def of(
        cls, X: Any, weight: Array | None, *, centred: bool, turned: bool, least: float
    ) -> Coordinates:
        """Compute the coordinates of some rows; of sparse rows only the scale is changed.

        Notes
        -----
        Of few rows of many columns in like units there are fewer coordinates than columns, and the
        parameters found are sums of rows, as the minimum is that a penalty makes the only one.
        In units far apart that minimum knows the largest columns alone, and predicts badly.
        """
        (one,) = cls.for_least_variances(X, weight, centred=centred, turned=turned, leasts=(least,))
        return one

    @classmethod
    def for_least_variances(
        cls, X: Any, weight: Array | None, *, centred: bool, turned: bool, leasts: Sequence[float]
    ) -> list[Coordinates]:
        """Compute coordinates for each of several least variances, reading the rows once."""
        n, d = X.shape
        total = n if weight is None else weight.sum() or 1.0
        # Centring would make sparse rows dense, so only the scales are changed.
        if sparse.issparse(X):
            each = X.data.astype(np.float64) ** 2
            if weight is not None:
                each *= np.repeat(weight, np.diff(X.indptr))
            squares = np.bincount(X.indices, each, d) / total
            return [cls(None, _safe_scale(squares + least)) for least in leasts]
        # Fewer rows than columns: the minimum lies in the span of the rows.
        if turned and n <= FEW < d and min(leasts) > 0 and _have_like_units(X):
            return [_span_coordinates(X, weight, centred, least) for least in leasts]
        turned = turned and d <= FEW
        # Two passes: means first, then centred squares, which loses no digits to large means.
        mean, squares = np.zeros(d), np.zeros((d, d) if turned else d)
        if centred:
            for rows, own in _iterate_tiles(X, weight):
                mean += rows.sum(axis=0) if own is None else own @ rows
            mean /= total
        for rows, own in _iterate_tiles(X, weight):
            rows -= mean
            left = rows if own is None else rows * own[:, None]
            squares += left.T @ rows if turned else np.einsum("ij,ij->j", left, rows)
        squares /= total
        variance = squares.diagonal() if turned else squares
        # What is left of a constant column is rounding.
        variance = np.where(variance <= (1e-12 * mean) ** 2, 0.0, variance)
        taken = mean if centred else None
        if not turned:
            return [cls(taken, _safe_scale(variance + least)) for least in leasts]
        scale = _safe_scale(variance)
        squares /= np.outer(scale, scale)
        found = []
        for least in leasts:
            # The penalty's curvature is added to that of the loss: directions without variance need
            # no division by nearly 0.
            bent = squares.copy()
            bent.flat[:: d + 1] += least / scale**2 + _FLAT
            # Whitening: rotate to the eigenvectors and divide by the standard deviations.
            values, vectors = np.linalg.eigh(bent)
            sizes = np.sqrt(np.maximum(values, _FLAT * max(values[-1], 1e-300)))
            found.append(cls(taken, scale, vectors / sizes, (vectors * sizes).T))
        return found

    @property
    def n_coordinates(self) -> int:
        """Return the number of coordinates of a row."""
        return len(self.scale) if self.turn is None else self.turn.shape[1]

    def rows(self, X: Any) -> Any:
        """Return rows in these coordinates, in a new array of their dtype."""
        if sparse.issparse(X):
            return (X @ sparse.diags_array((1 / self.scale).astype(X.dtype))).tocsr()
        moved, at = np.empty((len(X), self.n_coordinates), X.dtype), 0
        turn = None if self.turn is None else self.turn / self.scale[:, None]
        # Once they are of one size, rows may be narrow; until then they are wide.
        for rows, _ in _iterate_tiles(X):
            if self.mean is not None:
                rows -= self.mean
            moved[at : at + len(rows)] = rows / self.scale if turn is None else rows @ turn
            at += len(rows)
        return moved

    def coef(self, v: Array) -> Array:
        """Map coefficients in these coordinates to coefficients of the original columns."""
        return (v if self.turn is None else self.turn @ v) / self.scale[:, None]

    def apply_transpose(self, gradient: Array) -> Array:
        """Apply the transpose of :meth:`coef` to a gradient."""
        gradient = gradient / self.scale[:, None]
        return gradient if self.turn is None else self.turn.T @ gradient

    def from_coordinates(self, v: Array) -> Array:
        """Map parameters, with intercepts last, to those of the original rows."""
        d, k = len(self.scale), self.n_coordinates
        w = np.vstack([self.coef(v[:k]), v[k:]])
        if self.mean is not None:
            w[d:] -= self.mean @ w[:d]
        return w

    def to_coordinates(self, w: Array) -> Array:
        """Map parameters of the original rows to these coordinates."""
        d = len(self.scale)
        coef = w[:d] * self.scale[:, None]
        v = np.vstack([coef if self.back is None else self.back @ coef, w[d:]])
        if self.mean is not None:
            v[len(v) - len(w) + d :] += self.mean @ w[:d]
        return v


def _have_like_units(X: Array) -> bool:
    """Return whether the columns that vary have spreads within a factor `_FAR`."""
    spread = X.std(axis=0, dtype=np.float64)
    spread = spread[spread > _CONSTANT * np.abs(X).max(axis=0)]
    return bool(len(spread)) and bool(spread.max() <= _FAR * spread.min())


def _span_coordinates(X: Array, weight: Array | None, centred: bool, least: float) -> Coordinates:
    """Return coordinates of the directions that few rows span, in the units of a penalty."""
    weight = np.ones(len(X)) if weight is None else weight.astype(np.float64)
    share = weight / (weight.sum() or 1.0)
    mean = share @ X if centred else None
    rows = X.astype(np.float64) if mean is None else X - mean
    rows *= np.sqrt(share)[:, None]
    # Products of rows are few. Where they round, coordinates are a little worse, and still ones.
    # Eigenvectors of the small n x n Gram matrix give the spanned directions in column space.
    spans = rows.T @ np.linalg.eigh(rows @ rows.T)[1]
    squares = np.einsum("ij,ij->j", spans, spans)
    spans, squares = (a[..., squares > _NOTHING * squares.max()] for a in (spans, squares))
    sizes = np.sqrt(squares + least)
    spans /= np.sqrt(squares)
    return Coordinates(mean, np.ones(X.shape[1]), spans / sizes, (spans * sizes).T)


def _iterate_tiles(X: Any, weight: Array | None = None) -> Iterator[tuple[Array, Array | None]]:
    """Yield float64 copies of rows, few enough at a time to stay in a cache."""
    size = max(CACHED_ENTRIES // max(X.shape[1], 1), 1)
    for at in range(0, len(X), size):
        own = None if weight is None else weight[at : at + size].astype(np.float64)
        yield X[at : at + size].astype(np.float64), own


def _safe_scale(squares: Array) -> Array:
    """Return square roots, with 1 in place of 0."""
    scale: Array = np.sqrt(squares)
    return np.where(scale > 0, scale, 1.0)


#: Steps that gain less than this share of the first loss are small; the minimisation ends after
#: this many of them.
_FTOL, _SMALL_STEPS = 1e-5, 1
#: Assumed inverse curvature of a loss where a fit ends, which weighs a penalty against it: 4 for
#: the logistic loss at its centre, ten times that at confident predictions.
BENT = 40.0
#: Most batches of a trial; fewer for more parameters than `_SMALL`.
_STEPS, _SMALL = 64, 1 << 17
#: Gradients below this share of the first count as zero.
_GTOL = 1e-4
#: Entries up to which a finer minimum costs nothing, and the factor on both tolerances for it:
#: where columns outnumber rows, the last digits of the loss are those of the norm.
_CHEAP_ENTRIES, _FINE = 1 << 20, 0.1
#: Entries so few that the minimum is found to nearly all digits: a weight of 2 then equals a
#: repeated row.
_TINY_ENTRIES, _FINEST = 1 << 14, 1e-6
#: Rows a parameter from which the sample's minimum is taken for that of other rows.
ENOUGH = 20
#: Steps without a smaller loss of the other half after which the descent ends.
_PATIENCE = 5
#: Half powers of ten: asked for, answered with losses, and the last of them returned.
RateSearch = Generator[int, float, int]
#: In half powers of ten: the first factor tried, the largest, the least that is ever tried, and the
#: largest that may be called calm.
_FIRST, _MOST, _LEAST, _CALM = -1, 8, -40, -6
#: Least share of the loss that steps must gain, else the calm rate is taken; share of the best gain
#: for which a smaller rate is preferred.
_GAIN, _MOST_OF_IT = 1e-3, 0.9
#: Share of the loss by which calm steps may raise it.
_STIR = 1e-4
#: Rows whose raw predictions stay in a cache, and rows that one thread adds up.
_TILE_ROWS, _THREAD_ROWS = 1 << 10, 1 << 12
#: Most entries of all columns' coordinate maps (32 MiB).
_MOST_MAP_ENTRIES = 1 << 22


class Pilot:
    """Start and rate search on rows in memory.

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
        self.backend = _UncompiledBackend() if X.size > _TINY_ENTRIES else NumpyBackend()
        if sparse.issparse(X) and X.shape[1] <= FEW:
            X = X.toarray()
        # Shuffled once: the first half is minimised, the second half is watched and stepped over.
        order = np.random.default_rng((seed, 1)).permutation(len(y))
        self.X, self.y = X[order], y[order]
        self.weight = None if weight is None else weight[order]
        self.n_rows = len(y)

    # -- the minimum ---------------------------------------------------------------------------

    def minimise_all_rows(self, start: Array, most: int) -> tuple[Array, bool]:
        """Minimise the penalised mean loss of all rows."""
        found = self._minimise(start, slice(0, self.n_rows), most, tol=self.tol)
        return found.w, found.n_iter < most

    @property
    def tol(self) -> float:
        """Return the factor on the tolerances when all rows are minimised."""
        size = self.n_rows * self._coordinates.n_coordinates * self.model.width
        if self._coordinates.n_coordinates < self.X.shape[1]:
            return _FINEST
        return _FINEST if size <= _TINY_ENTRIES else _FINE if size <= _CHEAP_ENTRIES else 1.0

    def minimum_of_half(self, start: Array, most: int) -> tuple[Array, int]:
        """Minimise on one half of the rows; return the point with the other half's least loss.

        Where rows are many for the parameters, that is the minimum.
        """
        half = -(-self.n_rows // 2)
        watched = slice(half, self.n_rows) if self.watches_other_half(start.size) else None
        found = self._minimise(start, slice(0, half), most, watched)
        return found.w, most if watched is None else found.n_iter

    def watches_other_half(self, n_parameters: int) -> bool:
        """Return whether the other half's loss is watched while one half is minimised."""
        # Rows enough are not overfitted, while a few wild ones can mislead who watches.
        return -(-self.n_rows // 2) < ENOUGH * n_parameters

    def _minimise(
        self, start: Array, at: slice, most: int, watched: slice | None = None, tol: float = 1.0
    ) -> _DescentPath:
        """Minimise the mean loss of some rows, scaled by powers of two to values near 1."""
        places = self._coordinates
        # The loss that is minimised, and, where it is watched, that of the other half.
        here = _SampleObjective(self, places, at)
        there = None if watched is None else _SampleObjective(self, places, watched)
        inside = places.to_coordinates(start.astype(np.float64))
        first = inside.ravel()
        # Scale loss and steps to about 1 by powers of two, which do not round: tolerances are then
        # shares.
        value, slope = here(first)
        # Deviances leave out what no parameter changes, and are below 0 too.
        unit = _nearest_power_of_two(abs(value) or 1.0)
        # So long a step along the first gradient is worth about the loss itself.
        step = _nearest_power_of_two(unit / (float(np.linalg.norm(slope)) or unit))
        first /= step
        # The path remembers its best point, which need not be its last.
        way = _DescentPath(first, None if there is None else there(first * step)[0], tol * _FTOL)
        tol *= _GTOL * (float(np.abs(slope).max()) * step / unit or 1.0)
        l1 = self._scaled_l1_strengths(places, inside.shape) * (step / unit)

        def scaled(v: Array) -> tuple[float, Array]:
            value, gradient = here(v * step)
            return value / unit, gradient * (step / unit)

        def is_over(v: Array, value: float) -> bool:
            return way.record_step(v, value, None if there is None else there(v * step)[0])

        # OWL-QN (Andrew and Gao 2007) for an l1 penalty, L-BFGS-B otherwise.
        if l1.any():
            last = _LastEvaluation(scaled, l1)
            minimize_orthant_wise(
                last, first, l1, max_iter=most, tol=tol,
                should_stop=lambda: is_over(last.v, last.value),
            )  # fmt: skip
        else:

            def on_step(intermediate_result: OptimizeResult) -> None:
                if is_over(intermediate_result.x, intermediate_result.fun):
                    raise StopIteration

            options = {"maxiter": most, "maxfun": 2 * most, "ftol": 0.0, "gtol": tol}
            minimize(scaled, first, method="L-BFGS-B", jac=True, callback=on_step, options=options)
        way.w = places.from_coordinates(way.w.reshape(inside.shape) * step)
        return way

    @cached_property
    def _coordinates(self) -> Coordinates:
        """Return the coordinates of the sample's columns."""
        return Coordinates.of(
            self.X,
            self.weight,
            centred=self.model.fit_intercept,
            turned=not self.penalty.l1,
            least=BENT * self.penalty.l2,
        )

    @cached_property
    def _transformed_rows(self) -> Any:
        """Return the sample's rows in these coordinates."""
        return self.backend.to_device(self._coordinates.rows(self.X))

    def _scaled_l1_strengths(self, places: Coordinates, shape: tuple[int, ...]) -> Array:
        """Return the l1 penalty of each coordinate."""
        strengths = np.zeros(shape)
        if self.penalty.l1:  # and places are those of the columns
            strengths[: self.model.n_penalised] = self.penalty.l1 / places.scale[:, None]
        return strengths.ravel()

    def value(self, w: Array) -> float:
        """Return the penalised mean loss of all rows of the sample."""
        rows = BatchRows(self._device_rows, self.y, self.weight)
        dtype = self.X.dtype
        with np.errstate(all="ignore"):
            loss = self.model.add_gradient(
                w.astype(dtype), rows, np.zeros(w.shape, dtype), self.backend
            )
        total = self.n_rows if self.weight is None else float(self.weight.sum()) or 1.0
        return float(loss) / total + self.penalty.value(w[: self.model.n_penalised])

    # -- the rate ------------------------------------------------------------------------------

    def warm_optimizer(
        self, optimizer: Optimizer, w: Array, opt_state: dict[str, Array], batch: int
    ) -> dict[str, Array]:
        """Return the state of an optimizer that has seen the sample's batches at `w`."""
        own = {name: array.copy() for name, array in opt_state.items()}
        return self._step_through(optimizer, w.copy(), own, 0.0, batch)[1]

    def find_best_rate(
        self, optimizer: Optimizer, w: Array, opt_state: dict[str, Array], base: float, batch: int
    ) -> float:
        """Return the factor on the base rate whose steps over one half reduce the loss most."""
        # The loss at the start is what steps must improve on.
        search = search_best_rate(self.value(w))
        return self._search_rate(search, optimizer, w, opt_state, base, batch)

    def find_calm_rate(
        self, optimizer: Optimizer, w: Array, opt_state: dict[str, Array], base: float, batch: int
    ) -> float:
        """Return a factor small enough that steps at a minimum do not leave it."""
        search = search_calm_rate(self.value(w))
        return self._search_rate(search, optimizer, w, opt_state, base, batch)

    def _search_rate(
        self, search: RateSearch, optimizer: Optimizer, w: Array,
        opt_state: dict[str, Array], base: float, batch: int,
    ) -> float:  # fmt: skip
        """Run one search for a factor."""

        def losses(_: list[int], asked: list[int]) -> list[float]:
            rates = [base * rate_factor(k) for k in asked]
            return [self._loss_after_steps(optimizer, w, opt_state, rate, batch) for rate in rates]

        return run_rate_searches([search], losses)[0]

    def _loss_after_steps(
        self, optimizer: Optimizer, w: Array, opt_state: dict[str, Array], rate: float, batch: int
    ) -> float:
        """Return the loss after steps over one half at a rate; infinite where they diverge."""
        own = {name: array.copy() for name, array in opt_state.items()}
        # Steps of the other half lead away from this half's minimum, towards that of all rows.
        moved, _ = self._step_through(optimizer, w.copy(), own, rate, batch, self.n_rows // 2)
        value = self.value(moved) if np.isfinite(moved).all() else np.inf
        return value if np.isfinite(value) else np.inf

    @property
    def _device_rows(self) -> Any:
        """Return the sample's rows as the backend reads them."""
        return self.backend.to_device(self.X)

    def _step_through(
        self, optimizer: Optimizer, w: Array, opt_state: dict[str, Array], rate: float, batch: int,
        first: int = 0,
    ) -> tuple[Array, dict[str, Array]]:  # fmt: skip
        """Step through batches from a row on; return parameters and optimizer state."""
        X, k = self._device_rows, self.model.n_penalised
        l1: Any = 0.0
        if self.penalty.l1 and rate:
            l1 = np.zeros((len(w), 1), w.dtype)
            l1[:k] = self.penalty.l1
        starts = list_trial_starts(first, self.n_rows, batch, w.size)
        with np.errstate(all="ignore"):
            # The same steps that the fit would make: mean gradient, l2 penalty, the optimizer's
            # update.
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


def list_trial_starts(first: int, n_rows: int, batch: int, n_parameters: int) -> range:
    """Return the first row of each batch of a trial."""
    most = max(_STEPS * _SMALL // max(n_parameters, _SMALL), 4)
    return range(first, n_rows, batch)[:most]


class _UncompiledBackend(NumpyBackend):
    """NumPy backend that does not compile kernels for dense rows.

    A pilot is hardly faster with compiled loops, and a client that only waits for workers would
    load numba for it: a fourth of the time of its first fit.
    """

    def add_fused(
        self, kernel: str | None, w: Array, X: Any, y: Array, weight: Array | None, out: Array,
        parameters: tuple[float, ...] = (),
    ) -> float | None:  # fmt: skip
        """Return None for dense rows, so that NumPy computes them."""
        if isinstance(X, np.ndarray):
            return None
        return super().add_fused(kernel, w, X, y, weight, out, parameters)


class _DescentPath:
    """Course of a minimisation: its best point, and the number of steps to it.

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

    def record_step(self, w: Array, value: float, watched: float | None) -> bool:
        """Record a step to `w`; return whether the minimisation should end."""
        self.n_steps += 1
        self._n_small = self._n_small + 1 if self._value - value < self._ftol else 0
        self._value = value
        if watched is None or self._best is None or watched < self._best:
            self.w, self._best, self.n_iter = w.copy(), watched, self.n_steps
        return self._n_small == _SMALL_STEPS or self.n_steps - self.n_iter > _PATIENCE


class _LastEvaluation:
    """Objective that remembers its last point, and the value there with its l1 part."""

    def __init__(self, function: Callable[[Array], tuple[float, Array]], l1: Array) -> None:
        self._function, self._strengths = function, l1
        self.v, self.value = l1, np.inf

    def __call__(self, v: Array) -> tuple[float, Array]:
        smooth, gradient = self._function(v)
        self.v, self.value = v, smooth + float(self._strengths @ np.abs(v))
        return smooth, gradient


class _SampleObjective:
    """Penalised mean loss of some rows of a pilot, and its gradient, in the coordinates."""

    def __init__(self, pilot: Pilot, places: Coordinates, at: slice) -> None:
        self._pilot, self._coordinates = pilot, places
        self._model = replace(pilot.model, n_features=places.n_coordinates)
        Z, y = pilot._transformed_rows[at], pilot.y[at]
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
            # The l2 penalty is of the coefficients for the original columns: its gradient is mapped
            # back.
            coef = self._coordinates.coef(v[:k])
            loss += l2 / 2 * float(np.vdot(coef, coef))
            gradient[:k] += l2 * self._coordinates.apply_transpose(coef)
        return loss, gradient.ravel()


def _nearest_power_of_two(number: float) -> float:
    """Return the nearest power of two, by which numbers can be multiplied without rounding."""
    return float(2.0 ** round(math.log2(number))) if 0 < number < math.inf else 1.0


def search_best_rate(begin: float) -> RateSearch:
    """Search for the half power of ten whose steps lead farthest down from a loss."""
    known: dict[int, float] = {}

    def value(k: int) -> Generator[int, float, float]:
        if k not in known:
            known[k] = yield k
        return known[k]

    # Climb by half powers of ten in the direction in which the loss falls.
    k = _FIRST
    below = yield from value(k - 1)
    way = -1 if below <= (yield from value(k)) else 1
    while _LEAST < k + way <= _MOST and (yield from value(k + way)) <= known[k]:
        k += way
    # How much the best rate gains on the loss at the start.
    gain = begin - known[k]
    if not gain > _GAIN * abs(begin):
        return (yield from search_calm_rate(begin))
    # Rows that the sample lacks may be wilder than those that it has.
    while k - 1 > _LEAST and begin - (yield from value(k - 1)) >= _MOST_OF_IT * gain:
        k -= 1
    return k


def search_calm_rate(begin: float) -> RateSearch:
    """Search for a half power of ten so small that steps at a minimum stay there."""
    # Descend by powers of ten until the steps leave the minimum nearly as it is.
    most = begin + _STIR * abs(begin)
    for k in range(_CALM, _LEAST, -2):
        if (yield k) <= most:
            return k
    return _LEAST


def rate_factor(k: int) -> float:
    """Return the factor ``10 ** (k / 2)`` that a number of half powers stands for."""
    return float(10.0 ** (k / 2))


def run_rate_searches(
    searches: Sequence[RateSearch], losses: Callable[[list[int], list[int]], Sequence[float]]
) -> list[float]:
    """Run searches side by side; return the factor that each finds."""
    # All searches ask at once, so that one reading of the sample serves them.
    asked = {i: next(search) for i, search in enumerate(searches)}
    ended: dict[int, float] = {}
    while asked:
        at = list(asked)
        for i, loss in zip(at, losses(at, [asked[i] for i in at]), strict=True):
            try:
                asked[i] = searches[i].send(loss)
            except StopIteration as end:
                ended[i] = rate_factor(end.value)
                del asked[i]
    return [ended[i] for i in range(len(searches))]


class StackedPilot:
    """Pilots that differ in their l2 penalty alone, as columns of one matrix.

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
        self._models: dict[int, BatchedStepLinear] = {}

    @staticmethod
    def serves(pilot: Pilot, n_columns: int) -> bool:
        """Return whether pilots like this one can be columns."""
        # Columns share dense rows, one output, and no l1 penalty.
        model, X = pilot.model, pilot.X
        if not isinstance(X, np.ndarray) or model.width > 1 or model.n_targets is not None:
            return False
        d = X.shape[1]
        few = d <= FEW and n_columns * d * d <= _MOST_MAP_ENTRIES
        return few and not pilot.penalty.l1 and not pilot.watches_other_half(model.shape[0])

    def find_minima(self, begin: Array, most: int, whole: bool) -> tuple[list[Array], list[Array]]:
        """Return the minima of one half of the sample's rows, and of all rows."""
        places, n = self._coordinates, self.pilot.n_rows
        v = np.stack([p.to_coordinates(begin.astype(np.float64))[:, 0] for p in places])
        every, share = self._make_objective(slice(0, n)), self.pilot.tol
        if whole:
            v, _ = minimize_side_by_side(every, v, most, share=share)
            half = v
        else:
            half, tols = minimize_side_by_side(self._make_objective(slice(0, -(-n // 2))), v, most)
            v, _ = minimize_side_by_side(every, half, most, tols, share)

        def outside(found: Array) -> list[Array]:
            return [p.from_coordinates(v[:, None]) for p, v in zip(places, found, strict=True)]

        return outside(half), outside(v)

    def values(self, w: Array, at: Sequence[int] | None = None) -> Array:
        """Return the penalised mean losses of some columns."""
        l2, k = self.l2 if at is None else self.l2[list(at)], self.pilot.model.n_penalised
        losses, _ = self._sum_losses(self.pilot.X, slice(0, self.pilot.n_rows), w)
        with np.errstate(all="ignore"):
            total = float(self._weight.sum()) or 1.0
            bent: Array = l2 / 2 * (w[:k].astype(np.float64) ** 2).sum(axis=0)
            return bent + losses / total

    def warm_optimizer(
        self, optimizer: Optimizer, w: Array, opt_state: dict[str, Array], batch: int
    ) -> dict[str, Array]:
        """Return states of an optimizer that has seen the sample's batches at `w`."""
        every = np.arange(len(self.l2))
        return self._step_through(optimizer, w, opt_state, np.zeros(len(every)), batch, 0, every)[1]

    def rates(
        self, optimizer: Optimizer, w: Array, opt_state: dict[str, Array], base: Sequence[float],
        batch: int, search: Callable[[float], RateSearch] = search_best_rate,
    ) -> list[float]:  # fmt: skip
        """Return the factor that a search finds for each column."""
        own = np.array(base)

        def losses(at: list[int], asked: list[int]) -> list[float]:
            rates = own[at] * np.array([rate_factor(k) for k in asked])
            some = {name: array[:, at] for name, array in opt_state.items()}
            first = self.pilot.n_rows // 2
            moved, _ = self._step_through(
                optimizer, w[:, at], some, rates, batch, first, np.array(at)
            )
            found = self.values(moved, at)
            finite = np.isfinite(found) & np.isfinite(moved).all(axis=0)
            return [float(value) for value in np.where(finite, found, np.inf)]

        return run_rate_searches([search(float(v)) for v in self.values(w)], losses)

    # -- sums over rows ------------------------------------------------------------------------

    def _wide_model(self, n_columns: int) -> BatchedStepLinear:
        """Return the linear model of several columns."""
        if n_columns not in self._models:
            one = BatchedStepLinear(
                self.pilot.model, _AllRowsAssignment(), None, (0,) * n_columns, (1.0,)
            )
            self._models[n_columns] = one
        return self._models[n_columns]

    def _sum_losses(self, X: Array, at: slice, w: Array) -> tuple[Array, Array]:
        """Return the summed losses of columns, and their gradients."""
        model, wide = self._wide_model(w.shape[1]), _append_loss_row(w.astype(self._dtype))
        # Sums of the same rows, whoever takes them, so that digits do not tell of the machine.
        starts = range(at.start, at.stop, _THREAD_ROWS)
        parts = np.zeros((len(starts), *wide.shape))

        def add(some: slice) -> None:
            with np.errstate(all="ignore"):
                for part, first in zip(parts[some], starts[some], strict=True):
                    last = min(first + _THREAD_ROWS, at.stop)
                    for start in range(first, last, _TILE_ROWS):
                        tile = slice(start, min(start + _TILE_ROWS, last))
                        rows = BatchRows(X[tile], self._y[tile], None)
                        model.add_gradient(wide, rows, part, self.pilot.backend)

        run_over_threads(add, len(starts), least=1)
        out = parts.sum(axis=0)
        return -out[-1], out[:-1]

    @cached_property
    def _coordinates(self) -> list[Coordinates]:
        """Return the coordinates of each column."""
        pilot = self.pilot
        leasts = (BENT * self.l2).tolist()
        return Coordinates.for_least_variances(
            pilot.X, pilot.weight, centred=pilot.model.fit_intercept, turned=True, leasts=leasts
        )

    def _make_objective(self, at: slice) -> Callable[[Array, Array], tuple[Array, Array]]:
        """Return the function of losses and gradients of columns, each in its own coordinates."""
        places = self._coordinates
        # Rows as the least penalised column has them: the others' are shorter in all directions.
        least = places[int(np.argmin(self.l2))]
        Z, d = least.rows(self.pilot.X), self.pilot.model.n_penalised
        # Each column has its own rotation; rows are stored in the coordinates of the least
        # penalised column, and a small matrix maps between the two.
        turns = np.stack([p.turn for p in places])  # type: ignore[misc]
        maps = least.back @ turns
        coefs = turns / least.scale[:, None]
        total = float(self._weight[at].sum()) or 1.0

        def value(v: Array, columns: Array) -> tuple[Array, Array]:
            own, l2 = v[:, :d, None], self.l2[columns]
            w = np.concatenate([(maps[columns] @ own)[:, :, 0], v[:, d:]], axis=1).T
            losses, gradient = self._sum_losses(Z, at, np.ascontiguousarray(w))
            losses, gradient = losses / total, np.ascontiguousarray(gradient.T) / total
            coef = coefs[columns] @ own
            bent = np.swapaxes(maps[columns], 1, 2) @ gradient[:, :d, None]
            bent += l2[:, None, None] * (np.swapaxes(coefs[columns], 1, 2) @ coef)
            gradient[:, :d] = bent[:, :, 0]
            return losses + l2 / 2 * (coef[:, :, 0] ** 2).sum(axis=1), gradient

        return value

    def _step_through(
        self, optimizer: Optimizer, w: Array, opt_state: dict[str, Array], rates: Array, batch: int,
        first: int, columns: Array,
    ) -> tuple[Array, dict[str, Array]]:  # fmt: skip
        """Step through batches from a row on; return parameters and optimizer state."""
        pilot, k = self.pilot, self.pilot.model.n_penalised
        w, opt_state = w.copy(), {name: array.copy() for name, array in opt_state.items()}
        l2, rate = (a.astype(w.dtype)[None, :] for a in (self.l2[columns], rates))
        state = w, *map(opt_state.__getitem__, optimizer.state_names)
        move = lift_to_arrays(type(optimizer).elementwise_update, np)
        starts = list_trial_starts(first, pilot.n_rows, batch, len(w))
        model, wide = self._wide_model(len(columns)), _append_loss_row(w)
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


class _AllRowsAssignment(FoldAssignment):
    """Assignment that trains on all rows."""

    n_splits = 1

    def played(self, codes: NDArray[np.int64], split: int) -> NDArray[np.int8]:
        """Return the role "train" for every row."""
        return np.full(len(codes), TRAIN, np.int8)


def _append_loss_row(w: Array) -> Array:
    """Return parameters with one more row, which receives the losses."""
    return np.concatenate([w, np.zeros_like(w[:1])])
