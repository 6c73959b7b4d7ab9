"""Expectation-maximisation (EM) of Gaussian mixtures: each step is one sum over all rows.

The sum is of the rows' moments (weights, rows, their squares or products), weighted by each
component's share in a row. The M-step needs nothing else. Moments are about the means of the step
before, from rows from which a point near all of them (the shift) is subtracted: so the differences
that variances are made of keep their digits.

References
----------
A. P. Dempster, N. M. Laird and D. B. Rubin, "Maximum likelihood from incomplete data via the EM
algorithm", Journal of the Royal Statistical Society B 39(1), 1977.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from daskml_dist.backends.base import Backend
from daskml_dist.backends.mixture import add_expected, add_moments, iterate_shifted_rows
from daskml_dist.backends.namespace import arithmetic_dtype, cast, one_hot
from daskml_dist.models.base import BatchRows
from daskml_dist.models.mixture import Mixture
from daskml_dist.solvers.base import Array, NestedSums, Solution, Solver, Statistic, Sums
from daskml_dist.solvers.k_means import KMeansSolver, SeedSample, round_to_float32
from daskml_dist.solvers.rows import request_finite_sum, to_rows_dtype

#: scikit-learn's words.
_NOT_CONVERGED = (
    "Best performing initialization did not converge. Try different init parameters, or increase "
    "max_iter, tol, or check for degenerate data."
)
#: Steps and tolerance of the initialising k-means: scikit-learn's defaults.
_KMEANS_STEPS, _KMEANS_TOL = 300, 1e-4


@dataclass(frozen=True, eq=False)
class _ComponentMoments(Statistic):
    """Base class of moments of the rows, weighted by each component's share in a row.

    The sum has a row ``[weight, *first moments, *second moments]`` for each component. The first
    number of the last row is the log-likelihood, if there are densities.

    Parameters
    ----------
    means : ndarray of shape (k, n_features)
        Points that the moments are about, with the shift subtracted.
    shift : ndarray of shape (n_features,)
        Subtracted from each row.
    is_full : bool
        Whether second moments are all products of features, or only squares.
    """

    means: Array
    shift: Array
    is_full: bool
    in_parts: ClassVar[bool] = True
    #: The sums have the rows' squares.
    shows_not_finite = True

    def shape(self, model: Any) -> tuple[int, ...]:
        k, d = self.means.shape
        return k + 1, 1 + d + (d * d if self.is_full else d)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        means, shift = (to_rows_dtype(a, rows.X, backend) for a in (self.means, self.shift))
        weight = None if rows.weight is None else cast(rows.weight, means.dtype)
        with np.errstate(over="ignore", invalid="ignore"):  # the sums show it
            return self._add_moments(rows, shift, means, weight, out, backend)

    @abstractmethod
    def _add_moments(
        self, rows: BatchRows, shift: Any, means: Any, weight: Any, out: Any, backend: Backend
    ) -> Any:
        """Add the moments, given arrays on the rows' device; return minus the log-likelihood."""


@dataclass(frozen=True, eq=False)
class ExpectedMoments(_ComponentMoments):
    """Moments weighted by each component's responsibility for each row: the E-step.

    Parameters
    ----------
    means, shift, whole
        As in the base class.
    constants : ndarray of shape (k,)
        Logarithms of the densities' constant factors times the components' weights.
    factors : ndarray of shape (k, d, d), or (k, d) of diagonals
        Factors F of the precisions ``F @ F.T``.
    """

    constants: Array
    factors: Array

    def _add_moments(
        self, rows: BatchRows, shift: Any, means: Any, weight: Any, out: Any, backend: Backend
    ) -> Any:
        constants, factors = (
            to_rows_dtype(a, rows.X, backend) for a in (self.constants, self.factors)
        )
        sums = out[:-1, ...]
        log_likelihood = add_expected(
            backend, rows.X, shift, constants, means, factors, weight, sums
        )
        out[-1, 0] += log_likelihood
        return -log_likelihood


class _StartingMoments(_ComponentMoments):
    """Base class of moments by initial shares, before there are densities."""

    def _add_moments(
        self, rows: BatchRows, shift: Any, means: Any, weight: Any, out: Any, backend: Backend
    ) -> Any:
        k, d = means.shape
        for tile, shifted, tile_weight in iterate_shifted_rows(
            backend, rows.X, shift, weight, 2 * k * d
        ):
            shares = self._row_shares(rows, tile, shifted, means, backend)
            shares = shares if tile_weight is None else shares * tile_weight[:, None]
            add_moments(shifted, shares, means, out[:-1, ...])

    @abstractmethod
    def _row_shares(
        self, rows: BatchRows, row_slice: slice, shifted_rows: Any, means: Any, backend: Backend
    ) -> Any:
        """Return the share of each row in each component, of shape (n, k)."""


@dataclass(frozen=True, eq=False)
class NearestMoments(_StartingMoments):
    """Moments by shares of 1 in the component of the nearest mean."""

    def _row_shares(
        self, rows: BatchRows, row_slice: slice, shifted_rows: Any, means: Any, backend: Backend
    ) -> Any:
        labels, _ = backend.nearest(shifted_rows, 0 * means[0, ...], means)
        return one_hot(labels, means.shape[0], shifted_rows.dtype)


@dataclass(frozen=True, eq=False)
class DrawnMoments(_StartingMoments):
    """Moments by random shares of each row, which sum to 1.

    Parameters
    ----------
    means, shift, whole
        As in the base class.
    seed, run : int
        Seed of the draws.
    """

    seed: int
    run: int

    def _row_shares(
        self, rows: BatchRows, row_slice: slice, shifted_rows: Any, means: Any, backend: Backend
    ) -> Any:
        k = means.shape[0]
        # One stream per block; a row skips to its own k numbers (64 bits each), so that the draws
        # do not depend on how the block is cut.
        stream = np.random.PCG64(np.random.SeedSequence((self.seed, self.run, rows.block + 1)))
        stream.advance((rows.first + row_slice.start) * k)
        shares = np.random.Generator(stream).random((shifted_rows.shape[0], k))
        shares /= shares.sum(axis=1, keepdims=True)
        return cast(backend.to_device(shares), arithmetic_dtype(shifted_rows))


@dataclass(frozen=True, eq=False)
class MixtureSolver(Solver):
    """Solver of Gaussian mixtures by EM: the best of several runs, by likelihood.

    Parameters
    ----------
    k : int
        Components.
    kind : {"full", "tied", "diag", "spherical"}
        Form of the covariances.
    init : {"kmeans", "k-means++", "random", "random_from_data"}
        How the initial shares of the rows are found.
    n_init, max_iter : int
        Runs, and most steps of each.
    tol : float
        A run has converged if a step changes the mean log-likelihood by less.
    reg_covar : float
        Added to the variances.
    seed : int
    sparse : bool
        Whether there are sparse rows, which are made dense, some at a time.
    weights, means, covariances : ndarray or None
        Initial parameters; those that are None follow from the initial shares.
    bound : float
        Mean log-likelihood that the first step is compared with (of a warm start).
    """

    name = "em"
    k: int
    kind: str
    init: str
    n_init: int
    max_iter: int
    tol: float
    reg_covar: float
    seed: int
    sparse: bool = False
    weights: Array | None = None
    means: Array | None = None
    covariances: Array | None = None
    bound: float = -np.inf

    @property
    def max_passes(self) -> int:
        """Return the passes of all runs: EM steps, and those that initialise."""
        return self.n_init * (self._kmeans_solver(0).max_passes + 3 + self.max_iter) + 1

    @property
    def is_full(self) -> bool:
        """Return whether covariances are full matrices, rather than variances alone."""
        return self.kind in ("full", "tied")

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Run EM `n_init` times."""
        progress = (
            _MixtureRuns() if sums.kept is None else _MixtureRuns.of_state(sums.kept, self.kind)
        )
        while progress.run_index < self.n_init:
            self._run_em(progress, model, sums)
            if sums.should_stop:
                break
        extra: dict[str, Any] = {"bounds": np.array(progress.best_bounds)}
        if self.max_iter and not progress.best[-1, 1]:
            extra["warnings"] = (_NOT_CONVERGED,)
        return Solution(progress.best, progress.best_n_iter, extra=extra)

    def _run_em(self, progress: _MixtureRuns, model: Any, sums: Sums) -> None:
        """Take EM steps to the end of the current run, which a snapshot may have begun."""
        if progress.mixture is None:
            progress.mixture, progress.shift = self._initial_mixture(
                progress.run_index, model, sums
            )
            progress.bounds = [self.bound]
        converged = False
        while progress.n_iter < self.max_iter and not converged:
            if progress.n_iter and sums.should_stop:
                break
            # E-step: moments weighted by each component's responsibility, and the log-likelihood
            # of the mixture before this step.
            constants, factors = progress.mixture.terms()
            moments = request_finite_sum(
                sums,
                ExpectedMoments(
                    progress.mixture.means, progress.shift, self.is_full, constants, factors
                ),
            )
            # M-step: the mixture that maximises the expected likelihood, from these moments.
            progress.mixture = progress.mixture.of_moments(moments[:-1], self.reg_covar)
            progress.bounds.append(float(moments[-1, 0]) / sums.n_rows)
            progress.n_iter += 1
            converged = abs(progress.bounds[-1] - progress.bounds[-2]) < self.tol
            if not converged and progress.n_iter < self.max_iter:
                sums.keep(progress.packed(False), progress.state)
        progress.end_run(converged)

    # -- first components ----------------------------------------------------------------------

    def _initial_mixture(self, run_index: int, model: Any, sums: Sums) -> tuple[Mixture, Array]:
        """Return the initial mixture, and the shift that is subtracted from its means."""
        weights, means, covariances = self.weights, self.means, self.covariances
        # If all parameters are given, no pass is needed.
        if weights is not None and means is not None and covariances is not None:
            shift = round_to_float32(means.mean(axis=0))
        else:
            estimate, shift = self._estimate_mixture(run_index, model, sums)
            weights = estimate.weights if weights is None else weights
            means = estimate.means + shift if means is None else means
            covariances = estimate.covariances if covariances is None else covariances
        return Mixture(weights, means - shift, covariances, self.kind), shift

    def _estimate_mixture(self, run_index: int, model: Any, sums: Sums) -> tuple[Mixture, Array]:
        """Return the mixture that the initial responsibilities give, and the shift."""
        # The k-means inside must not take this solver's snapshots.
        nested_sums = NestedSums(sums)
        statistic: _ComponentMoments
        if self.init in ("random", "random_from_data"):
            # Random rows: the means of "random_from_data", and a point near all rows as the shift.
            rows = nested_sums(SeedSample(self.k, (), None, self.seed, run_index))
            rows = rows[rows[:, 0] > 0, 1:]
            shift = round_to_float32(rows.mean(axis=0))
            means = np.resize(rows, (self.k, rows.shape[1])) - shift
        else:
            solution = self._kmeans_solver(run_index).solve(model, nested_sums, None)
            # A shift for sparse rows too: k-means has none for them, but here they become dense.
            shift = round_to_float32(solution.w.mean(axis=0))
            means = solution.w - shift
        if self.init == "random":
            # Moments about the shift itself.
            means = np.zeros_like(means)
            statistic = DrawnMoments(means, shift, self.is_full, self.seed, run_index)
        else:
            statistic = NearestMoments(means, shift, self.is_full)
        moments = request_finite_sum(nested_sums, statistic)
        # An M-step needs only the means of the mixture that the moments are about.
        start = Mixture(np.full(self.k, 1 / self.k), means, np.empty(0), self.kind)
        return start.of_moments(moments[:-1], self.reg_covar), shift

    def _kmeans_solver(self, run_index: int) -> KMeansSolver:
        """Return the initialising k-means; "k-means++" needs only its seeding: one step."""
        is_plus_plus = self.init == "k-means++"
        return KMeansSolver(
            k=self.k,
            init="k-means++" if is_plus_plus else "k-means||",
            n_init=1,
            max_iter=1 if is_plus_plus else _KMEANS_STEPS,
            tol=_KMEANS_TOL,
            oversampling=1.0,
            rounds=4,
            seed=self.seed + run_index,
            sparse=self.sparse,
        )


@dataclass
class _MixtureRuns:
    """Progress of EM: the current run, and the best run so far.

    `mixture` has the shift subtracted from its means, and is None between runs; `bounds` begins
    with `MixtureSolver.bound`.
    """

    run_index: int = 0
    n_iter: int = 0
    mixture: Mixture | None = None
    shift: Array = field(default_factory=lambda: np.empty(0))
    bounds: list[float] = field(default_factory=list)
    best: Array = field(default_factory=lambda: np.empty((0, 0)))
    best_n_iter: int = 0
    best_bounds: list[float] = field(default_factory=list)

    def packed(self, converged: bool) -> Array:
        """Return the packed mixture, without the shift, and a row with bound and convergence."""
        assert self.mixture is not None
        rows = self.mixture.moved(self.shift).packed()
        last = np.zeros((1, rows.shape[1]))
        last[0, :2] = self.bounds[-1], converged
        return np.vstack([rows, last])

    def end_run(self, converged: bool) -> None:
        """Keep the run if it is the best, and begin the next."""
        if not self.best.size or self.bounds[-1] > self.best[-1, 0]:
            self.best, self.best_n_iter = self.packed(converged), self.n_iter
            self.best_bounds = self.bounds[1:]
        self.run_index, self.n_iter, self.mixture = self.run_index + 1, 0, None

    def state(self) -> dict[str, Array]:
        """Return the runs as arrays by name, from which `of_state` restores them."""
        assert self.mixture is not None
        numbers = np.array([self.run_index, self.n_iter, self.best_n_iter], dtype=np.float64)
        return {
            "numbers": numbers,
            "mixture": self.mixture.packed(),
            "shift": self.shift,
            "bounds": np.array(self.bounds),
            "best": self.best,
            "best_bounds": np.array(self.best_bounds),
        }

    @classmethod
    def of_state(cls, state: dict[str, Array], kind: str) -> _MixtureRuns:
        """Return the runs that were stored as a state."""
        number, n_iter, best_n_iter = (int(value) for value in state["numbers"])
        mixture = Mixture.of_packed(state["mixture"], kind, len(state["shift"]))
        return cls(
            number, n_iter, mixture, state["shift"], state["bounds"].tolist(), state["best"],
            best_n_iter, state["best_bounds"].tolist(),
        )  # fmt: skip
