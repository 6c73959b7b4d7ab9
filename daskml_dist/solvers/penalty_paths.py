"""Least squares for many penalties and splits from few passes over the rows.

The rows of a split are reduced to a small problem (`least_squares.reduce_rows`), from which
coefficients for every penalty follow without the rows: by one singular value decomposition
(:func:`solve_ridge_path`) or by coordinate descent (:func:`solve_elastic_path`). One pass reduces
all splits of a cross-validation (:class:`FoldedReduction`), and one scores their paths
(:class:`PathErrorSums`, :class:`PathHits`). :class:`LeaveOneOutRidge` scores each row by the model
fitted without it, in closed form.

References
----------
D. M. Allen, "The relationship between variable selection and data augmentation and a method for
prediction", Technometrics 16, 1974 (PRESS, the leave-one-out errors). J. Friedman, T. Hastie and
R. Tibshirani, "Regularization paths for generalized linear models via coordinate descent", Journal
of Statistical Software 33, 2010.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import linalg

from daskml_dist.backends.base import Backend
from daskml_dist.backends.namespace import cast, is_host, namespace, total
from daskml_dist.models.base import BatchRows, r2_of_sums
from daskml_dist.models.batched import BatchedLinear
from daskml_dist.solvers.base import Array, NestedSums, Solution, Solver, Statistic, Sums
from daskml_dist.solvers.batched_gradients import PerSplitStatistic, iterate_split_rows
from daskml_dist.solvers.batched_solver import BatchedSolver, Candidate
from daskml_dist.solvers.least_squares import (
    MAX_REDUCTION_PASSES,
    SINGULAR_CUTOFF,
    ReducedProblem,
    SecondMoments,
    follow_elastic_path,
    reduce_rows,
)
from daskml_dist.solvers.rows import row_tiles, to_dense_float64, to_rows_dtype

#: Raw predictions of a tile (512 KiB of float64, a core's L2 cache), and the fewest rows of a tile,
#: so that a product takes longer than its call.
_TILE_ENTRIES, _MIN_TILE_ROWS = 1 << 16, 64
#: Smallest strength (scikit-learn's), for features that are uncorrelated with the target.
_MIN_ALPHA = float(np.finfo(np.float64).resolution)


def solve_ridge_path(reduced: ReducedProblem, alphas: Array) -> Array:
    """Return ridge coefficients, of shape (n_alphas, n_features, n_targets).

    `alphas` are penalties of the sum over rows.
    """
    # With R = U diag(s) V', the solution is V diag(s / (s^2 + alpha)) U' z: only the shrinkage
    # depends on alpha. Singular values that are rounding errors count as 0.
    U, values, Vt = linalg.svd(reduced.R, full_matrices=False)
    values = np.where(values > SINGULAR_CUTOFF * values.max(initial=0.0), values, 0.0)
    shrunk = np.zeros((len(alphas), len(values)))
    np.divide(
        values, values**2 + np.asarray(alphas)[:, None], out=shrunk, where=values[None, :] > 0
    )
    products = U.T @ reduced.z
    return np.asarray(Vt.T @ (shrunk[:, :, None] * products))


def append_intercepts(reduced: ReducedProblem, coefs: Array) -> Array:
    """Append intercepts below coefficients of shape (..., n_features, n_targets)."""
    intercept = reduced.y_mean - reduced.x_mean @ coefs
    return np.concatenate([coefs, intercept[..., None, :]], axis=-2)


def solve_elastic_path(
    reduced: ReducedProblem,
    n_rows: float,
    alphas: Array,
    l1_ratio: float,
    tol: float,
    **options: Any,
) -> tuple[Array, bool]:
    """Return the coefficients for each strength, (n_alphas, n_features), and whether all converged.

    Coordinate descent on the Gram matrix of a problem of one target, from each strength to the
    next; `tol` and `options` are those of :func:`follow_elastic_path`.
    """
    R, z = reduced.R / np.sqrt(n_rows), reduced.z[:, 0] / np.sqrt(n_rows)
    square = float(reduced.y_squares[0]) / n_rows
    coefs, gaps, _ = follow_elastic_path(
        R.T @ R, R.T @ z, square, alphas, l1_ratio=l1_ratio, tol=tol, **options
    )
    return coefs.T, bool((gaps <= tol * square).all())


@dataclass(frozen=True, eq=False)
class LeaveOneOutErrors(Statistic):
    """Weighted squared leave-one-out errors of ridge, for each penalty and target.

    Parameters
    ----------
    w : ndarray of shape (n_alphas, n_features + fit_intercept, n_targets)
    x_mean : ndarray of shape (n_features,)
    basis : ndarray of shape (n_features, rank)
        Right singular vectors of the centred rows.
    shrunk : ndarray of shape (n_alphas, rank)
        ``1 / (s**2 + alpha)`` for the singular value `s` of each of them.
    intercept_leverage : float
        Leverage of a row of weight 1 by the intercept.
    """

    w: Array
    x_mean: Array
    basis: Array
    shrunk: Array
    intercept_leverage: float

    @classmethod
    def from_reduced(
        cls, reduced: ReducedProblem, alphas: Array, fit_intercept: bool, n_rows: float
    ) -> LeaveOneOutErrors:
        """Return the statistic for a reduced problem and penalties of the sum over rows."""
        coefs = solve_ridge_path(reduced, alphas)
        w = append_intercepts(reduced, coefs) if fit_intercept else coefs
        _, values, Vt = linalg.svd(reduced.R, full_matrices=False)
        is_kept = values > SINGULAR_CUTOFF * values.max(initial=0.0)
        shrunk = 1 / (values[is_kept] ** 2 + np.asarray(alphas)[:, None])
        share = 1 / n_rows if fit_intercept else 0.0
        return cls(w, reduced.x_mean, Vt[is_kept].T, shrunk, share)

    def shape(self, model: Any) -> tuple[int, ...]:
        """Return one number for each penalty and target."""
        return self.w.shape[0], self.w.shape[2]

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> None:
        """Add the squared errors of some rows, a tile at a time."""
        for tile in row_tiles(rows.X, backend, dense=True):
            part = rows.part(tile, backend)
            errors = self.errors(part.X, part.y, part.weight, backend)
            errors *= errors
            if part.weight is not None:
                errors *= cast(part.weight, errors.dtype)[:, None, None]
            out += total(errors, axis=0)

    def errors(self, X: Any, y: Any, weight: Any | None, backend: Backend) -> Any:
        """Return the errors of rows, of shape (n, n_alphas, n_targets), in float64."""
        to_device = backend.to_device
        rows, (n_alphas, n_params, n_targets) = to_dense_float64(X), self.w.shape
        xp, d = namespace(rows), rows.shape[1]
        # Leverage of a row x of weight u: u (1 / n + x' (X'X + alpha I)^-1 x), x centred; along the
        # singular vectors the inverse is diagonal.
        projected = (rows - to_device(self.x_mean)) @ to_device(self.basis)
        leverage = (projected * projected) @ to_device(
            self.shrunk.T.copy()
        ) + self.intercept_leverage
        if weight is not None:
            leverage *= cast(weight, xp.float64)[:, None]
        # Predictions for all penalties and targets as columns of one product.
        flat = np.moveaxis(self.w, 0, 1).reshape(n_params, -1)
        raw = rows @ to_device(flat[:d].copy())
        if n_params > d:
            raw += to_device(flat[d].copy())
        raw = xp.reshape(raw, (rows.shape[0], n_alphas, n_targets))
        residual = cast(xp.reshape(y, (rows.shape[0], 1, n_targets)), xp.float64) - raw
        # Allen's PRESS: without its row, a fit's residual is the plain one over 1 - leverage.
        return residual / (1 - leverage)[:, :, None]


@dataclass(frozen=True, eq=False, kw_only=True)
class LeaveOneOutRidge(Solver):
    """Solver of ridge for several penalties, with leave-one-out errors.

    ``extra["left_out"]`` of the solution has a :class:`LeaveOneOutErrors` with all coefficients,
    and ``extra["squares"]`` the sums of squared errors, of shape (n_alphas, n_targets).

    Parameters
    ----------
    alphas : ndarray of float64 of shape (n_alphas,)
        Penalties of the sum over rows.
    eps, sparse
        As of :class:`~daskml_dist.solvers.least_squares.LeastSquaresSolver`.
    """

    alphas: Array
    eps: float
    sparse: bool

    name = "leave_one_out"

    @property
    def max_passes(self) -> int:
        """Return the passes of the reduction, and one for the errors."""
        return MAX_REDUCTION_PASSES + 1

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Reduce the rows, then read them again for their leave-one-out errors."""
        # No singular value is cut: the least penalty, which is positive, bounds the condition.
        reduced = reduce_rows(
            model, sums, eps=self.eps, l2=float(self.alphas.min()), cut=0.0, sparse=self.sparse
        )
        n_rows = float(sums.n_rows)
        left_out = LeaveOneOutErrors.from_reduced(reduced, self.alphas, model.fit_intercept, n_rows)
        squares = np.array(sums(left_out))
        extra = {"left_out": left_out, "squares": squares}
        return Solution(left_out.w[0], reduced.n_looks + 1, extra=extra)


@dataclass(frozen=True)
class AlphaGrid:
    """Grid of strengths, geometrically down from the least one with all coefficients zero.

    Parameters
    ----------
    l1_ratios : tuple of float
    eps : float
        Last strength as a share of the first.
    n : int
        Number of strengths for each ratio.
    positive : bool
    """

    l1_ratios: tuple[float, ...]
    eps: float
    n: int
    positive: bool

    def make_strengths(self, xy: Array, n_rows: float) -> Array:
        """Return strengths of shape (n_l1_ratios, n), given X'y of centred features and target."""
        # All coefficients are zero where alpha * l1_ratio >= max |x_j'y| / n (Friedman et al.,
        # section 2.5).
        largest = max(0.0, xy.max()) if self.positive else np.abs(xy).max()
        grids = []
        for ratio in self.l1_ratios:
            first = largest / (n_rows * ratio)
            grids.append(
                np.full(self.n, _MIN_ALPHA)
                if first <= _MIN_ALPHA
                else np.geomspace(first, first * self.eps, num=self.n)
            )
        return np.array(grids)


def make_alpha_grid(grid: AlphaGrid, reduced: ReducedProblem, n_rows: float) -> Array:
    """Return the strengths for a reduced problem of `n_rows` rows."""
    return grid.make_strengths((reduced.R.T @ reduced.z)[:, 0], n_rows)


@dataclass(frozen=True, eq=False, kw_only=True)
class FoldedReduction(Solver):
    """Solver that reduces the training rows of each split.

    The solution has no parameters; ``extra["reduced"]`` has a :class:`ReducedProblem` for each
    split and ``extra["n_rows"]`` the weights of their rows.

    Parameters
    ----------
    eps, sparse
        As of :class:`~daskml_dist.solvers.least_squares.LeastSquaresSolver`.
    l2 : float or AlphaGrid
        Least penalty that will be tried; of a grid its last strength.
    of_mean : bool
        Whether `l2` is a penalty of the mean over rows, as a grid's strengths are, instead of the
        sum.
    """

    eps: float
    sparse: bool
    l2: float | AlphaGrid
    of_mean: bool

    name = "folded"

    @property
    def max_passes(self) -> int:
        """Return a bound: the first pass is shared, further ones are of one split each."""
        # The number of splits is the model's, which a solver does not know yet: room for a million,
        # as many as leaving one row out of a million makes.
        return MAX_REDUCTION_PASSES * 10**6

    def solve(self, model: BatchedLinear, sums: Sums, start: Array | None) -> Solution:
        """Reduce the training rows of all splits, in lock step."""
        d, n_splits = model.n_features, model.roles.n_splits
        # One pass gives the moments of all splits. The solvers of the splits take their first pass
        # from these, and read the rows again only if the moments have too few digits.
        first = sums(
            PerSplitStatistic(
                SecondMoments(np.zeros(model.single_model.width)), tuple(range(n_splits))
            )
        )
        n_rows = first[:, d, d]
        candidates = []
        for split, weight in enumerate(n_rows):
            l2 = self._smallest_penalty(first[split], d, model.single_model.fit_intercept)
            solver = _SplitReduction(self.eps, self.sparse, l2 * weight if self.of_mean else l2)
            candidates.append(Candidate(split, solver, float(weight)))
        solution = BatchedSolver(tuple(candidates)).solve(model, _CachedSums(sums, first), None)
        reduced = [extra["reduced"] for *_, extra in solution.extra["candidates"]]
        return Solution(np.zeros(0), extra={"reduced": reduced, "n_rows": np.array(n_rows)})

    def _smallest_penalty(self, moments: Array, d: int, fit_intercept: bool) -> float:
        """Return the least penalty to be tried on a split, given its moments of [X, 1, y]."""
        if not isinstance(self.l2, AlphaGrid):
            return self.l2
        n, xy = moments[d, d], moments[:d, d + 1]
        if fit_intercept:
            # X'y of centred columns; the first pass is exact enough for the order of magnitude.
            xy = xy - moments[:d, d] * moments[d, d + 1] / n
        return float(self.l2.make_strengths(xy, n).min())


@dataclass(frozen=True)
class _SplitReduction(Solver):
    """Solver that reduces the training rows of one split."""

    eps: float
    sparse: bool
    l2: float
    max_passes = MAX_REDUCTION_PASSES

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        # A penalty bounds the condition; without one, tiny singular values must count as zero.
        cut = 0.0 if self.l2 else SINGULAR_CUTOFF
        reduced = reduce_rows(model, sums, eps=self.eps, l2=self.l2, cut=cut, sparse=self.sparse)
        return Solution(np.zeros(0), reduced.n_looks, extra={"reduced": reduced})


@dataclass
class _CachedSums(NestedSums):
    """Sums whose first pass (moments without a shift) is known already, for each split."""

    first: Array

    def __call__(self, statistic: Statistic) -> Array:
        if (
            isinstance(statistic, PerSplitStatistic)
            and isinstance(statistic.statistic, SecondMoments)
            and statistic.statistic.x_shift is None
        ):
            return self.first[list(statistic.splits)]
        return self.sums(statistic)


@dataclass(frozen=True, eq=False)
class _PathStatistic(Statistic):
    """Base class of sums over the rows that have a role in a split, for each fit of its path.

    Parameters
    ----------
    w : ndarray of shape (n_splits, n_alphas, n_params, n_targets)
        Parameters; the model may have a further split, of all rows.
    role : {TRAIN, TEST}
    """

    w: Array
    role: int
    in_parts: ClassVar[bool] = True

    def add(self, model: BatchedLinear, rows: BatchRows, out: Any, backend: Backend) -> None:
        n_alphas, n_params, n_targets = self.w.shape[1:]
        width = n_alphas * n_targets
        tile_rows = max(_MIN_TILE_ROWS, _TILE_ENTRIES // max(width, 1))
        for split, paths in enumerate(self.w):
            # All penalties and targets of a split are columns of one product.
            w = to_rows_dtype(np.moveaxis(paths, 0, 1).reshape(n_params, width), rows.X, backend)
            for split_rows in iterate_split_rows(model, rows, split, self.role, backend):
                for tile in row_tiles(
                    split_rows.X, backend, cached=8 * tile_rows * split_rows.X.shape[1]
                ):
                    part = split_rows.part(tile, backend)
                    raw = model.single_model.raw_prediction(w, part.X, backend)
                    n = part.X.shape[0]
                    raw = namespace(raw).reshape(raw, (n, n_alphas, n_targets))
                    y, _ = model.split_roles(part.y)
                    y = namespace(y).reshape(y, (n, n_targets))
                    self._add_fit_sums(raw, y, part.weight, out[split, ...])

    @abstractmethod
    def _add_fit_sums(self, raw: Any, y: Any, weight: Any | None, out: Any) -> None:
        """Add the sums of some rows, given raw predictions (n, n_alphas, n_targets)."""


@dataclass(frozen=True, eq=False)
class PathErrorSums(_PathStatistic):
    """Six sums for each fit and target: those in `PATH_SCORES`, and the number of rows.

    In order: weights, squared errors, absolute errors, targets and squared targets, each weighted,
    and rows of positive weight.

    Parameters
    ----------
    absolute : bool
        Whether absolute errors are summed; else they are zero.
    """

    absolute: bool = False

    def shape(self, model: BatchedLinear) -> tuple[int, ...]:
        return *self.w.shape[:2], self.w.shape[3], 6

    def _add_fit_sums(self, raw: Any, y: Any, weight: Any | None, out: Any) -> None:
        xp = namespace(raw)
        y64 = cast(y, xp.float64)
        n_weighted = y.shape[0] if weight is None else total(cast(weight != 0, xp.float64))
        out[..., 5] += n_weighted
        out[..., 0] += y.shape[0] if weight is None else total(weight, dtype=xp.float64)
        out[..., 3] += _sum_weighted(y64, weight)
        out[..., 4] += _sum_weighted(y64 * y64, weight)
        residual = raw - cast(y, raw.dtype)[:, None, :]
        if self.absolute:
            out[..., 2] += _sum_weighted(xp.abs(residual), weight)
        residual *= residual
        out[..., 1] += _sum_weighted(residual, weight)


@dataclass(frozen=True, eq=False)
class PathHits(_PathStatistic):
    """Weight of the rows, and of the rows whose label is predicted, for each fit.

    A classifier by regression: targets are 1 for a row's label and -1 for the others, and the
    largest raw prediction wins; of two labels only the second one has a column.

    Parameters
    ----------
    is_multilabel : bool, default=False
        Whether rows have several labels; then a row counts if all of them are predicted.
    """

    is_multilabel: bool = False

    def shape(self, model: BatchedLinear) -> tuple[int, ...]:
        return *self.w.shape[:2], 2

    def _add_fit_sums(self, raw: Any, y: Any, weight: Any | None, out: Any) -> None:
        xp = namespace(raw)
        if self.is_multilabel:
            is_right = xp.all((raw > 0) == (y > 0)[:, None, :], axis=2)
        elif raw.shape[2] == 1:
            is_right = (raw[:, :, 0] > 0) == (y > 0)
        else:
            is_right = xp.argmax(raw, axis=2) == xp.argmax(y, axis=1)[:, None]
        out[..., 0] += y.shape[0] if weight is None else total(weight, dtype=xp.float64)
        out[..., 1] += _sum_weighted(cast(is_right, xp.float64), weight)


def _sum_weighted(values: Any, weight: Any | None) -> Any:
    """Return the weighted sum over rows (the first axis), in float64."""
    xp = namespace(values)
    if weight is not None:
        shape = (values.shape[0],) + (1,) * (values.ndim - 1)
        values = values * xp.reshape(cast(weight, values.dtype), shape)
    if is_host(values) and values.ndim == 3 and values.shape[2] == 1:
        # NumPy is slow to sum over the first axis if the last one has length 1.
        return values[:, :, 0].sum(axis=0, dtype=np.float64)[:, None]
    return total(values, axis=0, dtype=xp.float64)


def _r2_scores(sums: Array) -> Array:
    weight, squared_errors, _, targets, squares, rows = np.moveaxis(sums, -1, 0)
    score = r2_of_sums(weight, squared_errors, targets, squares)
    # As scikit-learn's r2_score: fewer than two rows have no score.
    return np.asarray(np.where(rows < 2, np.nan, score).mean(axis=-1))


#: Scores by scikit-learn's names, given the sums of :class:`PathErrorSums`: means over the targets.
PATH_SCORES: dict[str, Callable[[Array], Array]] = {
    "neg_mean_absolute_error": lambda sums: -(sums[..., 2] / sums[..., 0]).mean(axis=-1),
    "neg_mean_squared_error": lambda sums: -(sums[..., 1] / sums[..., 0]).mean(axis=-1),
    "neg_root_mean_squared_error": lambda sums: -np.sqrt(sums[..., 1] / sums[..., 0]).mean(axis=-1),
    "r2": _r2_scores,
}
