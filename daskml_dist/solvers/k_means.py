"""k-means by Lloyd's algorithm: each centroid becomes the mean of the rows nearest to it.

:class:`KMeansSolver` is the whole fit. Mini-batch fits make one pass before the batches
(:class:`RowSampleSolver`, initial centroids) and one after the batches (:class:`InertiaSolver`).
Samples do not depend on the order in which rows are read: each row draws a random key, and the rows
with the largest keys are the sample (:class:`_TopKRows`). :class:`SeedSample` draws candidates with
probabilities proportional to their squared distance to the candidates so far (k-means||), and
:func:`choose_centroids` clusters the weighted candidates (k-means++).

References
----------
P. S. Efraimidis and P. G. Spirakis, "Weighted random sampling with a reservoir", Information
Processing Letters 97(5), 2006. B. Bahmani, B. Moseley, A. Vattani, R. Kumar and S. Vassilvitskii,
"Scalable k-means++", VLDB 2012. D. Arthur and S. Vassilvitskii, "k-means++: the advantages of
careful seeding", SODA 2007.
S. P. Lloyd, "Least squares quantization in PCM", IEEE Transactions on Information Theory 28(2),
1982. G. Hamerly, "Making k-means even faster", SDM 2010 (bounds that save distances). For its sums
over rows: C.-T. Chu et al., "Map-Reduce for Machine Learning on Multicore", NIPS 2006.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from threadpoolctl import ThreadpoolController

from daskml_dist.backends.base import Backend, is_sparse
from daskml_dist.backends.namespace import (
    arithmetic_dtype,
    cast,
    namespace,
    ones,
    scalar,
    total,
    zeros,
)
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.models.base import BatchRows
from daskml_dist.solvers.base import Array, RowState, Solution, Solver, Statistic, Sums
from daskml_dist.solvers.rows import request_finite_sum, to_rows_dtype

#: Rows of a chunk on a CPU; their temporary arrays stay in a core's L2 cache.
_CHUNK_ROWS = 1 << 13
#: Candidates chosen in each round, of shape (m, n_features).
_SeedGroups = tuple[Array, ...]
#: Candidates times centroids up to which clustering them is cheap enough for eight tries.
_MAX_RETRY_PRODUCTS = 10**5


@dataclass(frozen=True, eq=False)
class _TopKRows(Statistic):
    """Base class of reductions to the `n_rows` rows with the largest keys.

    The result has a row ``[key, *facts, *features]`` for each, by descending keys. Keys must be
    positive: rows of zeros follow if there are fewer.

    Parameters
    ----------
    n_rows : int

    Attributes
    ----------
    n_facts : int
        Number of facts that are kept with a row.
    """

    n_rows: int
    additive = False
    n_facts: ClassVar[int] = 0

    def shape(self, model: Any) -> tuple[int, ...]:
        return self.n_rows, 1 + self.n_facts + model.n_features

    def merge(self, total: Array, part: Array) -> None:
        """Replace `total` by the rows with the largest keys of both."""
        joined = np.concatenate([total, part])
        total[...] = joined[np.argsort(-joined[:, 0], kind="stable")[: self.n_rows]]

    def keep(
        self, row_indices: NDArray[np.intp], keys: Array, row_facts: list[Array], rows: Any,
        out: Any, backend: Backend,
    ) -> None:  # fmt: skip
        """Merge some rows into `out`.

        Parameters
        ----------
        row_indices : ndarray of int of shape (m,)
            Indices in `rows`.
        keys : ndarray of shape (m,)
        row_facts : list of ndarray of shape (m,)
            `n_facts` of them.
        rows : rows of shape (n, n_features)
        out : array of :meth:`shape`
        backend : Backend
        """
        # Only rows whose key exceeds the smallest one kept so far are read; soon they are few.
        last = float(out[-1, 0])
        (ahead,) = np.nonzero(keys > last)
        if len(ahead) > self.n_rows:
            largest = np.argpartition(-keys[ahead], self.n_rows - 1)[: self.n_rows]
            ahead = np.sort(ahead[largest])
        if not len(ahead):
            return
        top = backend.to_numpy(out).copy()
        candidates = np.zeros((len(ahead), top.shape[1]))
        candidates[:, 0] = keys[ahead]
        for number, fact in enumerate(row_facts, 1):
            candidates[:, number] = fact[ahead]
        candidates[:, 1 + self.n_facts :] = _take_rows(rows, row_indices[ahead], backend)
        self.merge(top, candidates)
        out[...] = backend.to_device(top)


def _draw_keys(
    rows: BatchRows, mass: Array, last: float, *seed: int
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Draw keys for weighted sampling without replacement (Efraimidis and Spirakis 2006).

    The key of a row is its mass divided by a standard exponential number, which depends only on the
    seed, the row's block and its position there. Return the indices of the rows whose key may
    exceed `last`, and their keys.
    """
    stream = np.random.PCG64(np.random.SeedSequence((*seed, rows.block + 1)))
    # Skip to the first row's draw (one number of 64 bits a row), so that the draws do not depend on
    # how a block is cut.
    stream.advance(rows.first)
    if rows.places is None:
        uniform = np.random.Generator(stream).random(len(mass))
    else:
        n = int(rows.places[-1]) + 1 if len(mass) else 0
        uniform = np.random.Generator(stream).random(n)[rows.places]
    # -log(1 - u) >= u, so only rows with mass / u > last can have a larger key. They are few, which
    # saves the logarithms of the others.
    (indices,) = np.nonzero(uniform * last < mass)
    exponential = np.maximum(-np.log1p(-uniform[indices]), np.finfo(np.float64).tiny)
    return indices, mass[indices] / exponential


def _iterate_row_chunks(rows: BatchRows, backend: Backend) -> Iterator[BatchRows]:
    """Yield the rows in chunks whose temporary arrays fit a cache; sparse rows as one chunk."""
    n, d = rows.X.shape
    step = max(_CHUNK_ROWS, backend.entries_at_once // max(d, 1))
    if is_sparse(rows.X) or n <= step:
        yield rows
        return
    for chunk in row_slices(n, step):
        yield rows.part(chunk, backend)


def _take_rows(rows: Any, row_indices: NDArray[np.intp], backend: Backend) -> NDArray[Any]:
    """Return some rows as a dense NumPy array."""
    if is_sparse(rows):
        return np.concatenate(
            [backend.to_numpy(rows[i : i + 1].toarray()) for i in row_indices.tolist()]
        )
    return backend.to_numpy(backend.rows(rows, row_indices))


@dataclass(frozen=True, eq=False)
class _ClosestCandidate(RowState):
    """Squared distance of each row to the closest candidate, and the index of that candidate.

    Parameters
    ----------
    groups : tuple of ndarray of shape (m, n_features)
        Candidates of each round, with the shift subtracted.
    shift : ndarray of shape (n_features,) or None
        Subtracted from each row.
    """

    name = "closest"
    groups: _SeedGroups
    shift: Array | None

    def make(self, model: Any, rows: BatchRows, backend: Backend) -> Any:
        """Return the distances to all candidates, computed group by group."""
        values = rows.X.values if is_sparse(rows.X) else rows.X
        state = zeros((rows.X.shape[0], 2), arithmetic_dtype(rows.X), like=values)
        state[:, 0] = namespace(state).inf
        for number in range(len(self.groups)):
            self.update(state, rows, number, backend)
        return state

    def update(self, state: Any, rows: BatchRows, round_index: int, backend: Backend) -> None:
        """Update the state of some rows by the candidates of one round."""
        group = to_rows_dtype(self.groups[round_index], rows.X, backend)
        shift = None if self.shift is None else to_rows_dtype(self.shift, rows.X, backend)
        labels, squares = backend.nearest(rows.X, shift, group)
        xp, first = namespace(state), sum(map(len, self.groups[:round_index]))
        nearer = squares < state[:, 0]
        state[:, 1] = xp.where(nearer, cast(labels + first, state.dtype), state[:, 1])
        state[:, 0] = xp.where(nearer, squares, state[:, 0])


@dataclass(frozen=True, eq=False)
class _CandidateStatistic(Statistic):
    """Base class of statistics whose state covers all candidates but those of the last round.

    Parameters
    ----------
    groups, shift
        As of `_ClosestCandidate`.
    """

    groups: _SeedGroups
    shift: Array | None
    in_parts: ClassVar[bool] = True

    @property
    def state(self) -> _ClosestCandidate | None:
        """Return the distances to the candidates before the last round."""
        return _ClosestCandidate(self.groups[:-1], self.shift) if self.groups else None

    def _meet_last_group(self, rows: BatchRows, backend: Backend) -> Any:
        """Update the state by the last round; return the sum of the weighted squared distances."""
        closest = _ClosestCandidate(self.groups, self.shift)
        closest.update(rows.state, rows, len(self.groups) - 1, backend)
        squares = cast(rows.state[:, 0], namespace(rows.state).float64)
        return total(squares if rows.weight is None else squares * rows.weight)


@dataclass(frozen=True, eq=False)
class SeedSample(_CandidateStatistic, _TopKRows):
    """Sample with probabilities proportional to weight times squared distance (D^2 sampling).

    The distance is that to the closest candidate. Without candidates, the probabilities are
    proportional to the weights.

    Parameters
    ----------
    n_rows : int
    seed, round : int
        Seed of the draw.
    groups, shift
        As of `_ClosestCandidate`.
    """

    seed: int
    round: int

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        loss = 0.0 if self.groups else float("nan")
        for chunk in _iterate_row_chunks(rows, backend) if self.groups else (rows,):
            # The mass of a row: its weight times its squared distance.
            mass = np.ones(chunk.X.shape[0])
            if self.groups:
                loss = loss + self._meet_last_group(chunk, backend)
                mass = backend.to_numpy(chunk.state[:, 0])
            if chunk.weight is not None:
                mass = mass * backend.to_numpy(chunk.weight)
            indices, keys = _draw_keys(chunk, mass, float(out[-1, 0]), self.seed, self.round)
            self.keep(indices, keys, [], chunk.X, out, backend)
        return scalar(loss)


@dataclass(frozen=True, eq=False)
class CandidateWeights(_CandidateStatistic):
    """Sums of the weights of the rows that are closest to each candidate.

    Parameters
    ----------
    groups, shift
        As of `_ClosestCandidate`.
    """

    def shape(self, model: Any) -> tuple[int, ...]:
        return sum(map(len, self.groups)), 1

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        loss = 0.0
        for chunk in _iterate_row_chunks(rows, backend):
            loss = loss + self._meet_last_group(chunk, backend)
            labels = cast(chunk.state[:, 1], namespace(chunk.state).int64)
            unit_rows = ones((labels.shape[0], 1), chunk.state.dtype, like=labels)
            backend.add_rows(unit_rows, labels, chunk.weight, out)
        return scalar(loss)


def choose_centroids(candidates: Array, weight: Array, k: int, seed: int) -> Array:
    """Return the k centroids of weighted candidates, by scikit-learn in this process."""
    if len(candidates) == k:
        return candidates
    is_small = len(candidates) * k <= _MAX_RETRY_PRODUCTS
    # With so few products, synchronising threads costs more than they save.
    one_thread = (
        _find_openmp_libraries().limit(limits=1, user_api="openmp") if is_small else nullcontext()
    )
    with warnings.catch_warnings(), one_thread:
        # scikit-learn warns of duplicate candidates; the fit reports clusters without rows itself.
        warnings.simplefilter("ignore")
        model = KMeans(k, n_init=8 if is_small else 1, random_state=seed % 2**32).fit(
            candidates, sample_weight=np.maximum(weight, np.finfo(float).tiny)
        )
    return np.asarray(model.cluster_centers_, dtype=np.float64)


@cache
def _find_openmp_libraries() -> ThreadpoolController:
    """Return the process's OpenMP libraries; finding them takes milliseconds."""
    return ThreadpoolController()


#: Ratio of the squared norm of the mean to the variance above which both are computed again from
#: shifted rows: cancellation cost two decimal digits.
_RECENTRE_RATIO = 100.0
#: Sample that k-means|| finds its first centroids in: rows for each centroid, least rows, most
#: entries (16 MiB).
_SAMPLE_PER_CENTROID, _MIN_SAMPLE_ROWS, _MAX_SAMPLE_ENTRIES = 50, 2000, 1 << 21
#: Ratio of the centroids' squared shift in a step to the variance that counts as rounding error.
_UNMOVED_SHARE = 1e-28


@dataclass(frozen=True, eq=False)
class RowBounds(RowState):
    """Bounds of each row's distances to its centroid and to the others (Hamerly 2010).

    A row whose upper bound is below its lower bound keeps its centroid without any distance. They
    change no result, so trivial bounds may replace lost ones.

    Parameters
    ----------
    k : int
    shift : ndarray of shape (n_features,) or None
        Subtracted from each row.
    """

    name = "bounds"
    k: int
    shift: Array | None

    def make(self, model: Any, rows: BatchRows, backend: Backend) -> Any:
        """Return trivial bounds, which prune nothing."""
        return backend.row_bounds(rows.X, self.shift, self.k)


@dataclass(frozen=True, eq=False)
class CentroidAssignment(Statistic):
    """Assignment of the rows to their nearest centroids: ``[weight, *sum of rows]`` of each.

    The first number of the last row is the inertia, the sum of the weighted squared distances.

    Parameters
    ----------
    centroids : ndarray of shape (k, n_features)
        With the shift subtracted.
    shift : ndarray of shape (n_features,) or None
        Subtracted from each row; None for sparse rows.
    previous_centroids : ndarray of shape (k, n_features) or None
        Centroids of the previous request, from which the bounds are updated; None: there was none.
    """

    centroids: Array
    shift: Array | None
    previous_centroids: Array | None = None
    in_parts: ClassVar[bool] = True
    #: The sums have the squared distances.
    shows_not_finite = True

    @property
    def state(self) -> RowBounds | None:
        """Return bounds of the distances; with them most rows need no distance computations."""
        return RowBounds(len(self.centroids), self.shift) if len(self.centroids) > 1 else None

    def shape(self, model: Any) -> tuple[int, ...]:
        return len(self.centroids) + 1, 1 + model.n_features

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        centroids = to_rows_dtype(self.centroids, rows.X, backend)
        shift, last_centroids = (
            None if array is None else to_rows_dtype(array, rows.X, backend)
            for array in (self.shift, self.previous_centroids)
        )
        weight = None if rows.weight is None else cast(rows.weight, centroids.dtype)
        with np.errstate(over="ignore", invalid="ignore"):  # the sums show it
            inertia = backend.assign(
                rows.X, shift, centroids, weight, out[:-1, ...], rows.state, last_centroids
            )
        out[-1, 0] += inertia
        return scalar(inertia)


@dataclass(frozen=True, eq=False)
class FarthestRows(_TopKRows):
    """Rows farthest from their centroids: ``[squared distance, centroid, weight, *features]``.

    Parameters
    ----------
    n_rows : int
    centroids, shift
        As of `CentroidAssignment`.
    """

    centroids: Array
    shift: Array | None
    in_parts: ClassVar[bool] = True
    n_facts: ClassVar[int] = 2

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> None:
        centroids = to_rows_dtype(self.centroids, rows.X, backend)
        shift = None if self.shift is None else to_rows_dtype(self.shift, rows.X, backend)
        for chunk in _iterate_row_chunks(rows, backend):
            nearest = backend.nearest(chunk.X, shift, centroids)
            labels, squares = (backend.to_numpy(array) for array in nearest)
            weight = (
                np.ones(len(squares)) if chunk.weight is None else backend.to_numpy(chunk.weight)
            )
            (indices,) = np.nonzero(weight > 0)
            facts = [labels[indices], weight[indices]]
            self.keep(indices, squares[indices], facts, chunk.X, out, backend)


@dataclass(frozen=True, eq=False)
class KMeansSolver(Solver):
    """Solver of k-means by Lloyd's algorithm: the best of several runs.

    Parameters
    ----------
    k : int
    init : {"k-means||", "k-means++", "random"} or ndarray of shape (k, n_features)
    n_init : int
        Number of runs.
    max_iter : int
        Most steps of a run.
    tol : float
        A run has converged if the squared norm of the centroids' shift in a step is at most `tol`
        times the mean variance of a feature.
    oversampling : float
        Candidates drawn in a round of ``"k-means||"``, for each centroid.
    rounds : int
        Rounds of ``"k-means||"``, which begin with the centroids of a random sample.
    seed : int
    sparse : bool
        Whether rows are sparse; no shift is then subtracted from them.
    """

    name = "lloyd"
    k: int
    init: str | Array
    n_init: int
    max_iter: int
    tol: float
    oversampling: float
    rounds: int
    seed: int
    sparse: bool

    @property
    def max_passes(self) -> int:
        """Return two passes a step (the second for empty clusters), plus the initialisation's."""
        first = {"k-means++": self.k, "k-means||": self.rounds}
        n_rounds = first.get(self.init, 1) if isinstance(self.init, str) else 0
        return 2 + self.n_init * (n_rounds + 3 + 2 * self.max_iter + 1)

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Run Lloyd's steps `n_init` times."""
        if sums.kept is not None:
            progress = _KMeansRuns.of_state(sums.kept)
        else:
            progress = self._prepare_runs(model.n_features, sums)
        while progress.run_index < self.n_init:
            self._run_lloyd(progress, sums)
            if sums.should_stop:
                break
        inertia, n_iter, n_found = progress.best_numbers
        return Solution(
            progress.add_shift(progress.best),
            int(n_iter),
            extra=progress.extra_facts(inertia, n_found),
        )

    def _prepare_runs(self, n_features: int, sums: Sums) -> _KMeansRuns:
        """Compute the rows' mean, which is subtracted from dense rows, and their variance."""
        origin = np.zeros((1, n_features))
        shift = None if self.sparse else origin[0]
        mean, variance = self._mean_and_variance(sums, origin, shift)
        # The variance is a difference of squares: if the mean is far from the origin, cancellation
        # makes it inexact, and it is computed again from shifted rows.
        if shift is not None and mean @ mean > _RECENTRE_RATIO * variance:
            shift = round_to_float32(mean)
            mean, variance = self._mean_and_variance(sums, origin, shift)
            mean += shift
        tolerance = self.tol * variance / n_features
        shift = None if shift is None else round_to_float32(mean)
        return _KMeansRuns(n_features, shift, tolerance, _UNMOVED_SHARE * variance)

    @staticmethod
    def _mean_and_variance(sums: Sums, origin: Array, shift: Array | None) -> tuple[Array, float]:
        """Return the mean of the shifted rows, and the variance summed over features."""
        moments = request_finite_sum(sums, CentroidAssignment(origin, shift))
        mean = moments[0, 1:] / moments[0, 0]
        return mean, max(0.0, float(moments[1, 0] / moments[0, 0] - mean @ mean))

    def _run_lloyd(self, progress: _KMeansRuns, sums: Sums) -> None:
        """Take Lloyd's steps to the end of the current run."""
        if progress.n_iter == 0:
            progress.centroids = self._choose_first_centroids(progress, sums)
        while True:
            assigned = self._assign_rows(progress, sums)
            last_centroids, progress.centroids = (
                progress.centroids,
                self._update_centroids(assigned, progress, sums),
            )
            progress.n_iter += 1
            # Squared Frobenius norm of the shift, which `tol` bounds as in scikit-learn.
            squared_shift = float(((progress.centroids - last_centroids) ** 2).sum())
            if (
                squared_shift <= max(progress.tolerance, progress.unmoved_tolerance)
                or progress.n_iter == self.max_iter
            ):
                break
            if sums.should_stop:
                break
            sums.keep(
                progress.add_shift(progress.centroids),
                progress.state,
                extra=progress.extra_facts(*_inertia_and_count(assigned)),
            )
        # The inertia belongs to the last centroids: one more pass unless they did not move.
        if squared_shift > progress.unmoved_tolerance and not sums.should_stop:
            assigned = self._assign_rows(progress, sums)
        progress.end_run(*_inertia_and_count(assigned))

    @staticmethod
    def _assign_rows(progress: _KMeansRuns, sums: Sums) -> Array:
        """Return the sums of an assignment; the last centroids update the rows' bounds."""
        last_asked, progress.requested_centroids = progress.requested_centroids, progress.centroids
        return sums(CentroidAssignment(progress.centroids, progress.shift, last_asked))

    def _update_centroids(self, cluster_sums: Array, progress: _KMeansRuns, sums: Sums) -> Array:
        """Return each cluster's mean; an empty cluster gets the row farthest from its centroid."""
        weight, total = cluster_sums[:-1, :1].copy(), cluster_sums[:-1, 1:].copy()
        (empty,) = np.nonzero(weight[:, 0] == 0)
        # As in scikit-learn: a second pass, which is rare.
        if len(empty):
            farthest_rows = sums(
                FarthestRows(len(empty), centroids=progress.centroids, shift=progress.shift)
            )
            for centroid, (key, old_label, row_weight, *row) in zip(
                empty, farthest_rows, strict=True
            ):
                # The row moves from its old cluster, unless it is the only one there.
                if key > 0 and weight[int(old_label), 0] > row_weight:
                    weighted = row_weight * progress.subtract_shift(np.array(row))
                    total[int(old_label)] -= weighted
                    weight[int(old_label)] -= row_weight
                    total[centroid], weight[centroid] = weighted, row_weight
        return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), progress.centroids)

    # -- first centroids -------------------------------------------------------------------------

    def _choose_first_centroids(self, progress: _KMeansRuns, sums: Sums) -> Array:
        """Return the initial centroids of a run, with the shift subtracted."""
        if not isinstance(self.init, str):
            return progress.subtract_shift(self.init)
        if self.init == "random":
            return self._repeat_to_k(self._draw_seeds(progress, sums, self.k, ()))
        # k-means++ draws one candidate a pass, by D^2 sampling. k-means|| (algorithm 2 of Bahmani
        # et al.) draws about k candidates in each of few rounds; it starts from the centroids of a
        # sample here, instead of one row.
        one_by_one = self.init == "k-means++"
        groups: tuple[Array, ...] = (
            self._draw_seeds(progress, sums, 1, ())
            if one_by_one
            else self._centroids_of_sample(progress, sums),
        )
        n_drawn = 1 if one_by_one else max(1, round(self.oversampling * self.k))
        for _ in range(self.k - 1 if one_by_one else self.rounds):
            seeds = self._draw_seeds(progress, sums, n_drawn, groups)
            if not len(seeds):
                break
            groups = (*groups, seeds)
        candidates = np.concatenate(groups)
        if len(candidates) <= self.k:
            return self._repeat_to_k(candidates)
        # The last steps of k-means||: weight the candidates by the rows nearest to each, and
        # cluster them.
        weight = sums(CandidateWeights(groups, progress.shift))
        return choose_centroids(candidates, weight[:, 0], self.k, self.seed + progress.run_index)

    def _centroids_of_sample(self, progress: _KMeansRuns, sums: Sums) -> Array:
        """Return the centroids of a random sample of the rows, clustered in this process."""
        n_sampled = min(max(_SAMPLE_PER_CENTROID * self.k, _MIN_SAMPLE_ROWS), sums.n_rows)
        n_sampled = max(min(n_sampled, _MAX_SAMPLE_ENTRIES // progress.n_features), 2 * self.k)
        rows = self._draw_seeds(progress, sums, n_sampled, ())
        if len(rows) <= self.k:
            return rows
        return choose_centroids(rows, np.ones(len(rows)), self.k, self.seed + progress.run_index)

    def _draw_seeds(
        self, progress: _KMeansRuns, sums: Sums, n_rows: int, groups: tuple[Array, ...]
    ) -> Array:
        """Return rows drawn by :class:`SeedSample`, with the shift subtracted."""
        # Each round of each run has a different number, so that draws are independent.
        numbers = {
            "seed": self.seed,
            "round": progress.run_index * (self.k + self.rounds + 1) + len(groups),
        }
        keyed_rows = sums(SeedSample(n_rows=n_rows, groups=groups, shift=progress.shift, **numbers))
        return progress.subtract_shift(keyed_rows[keyed_rows[:, 0] > 0, 1:])

    def _repeat_to_k(self, rows: Array) -> Array:
        """Return `k` rows, repeating them if the data has fewer."""
        return np.resize(rows, (self.k, rows.shape[1]))


def round_to_float32(mean: Array) -> Array:
    """Return a shift rounded to float32, so that rows of both dtypes are shifted by the same.

    Entries beyond the range of float32 stay as they are: no rows of float32 have such a mean.
    """
    with np.errstate(over="ignore"):
        rounded = mean.astype(np.float32).astype(np.float64)
    return np.where(np.isfinite(rounded), rounded, mean)


def _inertia_and_count(cluster_sums: Array) -> tuple[float, int]:
    """Return the inertia, and how many centroids have rows."""
    return float(cluster_sums[-1, 0]), int((cluster_sums[:-1, 0] > 0).sum())


@dataclass
class _KMeansRuns:
    """Progress of the runs: centroids of the current run, and the best run so far.

    Centroids have the shift subtracted.

    Parameters
    ----------
    n_features : int
    shift : ndarray or None
    tolerance : float
        Squared norm of the centroids' shift in a step at which a run has converged.
    unmoved_tolerance : float
        Squared norm up to which the centroids count as unmoved.
    run_index : int
        Index of the current run.
    n_iter : int
        Steps of the current run.
    """

    n_features: int
    shift: Array | None
    tolerance: float
    unmoved_tolerance: float
    run_index: int = 0
    n_iter: int = 0
    centroids: Array = field(default_factory=lambda: np.empty((0, 0)))
    best: Array = field(default_factory=lambda: np.empty((0, 0)))
    #: Of the best run: inertia, steps, and number of centroids that have rows.
    best_numbers: tuple[float, float, float] = (np.inf, 0, 0)
    #: Centroids of the last assignment. Not in the snapshot, since the bounds are not either.
    requested_centroids: Array | None = None

    def subtract_shift(self, rows: Array) -> Array:
        """Return rows with the shift subtracted."""
        return rows if self.shift is None else rows - self.shift

    def add_shift(self, centroids: Array) -> Array:
        """Return centroids with the shift added back."""
        return centroids if self.shift is None else centroids + self.shift

    def extra_facts(self, inertia: float, n_found: float) -> dict[str, Any]:
        """Return the `extra` of a solution."""
        return {"inertia": inertia, "n_found": n_found, "shift": self.shift}

    def end_run(self, inertia: float, n_found: int) -> None:
        """Keep the run if it is the best, and begin the next."""
        if inertia < self.best_numbers[0] or not self.best.size:
            self.best, self.best_numbers = self.centroids, (inertia, self.n_iter, n_found)
        self.run_index, self.n_iter = self.run_index + 1, 0

    def state(self) -> dict[str, Array]:
        """Return a snapshot as arrays by name, for checkpoints."""
        shift = np.empty(0) if self.shift is None else self.shift
        numbers = (
            self.tolerance,
            self.unmoved_tolerance,
            self.run_index,
            self.n_iter,
            *self.best_numbers,
        )
        points = {"centroids": self.centroids, "best": self.best}
        return {"shift": shift, "numbers": np.array(numbers), **points}

    @classmethod
    def of_state(cls, state: dict[str, Array]) -> _KMeansRuns:
        """Return the progress of a snapshot."""
        tolerance, still, number, n_iter, *best = state["numbers"].tolist()
        shift = state["shift"] if state["shift"].size else None
        return cls(
            state["centroids"].shape[1], shift, tolerance, still, int(number), int(n_iter),
            state["centroids"], state["best"], tuple(best),
        )  # fmt: skip


@dataclass(frozen=True)
class RowSampleSolver(Solver):
    """Solver that draws rows with probabilities proportional to their weights, in one pass.

    Parameters
    ----------
    n_rows : int
    seed : int
    """

    name = "sample"
    n_rows: int
    seed: int
    max_passes = 1

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Return the sample, of shape (n_rows, n_features), or all rows of positive weight."""
        keyed_rows = sums(
            SeedSample(n_rows=self.n_rows, groups=(), shift=None, seed=self.seed, round=0)
        )
        return Solution(keyed_rows[keyed_rows[:, 0] > 0, 1:])


@dataclass(frozen=True, eq=False)
class InertiaSolver(Solver):
    """Solver that sums the squared distances of the rows to the nearest of given centroids.

    Parameters
    ----------
    centroids : ndarray of shape (k, n_features)
        With the shift subtracted.
    shift : ndarray of shape (n_features,) or None
        Subtracted from each row.
    """

    name = "inertia"
    centroids: Array
    shift: Array | None
    max_passes = 1

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Return the inertia, in an array of one number."""
        return Solution(np.array([sums(CentroidAssignment(self.centroids, self.shift))[-1, 0]]))
