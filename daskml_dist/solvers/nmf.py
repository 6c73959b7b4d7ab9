"""Non-negative matrix factorisation ``X = W @ H.T``: components H from sums over the rows.

The weights W of a row depend on that row alone, so they are computed where the rows are.
:class:`NMFInitializer` computes the initial components. :class:`LeastSquaresNMF` solves for the
optimal weights of each row in every pass, and keeps none of them; the components take a few sweeps
of coordinate descent between two passes, and are then extrapolated. :class:`MultiplicativeNMF`
updates weights and components in turn. Its weights depend on those of the step before, so they are
kept with the rows (`RowState`); lost ones are computed again by repeating the steps.

References
----------
C. Boutsidis and E. Gallopoulos, "SVD based initialization: a head start for nonnegative matrix
factorization", Pattern Recognition 41(4), 2008. N. Gillis and F. Glineur, "Accelerated
multiplicative updates and hierarchical ALS algorithms for nonnegative matrix factorization",
Neural Computation 24(4), 2012. A. M. S. Ang and N. Gillis, "Accelerating nonnegative matrix
factorization algorithms using extrapolation", Neural Computation 31(2), 2019. C. Fevotte and J.
Idier, "Algorithms for nonnegative matrix factorization with the beta-divergence", Neural
Computation 23(9), 2011.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from scipy.special import ndtri

from daskml_dist.backends.base import Backend, is_sparse
from daskml_dist.backends.namespace import cast, namespace, total, zeros
from daskml_dist.backends.nonnegative import (
    descend_coordinates,
    residual_squares,
    solve_nonnegative,
)
from daskml_dist.errors import DivergedError, InvalidDataError
from daskml_dist.models.base import BatchRows
from daskml_dist.models.nonnegative import MultiplicativeUpdates, check_signs, multiply_by_ratio
from daskml_dist.solvers.base import Array, NestedSums, RowState, Solution, Solver, Statistic, Sums
from daskml_dist.solvers.principal_components import CovarianceEigenSolver, PowerIterations
from daskml_dist.solvers.rows import (
    map_entries,
    row_tiles,
    sum_of_rows,
    sum_of_squares,
    to_rows_dtype,
)

#: Most features for which singular vectors are computed from the Gram matrix, in one pass.
_MAX_GRAM_FEATURES = 512
#: Entries of singular vectors below this count as 0, as in scikit-learn.
_ZERO_BELOW = 1e-6
#: Most numbers in the history of components (128 MiB), since statistics carry it to the trainers.
_MAX_HISTORY_NUMBERS = 1 << 24
#: Most steps, and relative change at convergence, of weights computed from one set of components.
_ANCHOR_STEPS, _ANCHOR_TOL = 100, 1e-3
#: Steps from one evaluation of the error to the next, as in scikit-learn.
_STEPS_PER_CHECK = 10
#: Components below this count as 0 if beta is at most 1, as in scikit-learn.
_ZERO_COMPONENT = float(np.finfo(np.float64).eps)
#: Bytes of a tile of a dense block (1 MiB): a processor's cache holds it for both products.
_PIECE_BYTES = 1 << 20
#: Most coordinate descent sweeps over the weights of a row. Their tolerance is this share of the
#: components' relative projected gradient, clipped to a maximum and a minimum.
_MAX_WEIGHT_SWEEPS, _SLOPE_SHARE, _MAX_WEIGHT_TOL, _MIN_WEIGHT_TOL = 200, 1e-2, 1e-3, 1e-7
#: Coordinate descent sweeps over the components between two sums.
_COMPONENT_SWEEPS = 3
#: Extrapolation factor: initial value, growth, growth of its upper bound, and divisor after a step
#: that increased the error (Ang and Gillis 2019).
_FIRST_EXTRAPOLATION, _EXTRAPOLATION_GROWTH = 0.5, 1.05
_BOUND_GROWTH_RATE, _EXTRAPOLATION_SHRINK = 1.01, 1.5


def _multiply_by_weight(values: Any, weight: Any | None) -> Any:
    """Return an array with each row multiplied by its weight; None: unchanged."""
    return values if weight is None else values * cast(weight, values.dtype)[:, None]


@dataclass(frozen=True, eq=False)
class EntryTotals(Statistic):
    """Weighted sums of all entries and of their squares, and the number of zeros.

    Parameters
    ----------
    counts : bool, default=False
        Whether zeros are counted.
    signed : bool, default=False
        Whether negative entries are allowed.
    """

    counts: bool = False
    signed: bool = False
    in_parts: ClassVar[bool] = True
    #: The sum of squares includes all entries.
    shows_not_finite = True

    def shape(self, model: Any) -> tuple[int, ...]:
        return (3,)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> None:
        # The solver sees an overflow in the sums.
        with np.errstate(over="ignore", invalid="ignore"):
            for tile in row_tiles(rows.X, backend):
                part = rows.part(tile, backend)
                if not self.signed:
                    check_signs(part.X)
                out[0] += sum_of_rows(part.X, part.weight, backend)
                out[1] += sum_of_squares(part.X, part.weight, backend)
                if self.counts:
                    is_positive = map_entries(lambda entries: entries > 0, part.X)
                    n_entries = part.X.shape[0] * part.X.shape[1]
                    out[2] += n_entries - sum_of_rows(is_positive, None, backend)


@dataclass(frozen=True, eq=False)
class SignedNorms(Statistic):
    """Squared norms of the positive and of the negative part of ``X @ vectors``, column by column.

    Parameters
    ----------
    vectors : ndarray of shape (n_features, k)
    """

    vectors: Array
    in_parts: ClassVar[bool] = True

    def shape(self, model: Any) -> tuple[int, ...]:
        return 2, self.vectors.shape[1]

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> None:
        vectors = to_rows_dtype(self.vectors, rows.X, backend)
        for tile in row_tiles(rows.X, backend):
            part = rows.part(tile, backend)
            products = cast(backend.dot(part.X, vectors), out.dtype)
            products = namespace(products).reshape(products, (-1, vectors.shape[1]))
            squares = _multiply_by_weight(products * products, part.weight)
            positive = cast(products > 0, out.dtype)
            out[0, :] += total(squares * positive, axis=0)
            out[1, :] += total(squares * (1 - positive), axis=0)


@dataclass(frozen=True, eq=False)
class InitialWeights(RowState):
    """Initial weights of the components in each row.

    Parameters
    ----------
    n_components : int
    vectors : ndarray of shape (n_features, k), or None
        The weights are ``max(X @ vectors, 0)``; the first column is ``abs(X @ vectors[:, 0])``,
        since the first pair of singular vectors has one sign. None: all weights are `fill`, or
        random.
    fill : float
        Replaces weights of 0.
    spread : float
        If not 0, weights of 0 become `spread` times the absolute value of a normal number instead.
    seed : int
        Seed of the random numbers, which also depend on the rows' positions in their blocks.
    is_custom : bool
        Whether the weights are the rows' targets (init="custom").
    """

    n_components: int
    vectors: Array | None = None
    fill: float = 0.0
    spread: float = 0.0
    seed: int = 0
    is_custom: bool = False
    name: ClassVar[str] = "weights"

    def make(self, model: Any, rows: BatchRows, backend: Backend) -> Any:
        """Return the initial weights of some rows."""
        n, k = rows.X.shape[0], self.n_components
        if self.is_custom:
            return to_rows_dtype(np.ones(1), rows.X, backend) * namespace(rows.y).reshape(
                rows.y, (n, k)
            )
        filling = np.full((n, k), self.fill)
        if self.spread:
            stream = np.random.PCG64(np.random.SeedSequence((self.seed, rows.block + 1)))
            # Skip the draws of the block's rows before, one number of 64 bits for each weight.
            stream.advance(rows.first * k)
            uniform = np.random.Generator(stream).random((n, k))
            # Quantiles of the half-normal distribution.
            filling = self.spread * ndtri((1 + uniform) / 2)
        filling = to_rows_dtype(filling, rows.X, backend)
        if self.vectors is None:
            return filling
        xp = namespace(filling)
        weights = backend.dot(rows.X, to_rows_dtype(self.vectors, rows.X, backend))
        weights = xp.reshape(weights, (n, k))
        weights[:, 0] = xp.abs(weights[:, 0])
        return xp.where(weights < _ZERO_BELOW, filling, weights)


@dataclass(frozen=True)
class NMFInitializer:
    """Initialisation of components and weights.

    Parameters
    ----------
    n_components : int
    init : str
        As of NMF; "custom": the components are the `start` given to the solver.
    seed : int
    drawn : ndarray of shape (n_features, n_components) or None
        Normal numbers, for "random".
    scale : float
        Mean weight of a row as given by the user; the engine scales it to 1.
    """

    n_components: int
    init: str
    seed: int
    drawn: Array | None = None
    scale: float = 1.0

    def max_passes(self, d: int) -> int:
        """Return the largest number of passes over the rows, of `d` features."""
        return 2 + max(1, self._singular_solver(d).max_passes)

    def totals(self, sums: Sums, *, counts: bool = False) -> tuple[float, float]:
        """Return the sum of all entries, and the number of zeros (0 unless `counts`)."""
        entries, squares, n_zeros = sums(EntryTotals(counts)).tolist()
        if not np.isfinite(squares):
            raise DivergedError(
                "The squares of the rows overflow. Scale the features (MaxAbsScaler), or use "
                "float64."
            )
        if not entries:
            raise InvalidDataError(
                "X holds only zeros: there is nothing to factorise. Check how it was made."
            )
        return entries, n_zeros

    def __call__(
        self, model: Any, sums: Sums, start: Array | None, mean: float
    ) -> tuple[Array, InitialWeights]:
        """Return components of shape (n_features, k), and the initial weights.

        `mean` is the mean of all entries.
        """
        k = self.n_components
        first = InitialWeights(k, seed=self.seed)
        if self.init == "custom":
            assert start is not None
            return start, replace(first, is_custom=True)
        if self.init == "random":
            assert self.drawn is not None
            scale = float(np.sqrt(mean / k))
            return scale * np.abs(self.drawn), replace(first, spread=scale)
        H, vectors = self._split_singular_vectors(model, sums)
        fill = mean if self.init == "nndsvda" else 0.0
        spread = mean / 100 if self.init == "nndsvdar" else 0.0
        filling: Any = fill
        if spread:
            filling = spread * np.abs(np.random.default_rng(self.seed).standard_normal(H.shape))
        return np.where(H < _ZERO_BELOW, filling, H), replace(
            first, vectors=vectors, fill=fill, spread=spread
        )

    def _singular_solver(self, d: int) -> Solver:
        """Return the solver of the singular vectors of rows with `d` features."""
        k = self.n_components
        if d <= _MAX_GRAM_FEATURES:
            return CovarianceEigenSolver(k, double=True, centred=False)
        return PowerIterations(k, 10, n_iter=3, centred=False, seed=self.seed)

    def _split_singular_vectors(self, model: Any, sums: Sums) -> tuple[Array, Array]:
        """Return components by NNDSVD (Boutsidis and Gallopoulos 2008), and `vectors` for weights.

        The left singular vectors have an entry a row, and are not computed: those of a row, and so
        its weights, are ``X @ V / values``.
        """
        k = self.n_components
        solution = self._singular_solver(model.n_features).solve(model, NestedSums(sums), None)
        V, weight = solution.w[:k], sums.n_rows * self.scale
        values = np.sqrt(solution.extra["values"][:k] * weight)
        with np.errstate(divide="ignore", invalid="ignore"):
            norms = self.scale * sums(SignedNorms(np.ascontiguousarray(V.T)))
            # Norms of the positive and of the negative part of each left singular vector.
            left_norms = np.sqrt(norms) / values
        # Vectors of singular values that are 0 but for rounding are left out.
        left_norms[:, ~(values > values[0] * 1e-12)] = 0.0
        halves = np.stack([np.maximum(V, 0), np.maximum(-V, 0)])
        right_norms = np.linalg.norm(halves, axis=2)
        sizes = left_norms * right_norms
        # Of each pair, keep the positive or the negative parts: those with the larger product of
        # norms.
        side = (sizes[1] >= sizes[0]).astype(int)
        chosen = side, np.arange(k)
        size, left_norm, right_norm = sizes[chosen], left_norms[chosen], right_norms[chosen]
        length = np.sqrt(values * size)
        H = halves[chosen]
        with np.errstate(divide="ignore", invalid="ignore"):
            H *= np.where(size > 0, length / right_norm, 0.0)[:, None]
            scale = np.where(size > 0, length / (left_norm * values), 0.0)
        # The first pair has one sign throughout (Perron-Frobenius).
        H[0] = np.sqrt(values[0]) * np.abs(V[0])
        scale[0] = 1 / np.sqrt(values[0])
        sign = np.where(side == 1, -1.0, 1.0)
        weights = V * (sign * scale)[:, None]
        return np.ascontiguousarray(H.T), np.ascontiguousarray(weights.T)


@dataclass(frozen=True)
class NonnegativeSolver(Solver):
    """Base class of the solvers of non-negative matrix factorisation.

    Parameters
    ----------
    begin : NMFInitializer
    max_iter : int
    tol : float
        Tolerance of the solver's own stopping rule.
    l1_rows, l2_rows, l1, l2 : float
        Penalties on the weights of a row, and, for each row, on the components.
    n_features : int
    """

    begin: NMFInitializer
    max_iter: int
    tol: float
    l1_rows: float
    l2_rows: float
    l1: float
    l2: float
    n_features: int

    #: Passes besides initialisation and iterations.
    _n_extra_passes: ClassVar[int] = 0

    @property
    def max_passes(self) -> int:
        """Return the passes of initialisation, iterations and final sums."""
        return self.begin.max_passes(self.n_features) + self.max_iter + self._n_extra_passes


@dataclass(frozen=True, eq=False)
class LeastSquaresWeights(Statistic):
    """``X.T @ W``, ``W.T @ W`` and the error, for the optimal weights W of the rows.

    The error is half the squared reconstruction error plus the penalties on W, without the constant
    half of the rows' squared norm.

    Parameters
    ----------
    across : ndarray of shape (n_features, k)
        The components.
    l1, l2 : float
        As of :func:`solve_row_weights`.
    sweeps : int
        Most sweeps over the weights of a row.
    tol : float
    only_error : bool
        Whether the result is only the error, and that half the squared reconstruction error.
    """

    across: Array
    l1: float = 0.0
    l2: float = 0.0
    sweeps: int = _MAX_WEIGHT_SWEEPS
    tol: float = _MAX_WEIGHT_TOL
    only_error: bool = False
    in_parts: ClassVar[bool] = True

    def shape(self, model: Any) -> tuple[int, ...]:
        d, k = (0, 0) if self.only_error else self.across.shape
        return d + k + 1, max(k, 1)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> None:
        across = to_rows_dtype(self.across, rows.X, backend)
        gram = across.T @ across
        sparse, error = is_sparse(rows.X), 0.0
        for tile in row_tiles(rows.X, backend, cached=_PIECE_BYTES):
            part = rows.part(tile, backend)
            products = backend.dot(part.X, across)
            products = namespace(across).reshape(products, (part.X.shape[0], across.shape[1]))
            W = solve_row_weights(gram, products, self.l1, self.l2, self.sweeps, self.tol)
            weighted = _multiply_by_weight(W, part.weight)
            if self.only_error and not sparse:
                squares = residual_squares(part.X, W, across, backend)
                error = error + total(_multiply_by_weight(squares[:, None], part.weight)) / 2
                continue
            squares = cast(weighted.T @ W, out.dtype)
            error = error + self._partial_error(gram, products, W, weighted, squares, out.dtype)
            if self.only_error:
                error = error + sum_of_squares(part.X, part.weight, backend) / 2
            else:
                backend.add_tdot(part.X, weighted, out[: across.shape[0], ...])
                out[across.shape[0] : -1, ...] += squares
        out[-1, 0] += error

    def _partial_error(
        self, gram: Any, products: Any, W: Any, weighted: Any, squares: Any, dtype: Any
    ) -> Any:
        """Return the error of some rows, without half their squared norm.

        ``|X - W H'|^2 / 2 - |X|^2 / 2 = <H'H, W'W> / 2 - <X H, W>``; `products` is ``X H``.
        """
        inner = total(cast(gram, dtype) * squares) / 2 - total(cast(weighted * products, dtype))
        if self.only_error:
            return inner
        penalty = self.l1 * total(cast(weighted, dtype)) + self.l2 / 2 * total(
            cast(weighted * W, dtype)
        )
        return inner + penalty


def solve_row_weights(
    gram: Any, products: Any, l1: float, l2: float, sweeps: int, tol: float
) -> Any:
    """Return the non-negative weights of rows that minimise squared error plus penalty.

    Parameters
    ----------
    gram : array of shape (k, k)
        Gram matrix of the components.
    products : array of shape (n, k)
        Products of rows and components.
    l1, l2 : float
        Penalties on the weights.
    sweeps : int
        Most sweeps of coordinate descent.
    tol : float
    """
    if l2:
        gram = gram + zeros(tuple(gram.shape), gram.dtype, like=gram)
        for t in range(gram.shape[0]):
            gram[t, t] += l2
    return solve_nonnegative(gram, products - l1 if l1 else products, sweeps, tol)


@dataclass(frozen=True)
class LeastSquaresNMF(NonnegativeSolver):
    """Solver that minimises the squared error by alternating least squares, with extrapolation.

    Its parameters are those of its base. It ends when the L1 norm of the components' projected
    gradient is at most `tol` times its first value.
    """

    name = "cd"
    _n_extra_passes = 1  # the final error

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Return the components, of shape (n_features, k)."""
        descent = (
            _DescentState(sums.kept)
            if sums.kept is not None
            else self._start_state(model, sums, start)
        )
        while descent.n_iter < self.max_iter and not descent.has_converged and not sums.should_stop:
            self._take_step(descent, sums)
            if descent.n_iter < self.max_iter and not descent.has_converged:
                sums.keep(descent.H, descent.state, extra={"error": np.nan})
        error = float(
            sums(self._make_request(descent.H, descent.weight_tol, only_error=True))[-1, 0]
        )
        message = "the components are still changing"
        return Solution(
            descent.H,
            descent.n_iter,
            descent.has_converged or not self.tol,
            message,
            {"error": error},
        )

    def _start_state(self, model: Any, sums: Sums, start: Array | None) -> _DescentState:
        """Return the initial components, to be evaluated at an infinite error."""
        entries, _ = self.begin.totals(sums)
        mean = entries / (sums.n_rows * model.n_features)
        H, _ = self.begin(model, sums, start, mean)
        extrapolation = np.array([_FIRST_EXTRAPOLATION, 1.0, _FIRST_EXTRAPOLATION])
        return _DescentState(
            {
                "H": H,
                "ahead": H,
                "way": extrapolation,
                "seen": np.array([np.inf, np.nan, _MAX_WEIGHT_TOL, 0]),
            }
        )

    def _make_request(self, across: Array, tol: float, **options: bool) -> LeastSquaresWeights:
        return LeastSquaresWeights(across, self.l1_rows, self.l2_rows, tol=tol, **options)

    def _take_step(self, descent: _DescentState, sums: Sums) -> None:
        """Update the components by one sum, or reject an extrapolation that increased the error."""
        ahead, n = descent.ahead, sums.n_rows
        d, k = ahead.shape
        step_sums = sums(self._make_request(ahead, descent.weight_tol))
        descent.n_iter += 1
        error = float(step_sums[-1, 0]) + n * float(
            self.l1 * ahead.sum() + self.l2 / 2 * (ahead * ahead).sum()
        )
        # The extrapolated point was worse: restart from the components, and extrapolate less.
        if error > descent.error:
            descent.retreat()
            return
        descent.error = error
        gram = step_sums[d:-1] + n * self.l2 * np.eye(k)
        # Gradient of half the squared error with respect to the components, with penalties.
        gradient = ahead @ gram - (step_sums[:d] - n * self.l1)
        # Projected gradient: at zero only negative entries count.
        norm = float(np.abs(np.where(ahead > 0, gradient, np.minimum(gradient, 0.0))).sum())
        if np.isnan(descent.first_norm):
            descent.first_norm = norm
        # Inexact alternating least squares: the weights need no more accuracy than the components.
        descent.weight_tol = min(
            _MAX_WEIGHT_TOL, max(_MIN_WEIGHT_TOL, _SLOPE_SHARE * norm / (descent.first_norm or 1.0))
        )
        if norm <= self.tol * descent.first_norm:
            descent.H, descent.has_converged = ahead, True
            return
        # Coordinate descent over the columns of the components (HALS; Gillis and Glineur): a few
        # sweeps cost no pass over the rows.
        components = ahead.copy()
        descend_coordinates(gram, gradient, components, _COMPONENT_SWEEPS, 0.0)
        descent.accept(components)


class _DescentState:
    """Components, and the extrapolated point that is evaluated next (Ang and Gillis 2019).

    Parameters
    ----------
    state : dict from str to ndarray
        As :meth:`state` returns.
    """

    def __init__(self, state: dict[str, Array]) -> None:
        #: The components and the extrapolated point, of shape (n_features, k).
        self.H, self.ahead = state["H"], state["ahead"]
        #: Extrapolation factor, its upper bound, and the last accepted factor.
        self.factor, self.bound, self.accepted = state["way"].tolist()
        self.error, self.first_norm, self.weight_tol, n_iter = state["seen"].tolist()
        self.n_iter = int(n_iter)
        self.has_converged = False

    def accept(self, components: Array) -> None:
        """Take new components, and extrapolate beyond them."""
        # Extrapolate, but not below zero.
        self.ahead = np.maximum(components + self.factor * (components - self.H), 0.0)
        self.H, self.accepted = components, self.factor
        self.bound = min(1.0, _BOUND_GROWTH_RATE * self.bound)
        self.factor = min(self.bound, _EXTRAPOLATION_GROWTH * self.factor)

    def retreat(self) -> None:
        """Reject the extrapolated point: evaluate the components themselves next."""
        self.ahead, self.error = self.H, np.inf
        self.bound, self.factor = self.accepted, self.factor / _EXTRAPOLATION_SHRINK

    def state(self) -> dict[str, Array]:
        """Return a snapshot as arrays by name, for checkpoints."""
        return {
            "H": self.H,
            "ahead": self.ahead,
            "way": np.array([self.factor, self.bound, self.accepted]),
            "seen": np.array([self.error, self.first_norm, self.weight_tol, self.n_iter]),
        }


@dataclass(frozen=True, eq=False)
class StepWeights(InitialWeights):
    """Weights of the components in each row after some multiplicative steps.

    Parameters
    ----------
    beta, l1, l2 : float
        As of :class:`MultiplicativeUpdates`.
    anchor : ndarray of shape (n_features, k), or None
        Components for which the weights before the first step of the history are optimal. None:
        they are the initial weights.
    history : tuple of ndarray of shape (n_features, k), or None
        Components of each step since, by which lost weights are recomputed. None: they are not
        sent, and lost weights become NaN.
    """

    beta: float = field(default=2.0, kw_only=True)
    l1: float = field(default=0.0, kw_only=True)
    l2: float = field(default=0.0, kw_only=True)
    anchor: Array | None = field(default=None, kw_only=True)
    history: tuple[Array, ...] | None = field(default=(), kw_only=True)

    def updates(self, across: Array, X: Any, backend: Backend) -> MultiplicativeUpdates:
        """Return the update rule of the weights of some rows."""
        across = to_rows_dtype(across, X, backend)
        return MultiplicativeUpdates(across, self.beta, self.l1, self.l2, backend)

    def make(self, model: Any, rows: BatchRows, backend: Backend) -> Any:
        """Return the current weights of some rows, recomputed by repeating all steps."""
        if self.history is None:
            shape = rows.X.shape[0], self.n_components
            return to_rows_dtype(np.full(shape, np.nan), rows.X, backend)
        if self.anchor is None:
            W = super().make(model, rows, backend)
        else:
            W = to_rows_dtype(np.zeros((rows.X.shape[0], self.n_components)), rows.X, backend)
            updates = self.updates(self.anchor, rows.X, backend)
            for tile in row_tiles(rows.X, backend, cached=_PIECE_BYTES):
                X = updates.rows(backend.borrow_rows(rows.X, tile))
                W[tile, ...] = updates.settled(X, _ANCHOR_STEPS, _ANCHOR_TOL)
        # The steps are deterministic, so the weights have the same bits as before the loss.
        for across in self.history:
            updates = self.updates(across, rows.X, backend)
            for tile in row_tiles(rows.X, backend, cached=_PIECE_BYTES):
                W[tile, ...] = updates.step(
                    updates.rows(backend.borrow_rows(rows.X, tile)), W[tile, ...]
                )
        return W


@dataclass(frozen=True, eq=False)
class MultiplicativeStep(Statistic):
    """Multiplicative step of the weights, and sums for that of the components.

    The sums are the numerators of shape (n_features, k) of the components' step, its denominators
    (for beta 1 and 2 smaller sums from which the solver computes them), a row with the error before
    the step, and a row with the number of rows whose weights are lost.

    Parameters
    ----------
    across : ndarray of shape (n_features, k)
        The components.
    weights : StepWeights
    recomputes : bool
        Whether all weights are recomputed first.
    looks : bool
        Whether to compute the error.
    steps : bool
        Whether to take a step.
    """

    across: Array
    weights: StepWeights
    recomputes: bool = False
    looks: bool = False
    steps: bool = True
    in_parts: ClassVar[bool] = True

    @property
    def state(self) -> StepWeights:
        """Return the weights of the rows."""
        return self.weights

    def shape(self, model: Any) -> tuple[int, ...]:
        d, k = self.across.shape
        n_denominator_rows = {2.0: k, 1.0: 1}.get(self.weights.beta, d)
        return d + n_denominator_rows + 2, k

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> None:
        if self.recomputes:
            rows.state[...] = self.weights.make(model, rows, backend)
        updates = self.weights.updates(self.across, rows.X, backend)
        # The solver sees an overflow in the sums.
        with np.errstate(over="ignore", invalid="ignore"):
            for tile in row_tiles(rows.X, backend, cached=_PIECE_BYTES):
                self._add_step(rows.part(tile, backend), updates, out)

    def _add_step(self, rows: BatchRows, updates: MultiplicativeUpdates, out: Any) -> None:
        """Take the step of some rows, and add their sums."""
        W, X = rows.state, updates.rows(rows.X)
        xp, d = namespace(W), updates.across.shape[0]
        # NaN stands for lost weights (`StepWeights.make`).
        if bool(xp.any(xp.isnan(W))):
            out[-1, 0] += W.shape[0]
            return
        if self.looks:
            errors = updates.errors(X, W)
            weight = None if rows.weight is None else cast(rows.weight, errors.dtype)
            out[-2, 0] += total(cast(errors if weight is None else errors * weight, out.dtype))
        if not self.steps:
            return
        W[...] = updates.step(X, W)
        weighted = _multiply_by_weight(W, rows.weight)
        updates.add_shares(X, W, weighted, out[:d, ...], out[d:-2, ...])


@dataclass(frozen=True)
class MultiplicativeNMF(NonnegativeSolver):
    """Solver that minimises a beta-divergence by multiplicative updates (Fevotte and Idier 2011).

    Its other parameters are those of its base. It ends when the error falls by less than `tol`
    times the first error in ten steps.

    Parameters
    ----------
    beta : float
    """

    name = "mu"
    beta: float
    _n_extra_passes = 3  # a step that is repeated with its history, and the final error

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Return the components, of shape (n_features, k)."""
        progress = (
            self._start_state(model, sums, start)
            if sums.kept is None
            else self._restored_state(sums.kept)
        )
        while progress.n_iter < self.max_iter and not sums.should_stop:
            if self._step_or_settle(progress, sums):
                break
            sums.keep(progress.H, progress.state, extra={"error": np.nan})
        settled = progress.settled or not self.tol
        if not progress.settled:
            progress.error = float(self._sum_step(progress, sums, looks=True, steps=False)[-2, 0])
        message = "the error is still falling"
        return Solution(progress.H, progress.n_iter, settled, message, {"error": progress.error})

    def _start_state(self, model: Any, sums: Sums, start: Array | None) -> _UpdateState:
        entries, zeros = self.begin.totals(sums, counts=self.beta <= 0)
        d = model.n_features
        if zeros:
            raise InvalidDataError(
                "When beta_loss <= 0 and X contains zeros, the solver may diverge. Add small "
                'values to X, or use a positive beta_loss ("kullback-leibler").'
            )
        H, first = self.begin(model, sums, start, entries / (sums.n_rows * d))
        return _UpdateState(H, self._step_weights(first))

    def _step_weights(self, first: InitialWeights) -> StepWeights:
        """Return the weights before the first step."""
        settings: dict[str, Any] = {"beta": self.beta, "l1": self.l1_rows, "l2": self.l2_rows}
        return StepWeights(**vars(first), **settings)

    def _restored_state(self, state: dict[str, Array]) -> _UpdateState:
        fill, spread, seed, is_given = state["first"].tolist()
        first = InitialWeights(
            self.begin.n_components,
            _array_or_none(state["vectors"]),
            fill,
            spread,
            int(seed),
            bool(is_given),
        )
        return _UpdateState(state["H"], self._step_weights(first), state)

    def _step_or_settle(self, progress: _UpdateState, sums: Sums) -> bool:
        """Take a step, and return whether the fit has converged instead."""
        looks = bool(self.tol) and progress.n_iter % _STEPS_PER_CHECK == 0
        step_sums = self._sum_step(progress, sums, looks=looks)
        if looks:
            error = float(np.sqrt(2 * max(0.0, step_sums[-2, 0])))
            # scikit-learn's rule: the error fell by less than `tol` of the first error.
            if progress.n_iter and progress.last - error < self.tol * progress.first:
                progress.settled, progress.error = True, float(step_sums[-2, 0])
                return True
            progress.first, progress.last = error if not progress.n_iter else progress.first, error
        progress.advance(self._update_components(progress.H, step_sums, sums.n_rows))
        return False

    def _sum_step(
        self, progress: _UpdateState, sums: Sums, *, looks: bool, steps: bool = True
    ) -> Array:
        """Return the sums of a step; repeat the request with the history if weights were lost."""
        with_history = progress.with_history or progress.fresh
        step_sums = sums(
            MultiplicativeStep(
                progress.H, progress.weights_for(with_history), progress.fresh, looks, steps
            )
        )
        if step_sums[-1, 0] and not with_history:
            progress.with_history = True
            step_sums = sums(
                MultiplicativeStep(progress.H, progress.weights_for(True), True, looks, steps)
            )
        progress.fresh = False
        if step_sums[-1, 0] or not np.isfinite(step_sums).all():
            raise DivergedError(
                "The updates overflow. Scale the features (MaxAbsScaler), or use float64."
            )
        return step_sums

    def _update_components(self, H: Array, step_sums: Array, n_rows: int) -> Array:
        """Return the components after a multiplicative step."""
        d = len(H)
        # beta 2: H W'W; beta 1: the sums of each component's weights; otherwise the sum itself.
        if self.beta == 2:
            denominator = H @ step_sums[d:-2]
        elif self.beta == 1:
            denominator = np.where(step_sums[d] == 0, 1.0, step_sums[d])[None, :]
        else:
            denominator = step_sums[d:-2]
        l1, l2 = n_rows * self.l1, n_rows * self.l2
        # An overflow shows in the next sums.
        with np.errstate(over="ignore", invalid="ignore"):
            components: Array = multiply_by_ratio(H, step_sums[:d], denominator, self.beta, l1, l2)
        return (
            np.where(components < _ZERO_COMPONENT, 0.0, components)
            if self.beta <= 1
            else components
        )


class _UpdateState:
    """Components, and the history from which lost weights are recomputed.

    Parameters
    ----------
    H : ndarray of shape (n_features, k)
    weights : StepWeights
        Initial weights.
    state : dict from str to ndarray, optional
        As :meth:`state` returns.
    """

    def __init__(
        self, H: Array, weights: StepWeights, state: dict[str, Array] | None = None
    ) -> None:
        self.H, self._first = H, weights
        self._anchor: Array | None = None
        self._history: list[Array] = []
        #: Errors before the first step, at the last check, and at the end.
        self.first = self.last = self.error = np.nan
        self.n_iter = 0
        self.settled = False
        #: Whether requests carry the history (once weights were lost), and whether the next one
        #: recomputes all weights.
        self.with_history, self.fresh = False, state is None
        if state is not None:
            self._anchor, self._history = _array_or_none(state["anchor"]), list(state["history"])
            self.first, self.last, n_iter, with_history, fresh = state["course"].tolist()
            self.n_iter, self.fresh = int(n_iter), bool(fresh)
            self.with_history = bool(with_history)

    def weights_for(self, with_history: bool) -> StepWeights:
        """Return the weights before the next step, with the history if `with_history`."""
        first = self._first
        if with_history:
            return replace(first, anchor=self._anchor, history=tuple(self._history))
        settings: dict[str, Any] = {"beta": first.beta, "l1": first.l1, "l2": first.l2}
        return StepWeights(first.n_components, history=None, **settings)

    def advance(self, H: Array) -> None:
        """Take the components after a step, and add those before it to the history."""
        self._history.append(self.H)
        self.H = H
        self.n_iter += 1
        # A history too large to be sent is dropped: the next request recomputes all weights from
        # only the last components.
        if (len(self._history) + 1) * H.size > _MAX_HISTORY_NUMBERS:
            self._anchor, self._history, self.fresh = H, [], True

    def state(self) -> dict[str, Array]:
        """Return a snapshot as arrays by name, for checkpoints."""
        first, no_array = self._first, np.empty((0, 0))
        course = [self.first, self.last, self.n_iter, self.with_history, self.fresh]
        return {
            "H": self.H,
            "vectors": no_array if first.vectors is None else first.vectors,
            "first": np.array([first.fill, first.spread, first.seed, first.is_custom], float),
            "anchor": no_array if self._anchor is None else self._anchor,
            "history": np.array(self._history) if self._history else np.empty((0, *self.H.shape)),
            "course": np.array(course, float),
        }


def _array_or_none(array: Array) -> Array | None:
    """Return None for an empty array, which stands for None in a snapshot."""
    return array if array.size else None
