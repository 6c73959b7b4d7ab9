"""Pilot of a fit by gradient steps: finds initial parameters and a learning rate on a sample.

`Pilot` minimises the loss of some thousand rows by a quasi-Newton method, in coordinates free of
the features' units and correlations (`Coordinates`). The steps of the fit then only cover the short
way from the sample's minimum to that of all rows (Daneshmand, Lucchi and Hofmann 2016). The rate is
the one whose steps over one half of the sample, from the minimum of the other half, reduce the
sample's loss most (Bottou 2012 calibrates on a sample too). `StackedPilot` runs pilots that differ
in their l2 penalty as columns of one matrix. Searches for a rate are generators, so that the
searches of all columns share each reading of the sample.
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
from daskml_dist.models.batched import AllRowsAssignment, BatchedStepLinear
from daskml_dist.models.linear import LinearModel
from daskml_dist.optimizers.base import Optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.solvers.lbfgs import minimize_orthant_wise, minimize_side_by_side
from daskml_dist.solvers.lock_step import run_in_lock_step

Array = NDArray[Any]
#: Most columns (or rows, where rows are fewer) whose correlations are removed: the
#: eigendecomposition takes time of the cube of their number.
MAX_WHITENED = 256
#: Least variance of a direction, as a share of the largest, so that none is divided by zero.
_MIN_VARIANCE_SHARE = 1e-10
#: Largest ratio of the columns' standard deviations that counts as like units.
_LIKE_UNITS_RATIO = 10.0
#: Standard deviation, as a share of a column's largest magnitude, up to which it is rounding error.
_CONSTANT_COLUMN_SHARE = 1e-6
#: Variance of a direction, as a share of the largest, below which the rows do not span it.
_SPANNED_VARIANCE_SHARE = 1e-14
#: Entries that are worked on at once: 512 KiB in float64, a share of the L2 cache.
CACHED_ENTRIES = 1 << 16


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Affine map of rows, ``(x - mean) / scale @ whitening``, and of a linear model's parameters.

    Parameters
    ----------
    mean : ndarray of shape (n_features,), or None
        None: rows are not centred.
    scale : ndarray of shape (n_features,)
    whitening : ndarray of shape (n_features, n_coordinates), or None
        Whitening matrix; None: the identity.
    back : ndarray of shape (n_coordinates, n_features), or None
        Left inverse of `whitening`: ``back @ whitening`` is the identity.
    """

    mean: Array | None
    scale: Array
    whitening: Array | None = None
    back: Array | None = None

    @classmethod
    def from_rows(
        cls, X: Any, weight: Array | None, *, centred: bool, turned: bool, least: float
    ) -> Coordinates:
        """Compute the coordinates in which the weighted covariance of rows is the identity.

        Sparse rows are only scaled: centring would make them dense.

        Parameters
        ----------
        X : ndarray or CSR matrix of shape (n, n_features)
        weight : ndarray of shape (n,) or None
        centred : bool
            Whether the mean is subtracted: only a model with an intercept can undo that.
        turned : bool
            Whether correlations are removed too, where columns or rows are few; else each column
            is only divided by its standard deviation.
        least : float
            Variance that an l2 penalty adds to every direction.

        Notes
        -----
        Where rows are fewer than columns in like units, there are at most as many coordinates as
        rows: a penalised minimum is a linear combination of rows (representer theorem). In units
        far apart that minimum depends on the largest columns alone and predicts badly, so every
        column keeps its own coordinate.
        """
        (coordinates,) = cls.for_variance_floors(
            X, weight, centred=centred, turned=turned, variance_floors=(least,)
        )
        return coordinates

    @classmethod
    def for_variance_floors(
        cls,
        X: Any,
        weight: Array | None,
        *,
        centred: bool,
        turned: bool,
        variance_floors: Sequence[float],
    ) -> list[Coordinates]:
        """Compute coordinates for each of several least variances, reading the rows once."""
        n, d = X.shape
        total = n if weight is None else weight.sum() or 1.0
        # Centring would make sparse rows dense, so only the scales are changed.
        if sparse.issparse(X):
            squared = X.data.astype(np.float64) ** 2
            if weight is not None:
                squared *= np.repeat(weight, np.diff(X.indptr))
            squares = np.bincount(X.indices, squared, d) / total
            return [cls(None, _safe_scale(squares + floor)) for floor in variance_floors]
        # Fewer rows than columns: the penalised minimum lies in the span of the rows.
        if turned and n <= MAX_WHITENED < d and min(variance_floors) > 0 and _have_like_units(X):
            return [_span_coordinates(X, weight, centred, floor) for floor in variance_floors]
        turned = turned and d <= MAX_WHITENED
        # Two passes: means first, then centred squares, which loses no digits to large means.
        mean, squares = np.zeros(d), np.zeros((d, d) if turned else d)
        if centred:
            for rows, tile_weight in _iterate_tiles(X, weight):
                mean += rows.sum(axis=0) if tile_weight is None else tile_weight @ rows
            mean /= total
        for rows, tile_weight in _iterate_tiles(X, weight):
            rows -= mean
            weighted = rows if tile_weight is None else rows * tile_weight[:, None]
            squares += weighted.T @ rows if turned else np.einsum("ij,ij->j", weighted, rows)
        squares /= total
        variance = squares.diagonal() if turned else squares
        # The variance of a constant column is rounding error: count it as zero.
        variance = np.where(variance <= (1e-12 * mean) ** 2, 0.0, variance)
        centre = mean if centred else None
        if not turned:
            return [cls(centre, _safe_scale(variance + floor)) for floor in variance_floors]
        scale = _safe_scale(variance)
        squares /= np.outer(scale, scale)
        coordinates = []
        for floor in variance_floors:
            # The penalty's curvature is added to the diagonal (ridge), so that no direction is
            # divided by a variance of nearly 0.
            ridged = squares.copy()
            ridged.flat[:: d + 1] += floor / scale**2 + _MIN_VARIANCE_SHARE
            # Whitening: rotate to the eigenvectors and divide by the standard deviations.
            values, vectors = np.linalg.eigh(ridged)
            sizes = np.sqrt(np.maximum(values, _MIN_VARIANCE_SHARE * max(values[-1], 1e-300)))
            coordinates.append(cls(centre, scale, vectors / sizes, (vectors * sizes).T))
        return coordinates

    @property
    def n_coordinates(self) -> int:
        """Return the number of coordinates of a row."""
        return len(self.scale) if self.whitening is None else self.whitening.shape[1]

    def rows(self, X: Any) -> Any:
        """Return rows in these coordinates, in a new array of their dtype."""
        if sparse.issparse(X):
            return (X @ sparse.diags_array((1 / self.scale).astype(X.dtype))).tocsr()
        transformed, offset = np.empty((len(X), self.n_coordinates), X.dtype), 0
        rotation = None if self.whitening is None else self.whitening / self.scale[:, None]
        # Centre and scale in float64, then round to the rows' dtype: in float32 the difference of
        # two large numbers would lose its digits.
        for rows, _ in _iterate_tiles(X):
            if self.mean is not None:
                rows -= self.mean
            transformed[offset : offset + len(rows)] = (
                rows / self.scale if rotation is None else rows @ rotation
            )
            offset += len(rows)
        return transformed

    def coef(self, v: Array) -> Array:
        """Map coefficients in these coordinates to coefficients of the original columns."""
        return (v if self.whitening is None else self.whitening @ v) / self.scale[:, None]

    def apply_transpose(self, gradient: Array) -> Array:
        """Apply the transpose of :meth:`coef` to a gradient."""
        gradient = gradient / self.scale[:, None]
        return gradient if self.whitening is None else self.whitening.T @ gradient

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
    """Return whether the standard deviations of the varying columns are of like size."""
    deviations = X.std(axis=0, dtype=np.float64)
    deviations = deviations[deviations > _CONSTANT_COLUMN_SHARE * np.abs(X).max(axis=0)]
    return bool(len(deviations)) and bool(deviations.max() <= _LIKE_UNITS_RATIO * deviations.min())


def _span_coordinates(X: Array, weight: Array | None, centred: bool, least: float) -> Coordinates:
    """Return whitened coordinates of the subspace that few rows of many columns span."""
    weight = np.ones(len(X)) if weight is None else weight.astype(np.float64)
    weight = weight / (weight.sum() or 1.0)
    mean = weight @ X if centred else None
    rows = X.astype(np.float64) if mean is None else X - mean
    rows *= np.sqrt(weight)[:, None]
    # Eigenvectors of the small n x n Gram matrix give the principal directions in column space. The
    # Gram matrix squares rounding errors, so the directions are slightly correlated; this does no
    # other harm.
    directions = rows.T @ np.linalg.eigh(rows @ rows.T)[1]
    variance = np.einsum("ij,ij->j", directions, directions)
    is_spanned = variance > _SPANNED_VARIANCE_SHARE * variance.max()
    directions, variance = directions[:, is_spanned], variance[is_spanned]
    sizes = np.sqrt(variance + least)
    directions /= np.sqrt(variance)
    return Coordinates(mean, np.ones(X.shape[1]), directions / sizes, (directions * sizes).T)


def _iterate_tiles(X: Any, weight: Array | None = None) -> Iterator[tuple[Array, Array | None]]:
    """Yield float64 copies of rows, few enough at a time to stay in a cache."""
    size = max(CACHED_ENTRIES // max(X.shape[1], 1), 1)
    for start in range(0, len(X), size):
        tile_weight = None if weight is None else weight[start : start + size].astype(np.float64)
        yield X[start : start + size].astype(np.float64), tile_weight


def _safe_scale(squares: Array) -> Array:
    """Return square roots, with 1 in place of 0."""
    scale: Array = np.sqrt(squares)
    return np.where(scale > 0, scale, 1.0)


#: The minimisation ends with the first step that reduces the loss by less than about this share of
#: the loss at the start, or where no slope exceeds this share of the largest at the start.
_FTOL, _GTOL = 1e-5, 1e-4
#: Inverse of a loss's curvature in its raw predictions, by which an l2 penalty is weighed against
#: the rows' variance: 4 for the logistic loss at probability 1/2, ten times that where
#: predictions are confident, as they are at the end of a fit.
INVERSE_CURVATURE = 40.0
#: Batches of a trial of a rate at most, and at least; the number of parameters from which the most
#: shrinks in proportion to their number.
_MAX_TRIAL_STEPS, _MIN_TRIAL_STEPS, _MAX_TRIAL_PARAMETERS = 64, 4, 1 << 17
#: Entries (rows x coordinates x outputs) up to which tolerances are ten times finer, at no cost
#: that a user would notice.
_CHEAP_ENTRIES, _FINE = 1 << 20, 0.1
#: Entries so few that the minimum is found to nearly all digits: a weight of 2 then equals a
#: repeated row.
_TINY_ENTRIES, _FINEST = 1 << 14, 1e-6
#: Rows for each parameter from which minimising on them does not overfit.
ROWS_PER_PARAMETER = 20
#: Steps without a smaller loss of the other half after which the descent ends (early stopping).
_PATIENCE = 5
#: Generator that yields exponents k of the factor ``10 ** (k / 2)`` to try, is sent the loss after
#: steps at each, and returns the exponent it chooses.
RateSearch = Generator[int, float, int]
#: Exponents of factors: where the search begins, and the largest and least tried (1e4, 1e-20).
_FIRST_EXPONENT, _MAX_EXPONENT, _MIN_EXPONENT = -1, 8, -40
#: Exponent of the first, and largest, factor of a search for a calm rate (1e-3).
_FIRST_CALM_EXPONENT = -6
#: Share of the loss that the best rate must gain, else a calm rate is searched for.
_MIN_GAIN = 1e-3
#: Share of the best gain for which a smaller rate is preferred.
_PREFERRED_GAIN_SHARE = 0.9
#: Share of the loss by which the steps of a calm rate may raise it.
_CALM_RISE = 1e-4
#: Rows whose raw predictions of all columns stay in a cache, and rows that one thread adds up.
_TILE_ROWS, _THREAD_ROWS = 1 << 10, 1 << 12
#: Entries of the coordinate maps of all columns at most: 32 MiB in float64.
_MAX_MAP_ENTRIES = 1 << 22


class Pilot:
    """Search for the initial parameters and the learning rate of a linear model, on a sample.

    Parameters
    ----------
    model : LinearModel
    X : ndarray or CSR matrix of shape (n, n_features)
        Rows of the sample.
    y : ndarray of shape (n,)
        Targets as the model encodes them.
    weight : ndarray of shape (n,) or None
    penalty : Penalty
    seed : int
        Of the permutation that divides the rows into halves.
    """

    def __init__(
        self, model: LinearModel, X: Any, y: Array, weight: Array | None, penalty: Penalty,
        seed: int,
    ) -> None:  # fmt: skip
        self.model = model
        self.penalty = penalty
        self.backend = _UncompiledBackend() if X.size > _TINY_ENTRIES else NumpyBackend()
        if sparse.issparse(X) and X.shape[1] <= MAX_WHITENED:
            X = X.toarray()
        # Shuffled once: the loss of the first half is minimised; on the second half early stopping
        # and the trial steps of rates run.
        order = np.random.default_rng((seed, 1)).permutation(len(y))
        self.X, self.y = X[order], y[order]
        self.weight = None if weight is None else weight[order]
        self.n_rows = len(y)

    # -- the minimum ---------------------------------------------------------------------------

    def minimise_all_rows(self, start: Array, max_iter: int) -> tuple[Array, bool]:
        """Minimise the loss of all rows; return the parameters, and whether that converged."""
        minimum = self._minimise(start, slice(0, self.n_rows), max_iter, tol=self.tol)
        return minimum.w, minimum.n_iter < max_iter

    @property
    def tol(self) -> float:
        """Return the factor on both tolerances for the minimum of all rows."""
        size = self.n_rows * self._coordinates.n_coordinates * self.model.width
        # If columns outnumber rows, the data term vanishes, and the last digits of the loss are
        # those of the penalty.
        if self._coordinates.n_coordinates < self.X.shape[1]:
            return _FINEST
        return _FINEST if size <= _TINY_ENTRIES else _FINE if size <= _CHEAP_ENTRIES else 1.0

    def minimum_of_half(self, start: Array, max_iter: int) -> tuple[Array, int]:
        """Minimise on one half of the rows; return the parameters, and the steps to them.

        The parameters are those with the other half's least loss; where rows are many for the
        parameters, they are the half's minimum, and the steps are `max_iter`.
        """
        n_half = -(-self.n_rows // 2)
        watched_rows = slice(n_half, self.n_rows) if self.watches_other_half(start.size) else None
        minimum = self._minimise(start, slice(0, n_half), max_iter, watched_rows)
        return minimum.w, max_iter if watched_rows is None else minimum.n_iter

    def watches_other_half(self, n_parameters: int) -> bool:
        """Return whether the other half's loss is watched while one half is minimised."""
        # Many rows are not overfitted, while a few outliers of the other half could end the descent
        # too early.
        return -(-self.n_rows // 2) < ROWS_PER_PARAMETER * n_parameters

    def _minimise(
        self,
        start: Array,
        row_slice: slice,
        max_iter: int,
        watched: slice | None = None,
        tol: float = 1.0,
    ) -> _DescentPath:
        """Minimise the mean loss of the rows `row_slice`, watching that of the rows `watched`."""
        coordinates = self._coordinates
        objective = _SampleObjective(self, coordinates, row_slice)
        validation = None if watched is None else _SampleObjective(self, coordinates, watched)
        start_coordinates = coordinates.to_coordinates(start.astype(np.float64))
        first = start_coordinates.ravel()
        # Scale loss and steps to about 1 by powers of two, which do not round: tolerances are then
        # shares.
        value, slope = objective(first)
        # Losses without their constant terms (Poisson, gamma) may be negative.
        unit = _nearest_power_of_two(abs(value) or 1.0)
        # The length along the first gradient at which a linear loss would fall to zero.
        step = _nearest_power_of_two(unit / (float(np.linalg.norm(slope)) or unit))
        first /= step
        # The path remembers its best point, which need not be its last.
        path = _DescentPath(
            first, None if validation is None else validation(first * step)[0], tol * _FTOL
        )
        tol *= _GTOL * (float(np.abs(slope).max()) * step / unit or 1.0)
        l1 = self._scaled_l1_strengths(start_coordinates.shape) * (step / unit)

        def scaled(v: Array) -> tuple[float, Array]:
            value, gradient = objective(v * step)
            return value / unit, gradient * (step / unit)

        def is_over(v: Array, value: float) -> bool:
            watched = None if validation is None else validation(v * step)[0]
            return path.record_step(v, value, watched)

        # OWL-QN (Andrew and Gao 2007) for an l1 penalty, L-BFGS-B otherwise.
        if l1.any():
            last = _LastEvaluation(scaled, l1)
            minimize_orthant_wise(
                last, first, l1, max_iter=max_iter, tol=tol,
                should_stop=lambda: is_over(last.v, last.value),
            )  # fmt: skip
        else:

            def on_step(intermediate_result: OptimizeResult) -> None:
                if is_over(intermediate_result.x, intermediate_result.fun):
                    raise StopIteration

            options = {"maxiter": max_iter, "maxfun": 2 * max_iter, "ftol": 0.0, "gtol": tol}
            minimize(scaled, first, method="L-BFGS-B", jac=True, callback=on_step, options=options)
        path.w = coordinates.from_coordinates(path.w.reshape(start_coordinates.shape) * step)
        return path

    @cached_property
    def _coordinates(self) -> Coordinates:
        """Return the coordinates of the sample's columns."""
        return Coordinates.from_rows(
            self.X,
            self.weight,
            centred=self.model.fit_intercept,
            turned=not self.penalty.l1,
            least=INVERSE_CURVATURE * self.penalty.l2,
        )

    @cached_property
    def _transformed_rows(self) -> Any:
        """Return the sample's rows in its coordinates, as the backend reads them."""
        return self.backend.to_device(self._coordinates.rows(self.X))

    def _scaled_l1_strengths(self, shape: tuple[int, ...]) -> Array:
        """Return the l1 penalty of each coordinate."""
        strengths = np.zeros(shape)
        if self.penalty.l1:  # coordinates are then scaled columns, without a rotation
            strengths[: self.model.n_penalised] = self.penalty.l1 / self._coordinates.scale[:, None]
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
        state_copy = {name: array.copy() for name, array in opt_state.items()}
        return self._step_through(optimizer, w.copy(), state_copy, 0.0, batch)[1]

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
        """Return the factor that a search finds."""

        def losses(_: list[int], exponents: list[int]) -> list[float]:
            rates = [base * rate_factor(k) for k in exponents]
            return [self._loss_after_steps(optimizer, w, opt_state, rate, batch) for rate in rates]

        return run_rate_searches([search], losses)[0]

    def _loss_after_steps(
        self, optimizer: Optimizer, w: Array, opt_state: dict[str, Array], rate: float, batch: int
    ) -> float:
        """Return the loss after steps over one half at a rate; infinite where they diverge."""
        state_copy = {name: array.copy() for name, array in opt_state.items()}
        # Steps of the other half lead away from this half's minimum, towards that of all rows.
        stepped, _ = self._step_through(
            optimizer, w.copy(), state_copy, rate, batch, self.n_rows // 2
        )
        value = self.value(stepped) if np.isfinite(stepped).all() else np.inf
        return value if np.isfinite(value) else np.inf

    @property
    def _device_rows(self) -> Any:
        """Return the sample's rows as the backend reads them."""
        return self.backend.to_device(self.X)

    def _step_through(
        self, optimizer: Optimizer, w: Array, opt_state: dict[str, Array], rate: float, batch: int,
        first: int = 0,
    ) -> tuple[Array, dict[str, Array]]:  # fmt: skip
        """Step through the batches from row `first` on; return parameters and optimizer state.

        Both are changed in place.
        """
        X, k = self._device_rows, self.model.n_penalised
        l1: Any = 0.0
        # A step at rate 0, which only warms the optimizer's state, has no proximal part.
        if self.penalty.l1 and rate:
            l1 = np.zeros((len(w), 1), w.dtype)
            l1[:k] = self.penalty.l1
        starts = list_trial_starts(first, self.n_rows, batch, w.size)
        with np.errstate(all="ignore"):
            # The same steps that the fit would make: mean gradient, l2 penalty, the optimizer's
            # update.
            for number, start in enumerate(starts, 1):
                batch_rows = slice(start, min(start + batch, self.n_rows))
                weight = None if self.weight is None else self.weight[batch_rows]
                rows = BatchRows(self.backend.rows(X, batch_rows), self.y[batch_rows], weight)
                gradient = np.zeros_like(w)
                self.model.add_gradient(w, rows, gradient, self.backend)
                gradient /= batch_rows.stop - batch_rows.start
                if self.penalty.l2:
                    gradient[:k] += self.penalty.l2 * w[:k]
                optimizer.update(w, gradient, opt_state, rate, number, l1)
        return w, opt_state


def list_trial_starts(first: int, n_rows: int, batch: int, n_parameters: int) -> range:
    """Return the first row of each batch of a trial of a rate."""
    max_steps = _MAX_TRIAL_STEPS * _MAX_TRIAL_PARAMETERS // max(n_parameters, _MAX_TRIAL_PARAMETERS)
    max_steps = max(max_steps, _MIN_TRIAL_STEPS)
    return range(first, n_rows, batch)[:max_steps]


class _UncompiledBackend(NumpyBackend):
    """NumPy backend that does not compile kernels for dense rows.

    A pilot is hardly faster with compiled loops, and loading numba would take a fourth of the time
    of a first fit on a cluster, whose client compiles nothing else.
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
    """Path of a minimisation: its best point, and the number of steps to that point.

    Parameters
    ----------
    w : ndarray
        Point at which it begins.
    watched : float or None
        Validation loss there; None: the last point is the best.
    ftol : float
        The minimisation ends with the first step that reduces the loss by less.
    """

    def __init__(self, w: Array, watched: float | None, ftol: float) -> None:
        self.w, self.n_iter, self.n_steps = w, 0, 0
        self._best, self._value, self._ftol = watched, np.inf, ftol

    def record_step(self, w: Array, value: float, watched: float | None) -> bool:
        """Record a step to `w`; return whether the minimisation should end."""
        self.n_steps += 1
        is_small = self._value - value < self._ftol
        self._value = value
        if watched is None or self._best is None or watched < self._best:
            self.w, self._best, self.n_iter = w.copy(), watched, self.n_steps
        return is_small or self.n_steps - self.n_iter > _PATIENCE


class _LastEvaluation:
    """Objective that remembers the last point evaluated, and its value there with the l1 penalty.

    The callback of the orthant-wise minimiser gets neither of them.
    """

    def __init__(self, function: Callable[[Array], tuple[float, Array]], l1: Array) -> None:
        self._function, self._strengths = function, l1
        self.v, self.value = l1, np.inf

    def __call__(self, v: Array) -> tuple[float, Array]:
        smooth, gradient = self._function(v)
        self.v, self.value = v, smooth + float(self._strengths @ np.abs(v))
        return smooth, gradient


class _SampleObjective:
    """Mean loss with l2 penalty of some rows of a pilot, and its gradient, in coordinates."""

    def __init__(self, pilot: Pilot, coordinates: Coordinates, row_slice: slice) -> None:
        self._pilot, self._coordinates = pilot, coordinates
        self._model = replace(pilot.model, n_features=coordinates.n_coordinates)
        Z, y = pilot._transformed_rows[row_slice], pilot.y[row_slice]
        self._dtype = Z.dtype
        self._weight = None if pilot.weight is None else pilot.weight[row_slice].astype(Z.dtype)
        self._total = len(y) if self._weight is None else float(self._weight.sum()) or 1.0
        self._rows = BatchRows(Z, y.astype(Z.dtype) if y.dtype.kind == "f" else y, self._weight)

    def __call__(self, flat: Array) -> tuple[float, Array]:
        model, l2 = self._model, self._pilot.penalty.l2
        v, k = flat.reshape(model.shape), model.n_penalised
        gradient = np.zeros(model.shape)
        # A line search may try a step so long that the loss overflows.
        with np.errstate(all="ignore"):
            w = v.astype(self._dtype)
            loss = float(model.add_gradient(w, self._rows, gradient, self._pilot.backend))
        loss, gradient = loss / self._total, gradient / self._total
        if l2:
            # The l2 penalty is that of the original columns' coefficients: its gradient is mapped
            # to the coordinates.
            coef = self._coordinates.coef(v[:k])
            loss += l2 / 2 * float(np.vdot(coef, coef))
            gradient[:k] += l2 * self._coordinates.apply_transpose(coef)
        return loss, gradient.ravel()


def _nearest_power_of_two(value: float) -> float:
    """Return the nearest power of two; 1 for numbers that have none. Multiplying by it is exact."""
    return float(2.0 ** round(math.log2(value))) if 0 < value < math.inf else 1.0


def search_best_rate(start_loss: float) -> RateSearch:
    """Search for the exponent of the factor whose steps reduce the loss `start_loss` most."""
    losses: dict[int, float] = {}

    def value(k: int) -> Generator[int, float, float]:
        if k not in losses:
            losses[k] = yield k
        return losses[k]

    # Hill climbing by half powers of ten, in the direction in which the loss falls.
    k = _FIRST_EXPONENT
    loss_below = yield from value(k - 1)
    direction = -1 if loss_below <= (yield from value(k)) else 1
    while (
        _MIN_EXPONENT < k + direction <= _MAX_EXPONENT
        and (yield from value(k + direction)) <= losses[k]
    ):
        k += direction
    gain = start_loss - losses[k]
    if not gain > _MIN_GAIN * abs(start_loss):
        return (yield from search_calm_rate(start_loss))
    # Take the smallest rate that has most of the gain: other rows of the fit may have larger
    # gradients than those of the sample.
    while (
        k - 1 > _MIN_EXPONENT
        and start_loss - (yield from value(k - 1)) >= _PREFERRED_GAIN_SHARE * gain
    ):
        k -= 1
    return k


def search_calm_rate(start_loss: float) -> RateSearch:
    """Search for an exponent so small that steps from a minimum of loss `start_loss` stay there."""
    # Whole powers of ten, downwards, until the steps leave the loss nearly as it is.
    max_loss = start_loss + _CALM_RISE * abs(start_loss)
    for k in range(_FIRST_CALM_EXPONENT, _MIN_EXPONENT, -2):
        if (yield k) <= max_loss:
            return k
    return _MIN_EXPONENT


def rate_factor(k: int) -> float:
    """Return the factor ``10 ** (k / 2)`` of an exponent."""
    return float(10.0 ** (k / 2))


def run_rate_searches(
    searches: Sequence[RateSearch], losses: Callable[[list[int], list[int]], Sequence[float]]
) -> list[float]:
    """Run searches side by side; return the factor that each finds.

    `losses` takes the numbers of searches and the exponent that each one tries; it returns the
    losses after steps at these rates.
    """
    # All searches try one exponent at a time, so that one reading of the sample serves them all.
    return [rate_factor(k) for k in run_in_lock_step(searches, losses)]


class StackedPilot:
    """Pilots that differ in their l2 penalty alone, as columns of one matrix.

    Parameters
    ----------
    pilot : Pilot
        Any one of them for which :meth:`serves` is true.
    l2 : sequence of float
        Penalty of each column.
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
        """Return whether `n_columns` pilots like this one can be columns of one matrix."""
        # Columns share dense rows; each has one output, no l1 penalty, and no early stopping.
        model, X = pilot.model, pilot.X
        if pilot.y.dtype.kind == "c":  # bounds of times, a pair of numbers a row
            return False
        if not isinstance(X, np.ndarray) or model.width > 1 or model.n_targets is not None:
            return False
        d = X.shape[1]
        is_small = d <= MAX_WHITENED and n_columns * d * d <= _MAX_MAP_ENTRIES
        return is_small and not pilot.penalty.l1 and not pilot.watches_other_half(model.shape[0])

    def find_minima(
        self, initial_params: Array, max_iter: int, has_all_rows: bool
    ) -> tuple[list[Array], list[Array]]:
        """Return the minima of one half of the sample and of all of it, one array a column.

        `has_all_rows`: the sample is all rows of the fit, so the half's minimum is not needed, and
        the minimum of all rows is returned in its place.
        """
        coordinates, n = self._coordinates, self.pilot.n_rows
        v = np.stack(
            [p.to_coordinates(initial_params.astype(np.float64))[:, 0] for p in coordinates]
        )
        objective, share = self._make_objective(slice(0, n)), self.pilot.tol
        if has_all_rows:
            v, _ = minimize_side_by_side(objective, v, max_iter, tol_factor=share)
            half_minima = v
        else:
            half_minima, tols = minimize_side_by_side(
                self._make_objective(slice(0, -(-n // 2))), v, max_iter
            )
            v, _ = minimize_side_by_side(objective, half_minima, max_iter, tols, share)

        def outside(minima: Array) -> list[Array]:
            return [
                p.from_coordinates(v[:, None]) for p, v in zip(coordinates, minima, strict=True)
            ]

        return outside(half_minima), outside(v)

    def values(self, w: Array, column_indices: Sequence[int] | None = None) -> Array:
        """Return the penalised mean losses of some columns over all rows of the sample."""
        l2, k = (
            self.l2 if column_indices is None else self.l2[list(column_indices)],
            self.pilot.model.n_penalised,
        )
        losses, _ = self._sum_losses(self.pilot.X, slice(0, self.pilot.n_rows), w)
        with np.errstate(all="ignore"):
            total = float(self._weight.sum()) or 1.0
            penalty: Array = l2 / 2 * (w[:k].astype(np.float64) ** 2).sum(axis=0)
            return penalty + losses / total

    def warm_optimizer(
        self, optimizer: Optimizer, w: Array, opt_state: dict[str, Array], batch: int
    ) -> dict[str, Array]:
        """Return the state of an optimizer that has seen the sample's batches at `w`."""
        all_columns = np.arange(len(self.l2))
        return self._step_through(
            optimizer, w, opt_state, np.zeros(len(all_columns)), batch, 0, all_columns
        )[1]

    def rates(
        self, optimizer: Optimizer, w: Array, opt_state: dict[str, Array], base: Sequence[float],
        batch: int, search: Callable[[float], RateSearch] = search_best_rate,
    ) -> list[float]:  # fmt: skip
        """Return the factor on each column's base rate that a search finds."""
        base_rates = np.array(base)

        def losses(column_indices: list[int], exponents: list[int]) -> list[float]:
            rates = base_rates[column_indices] * np.array([rate_factor(k) for k in exponents])
            states = {name: array[:, column_indices] for name, array in opt_state.items()}
            first = self.pilot.n_rows // 2
            stepped, _ = self._step_through(
                optimizer,
                w[:, column_indices],
                states,
                rates,
                batch,
                first,
                np.array(column_indices),
            )
            values = self.values(stepped, column_indices)
            is_finite = np.isfinite(values) & np.isfinite(stepped).all(axis=0)
            return [float(value) for value in np.where(is_finite, values, np.inf)]

        return run_rate_searches([search(float(v)) for v in self.values(w)], losses)

    # -- sums over rows ------------------------------------------------------------------------

    def _wide_model(self, n_columns: int) -> BatchedStepLinear:
        """Return the linear model of several columns, made once."""
        if n_columns not in self._models:
            self._models[n_columns] = BatchedStepLinear(
                self.pilot.model, AllRowsAssignment(), None, (0,) * n_columns, (1.0,)
            )
        return self._models[n_columns]

    def _sum_losses(self, X: Array, row_slice: slice, w: Array) -> tuple[Array, Array]:
        """Return the summed loss of each column over some rows, and the gradients."""
        model, wide_params = self._wide_model(w.shape[1]), _append_loss_row(w.astype(self._dtype))
        # Each partial sum is of a fixed number of rows, whatever the number of threads: the digits
        # do not depend on the machine.
        starts = range(row_slice.start, row_slice.stop, _THREAD_ROWS)
        parts = np.zeros((len(starts), *wide_params.shape))

        def add(part_slice: slice) -> None:
            with np.errstate(all="ignore"):
                for part, first in zip(parts[part_slice], starts[part_slice], strict=True):
                    last = min(first + _THREAD_ROWS, row_slice.stop)
                    for start in range(first, last, _TILE_ROWS):
                        tile = slice(start, min(start + _TILE_ROWS, last))
                        rows = BatchRows(X[tile], self._y[tile], None)
                        model.add_gradient(wide_params, rows, part, self.pilot.backend)

        run_over_threads(add, len(starts), least=1)
        out = parts.sum(axis=0)
        # The model adds the negative losses to the last row (`_append_loss_row`).
        return -out[-1], out[:-1]

    @cached_property
    def _coordinates(self) -> list[Coordinates]:
        """Return the coordinates of each column."""
        pilot = self.pilot
        variance_floors = (INVERSE_CURVATURE * self.l2).tolist()
        return Coordinates.for_variance_floors(
            pilot.X,
            pilot.weight,
            centred=pilot.model.fit_intercept,
            turned=True,
            variance_floors=variance_floors,
        )

    def _make_objective(self, row_slice: slice) -> Callable[[Array, Array], tuple[Array, Array]]:
        """Return the function of losses and gradients of columns, each in its own coordinates."""
        coordinates = self._coordinates
        # Rows are stored once, in the coordinates of the least penalised column, where they are
        # longest; a small matrix maps each column's own coordinates to these.
        least_penalised = coordinates[int(np.argmin(self.l2))]
        Z, d = least_penalised.rows(self.pilot.X), self.pilot.model.n_penalised
        turns = np.stack([p.whitening for p in coordinates])  # type: ignore[misc]
        maps = least_penalised.back @ turns
        coefs = turns / least_penalised.scale[:, None]
        total = float(self._weight[row_slice].sum()) or 1.0

        def value(v: Array, columns: Array) -> tuple[Array, Array]:
            coefficients, l2 = v[:, :d, None], self.l2[columns]
            w = np.concatenate([(maps[columns] @ coefficients)[:, :, 0], v[:, d:]], axis=1).T
            losses, gradient = self._sum_losses(Z, row_slice, np.ascontiguousarray(w))
            losses, gradient = losses / total, np.ascontiguousarray(gradient.T) / total
            coef = coefs[columns] @ coefficients
            # Chain rule through the column's map, and the l2 penalty's part.
            own_gradient = np.swapaxes(maps[columns], 1, 2) @ gradient[:, :d, None]
            own_gradient += l2[:, None, None] * (np.swapaxes(coefs[columns], 1, 2) @ coef)
            gradient[:, :d] = own_gradient[:, :, 0]
            return losses + l2 / 2 * (coef[:, :, 0] ** 2).sum(axis=1), gradient

        return value

    def _step_through(
        self, optimizer: Optimizer, w: Array, opt_state: dict[str, Array], rates: Array, batch: int,
        first: int, columns: Array,
    ) -> tuple[Array, dict[str, Array]]:  # fmt: skip
        """Step through the batches from row `first` on; return parameters and optimizer state."""
        pilot, k = self.pilot, self.pilot.model.n_penalised
        w, opt_state = w.copy(), {name: array.copy() for name, array in opt_state.items()}
        l2, rate = (a.astype(w.dtype)[None, :] for a in (self.l2[columns], rates))
        state = w, *map(opt_state.__getitem__, optimizer.state_names)
        move = lift_to_arrays(type(optimizer).elementwise_update, np)
        starts = list_trial_starts(first, pilot.n_rows, batch, len(w))
        model, wide_params = self._wide_model(len(columns)), _append_loss_row(w)
        with np.errstate(all="ignore"):
            for number, start in enumerate(starts, 1):
                batch_rows = slice(start, min(start + batch, pilot.n_rows))
                wide_params[:-1] = w
                out = np.zeros_like(wide_params)
                rows = BatchRows(pilot.X[batch_rows], self._y[batch_rows], None)
                model.add_gradient(wide_params, rows, out, pilot.backend)
                gradient = out[:-1] / w.dtype.type(batch_rows.stop - batch_rows.start)
                gradient[:k] += l2 * w[:k]
                move(state, ..., gradient, rate, optimizer.coefficients(number))
        return w, opt_state


def _append_loss_row(w: Array) -> Array:
    """Return parameters with one more row, which receives the losses."""
    return np.concatenate([w, np.zeros_like(w[:1])])
