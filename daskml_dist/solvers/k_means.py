"""k-means by Lloyd's steps: each centroid becomes the mean of the rows nearest to it.

:class:`KMeansSolver` is the whole fit; :class:`RowSampleSolver` and :class:`InertiaSolver` are
single passes before and after fits by mini-batches. Rows to start from come of samples that do not
depend on the rows' order: each row draws a key, and the k least keys win (:class:`BottomKSample`).
:class:`SeedSample` draws candidates far from those chosen (k-means||), of which
:func:`choose_centroids` takes k by their weights (k-means++).

References
----------
P. S. Efraimidis and P. G. Spirakis, "Weighted random sampling with a reservoir", Information
Processing Letters 97(5), 2006. B. Bahmani, B. Moseley, A. Vattani, R. Kumar and S. Vassilvitskii,
"Scalable k-means++", VLDB 2012. D. Arthur and S. Vassilvitskii, "k-means++: the advantages of
careful seeding", SODA 2007.
S. P. Lloyd, "Least squares quantization in PCM", IEEE Transactions on Information Theory 28(2),
1982. For its sums over rows: C.-T. Chu et al., "Map-Reduce for Machine Learning on Multicore",
NIPS 2006.
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

from daskml_dist.backends import Backend
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
from daskml_dist.errors import DivergedError
from daskml_dist.models.base import BatchRows
from daskml_dist.solvers.base import Array, RowState, Solution, Solver, Statistic, Sums
from daskml_dist.solvers.rows import is_sparse, to_rows_dtype

__all__ = [
    "BottomKSample",
    "CandidateWeights",
    "CentroidAssignment",
    "ClosestCandidate",
    "FarthestRows",
    "InertiaSolver",
    "KMeansSolver",
    "RowBounds",
    "RowSampleSolver",
    "SeedSample",
    "choose_centroids",
    "draw_keys",
    "iterate_row_chunks",
    "round_to_float32",
]

#: Rows of a chunk on a CPU; their temporary arrays stay in a core's L2 cache.
_CHUNK_ROWS = 1 << 13
SeedGroups = tuple[Array, ...]
#: Candidates times centroids up to which the best of eight tries is taken: that costs little.
_MAX_RETRY_PRODUCTS = 10**5


@dataclass(frozen=True, eq=False)
class BottomKSample(Statistic):
    """Base class of samples of the rows with the largest keys: ``[key, *facts, *row]``.

    Only keys above 0 count; what is left over are zeros.

    Parameters
    ----------
    n_rows : int

    Attributes
    ----------
    n_facts : int
        Numbers between a row's key and its features.
    """

    n_rows: int
    additive = False
    n_facts: ClassVar[int] = 0

    def shape(self, model: Any) -> tuple[int, ...]:
        return self.n_rows, 1 + self.n_facts + model.n_features

    def merge(self, total: Array, part: Array) -> None:
        """Keep the rows with the largest keys of both."""
        both = np.concatenate([total, part])
        total[...] = both[np.argsort(-both[:, 0], kind="stable")[: self.n_rows]]

    def keep(
        self, at: NDArray[np.intp], keys: Array, facts: list[Array], rows: Any, out: Any,
        backend: Backend,
    ) -> None:  # fmt: skip
        """Bring some rows into `out`.

        Parameters
        ----------
        at : ndarray of int of shape (m,)
            Which of the rows.
        keys, facts : ndarrays of shape (m,), and a list of them
        rows : rows of shape (n, n_features)
        out : array of :meth:`shape`
        backend : Backend
        """
        last = float(out[-1, 0])
        # Rows with a key beyond the smallest kept so far are candidates; few are, after a while.
        (ahead,) = np.nonzero(keys > last)
        if len(ahead) > self.n_rows:
            largest = np.argpartition(-keys[ahead], self.n_rows - 1)[: self.n_rows]
            ahead = np.sort(ahead[largest])
        if not len(ahead):
            return
        found = backend.to_numpy(out).copy()
        part = np.zeros((len(ahead), found.shape[1]))
        part[:, 0] = keys[ahead]
        for number, fact in enumerate(facts, 1):
            part[:, number] = fact[ahead]
        part[:, 1 + self.n_facts :] = _take_rows(rows, at[ahead], backend)
        self.merge(found, part)
        out[...] = backend.to_device(found)


def draw_keys(
    rows: BatchRows, mass: Array, last: float, *seed: int
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the rows whose key may exceed the last so far, and the keys ``mass / exponential``.

    What a row draws follows from the seed, its block and its place in it alone.
    """
    stream = np.random.PCG64(np.random.SeedSequence((*seed, rows.block + 1)))
    # Skip to the row's own draw, so that it does not depend on how a block is cut.
    stream.advance(rows.first)  # a number of 64 bits each
    if rows.places is None:
        uniform = np.random.Generator(stream).random(len(mass))
    else:
        n = int(rows.places[-1]) + 1 if len(mass) else 0
        uniform = np.random.Generator(stream).random(n)[rows.places]
    # -log(1 - u) >= u: few rows need a logarithm.
    (at,) = np.nonzero(uniform * last < mass)
    exponential = np.maximum(-np.log1p(-uniform[at]), np.finfo(np.float64).tiny)
    return at, mass[at] / exponential


def iterate_row_chunks(rows: BatchRows, backend: Backend) -> Iterator[BatchRows]:
    """Yield the rows in chunks, so that caches hold what is made of them."""
    n, d = rows.X.shape
    step = max(_CHUNK_ROWS, backend.entries_at_once // max(d, 1))
    if is_sparse(rows.X) or n <= step:
        yield rows
        return
    for at in row_slices(n, step):
        yield rows.part(at, backend)


def _take_rows(rows: Any, at: NDArray[np.intp], backend: Backend) -> NDArray[Any]:
    if is_sparse(rows):
        return np.concatenate([backend.to_numpy(rows[i : i + 1].toarray()) for i in at.tolist()])
    return backend.to_numpy(backend.rows(rows, at))


@dataclass(frozen=True, eq=False)
class ClosestCandidate(RowState):
    """The squared distance of each row to the closest candidate, and that candidate's number.

    Parameters
    ----------
    groups : tuple of ndarray of shape (m, n_features)
        Candidates as they were chosen, round by round, less the shift.
    shift : ndarray of shape (n_features,) or None
        What is taken from each row.
    """

    name = "closest"
    groups: SeedGroups
    shift: Array | None

    def make(self, model: Any, rows: BatchRows, backend: Backend) -> Any:
        """Return the distances to all candidates, computed group by group."""
        like = rows.X.values if is_sparse(rows.X) else rows.X
        state = zeros((rows.X.shape[0], 2), arithmetic_dtype(rows.X), like=like)
        state[:, 0] = namespace(state).inf
        for number in range(len(self.groups)):
            self.meet(state, rows, number, backend)
        return state

    def meet(self, state: Any, rows: BatchRows, number: int, backend: Backend) -> None:
        """Look whether a group is closer."""
        group = to_rows_dtype(self.groups[number], rows.X, backend)
        shift = None if self.shift is None else to_rows_dtype(self.shift, rows.X, backend)
        labels, apart = backend.nearest(rows.X, shift, group)
        xp, first = namespace(state), sum(map(len, self.groups[:number]))
        nearer = apart < state[:, 0]
        state[:, 1] = xp.where(nearer, cast(labels + first, state.dtype), state[:, 1])
        state[:, 0] = xp.where(nearer, apart, state[:, 0])


@dataclass(frozen=True, eq=False)
class _CandidateStatistic(Statistic):
    """Base class of sums over rows, whose state knows all candidates but the last group.

    Parameters
    ----------
    groups, shift
        As of `ClosestCandidate`.
    """

    groups: SeedGroups
    shift: Array | None
    in_parts: ClassVar[bool] = True

    @property
    def state(self) -> ClosestCandidate | None:
        """Return the closest of all candidates before the last group."""
        return ClosestCandidate(self.groups[:-1], self.shift) if self.groups else None

    def _meet_last_group(self, rows: BatchRows, backend: Backend) -> Any:
        """Update the state by the last group; return the sum of the weighted squared distances."""
        every = ClosestCandidate(self.groups, self.shift)
        every.meet(rows.state, rows, len(self.groups) - 1, backend)
        apart = cast(rows.state[:, 0], namespace(rows.state).float64)
        return total(apart if rows.weight is None else apart * rows.weight)


@dataclass(frozen=True, eq=False)
class SeedSample(_CandidateStatistic, BottomKSample):
    """Rows drawn by their squared distance to the closest candidate; the first ones uniformly.

    Parameters
    ----------
    n_rows : int
    seed, round : int
        Of the draw.
    groups, shift
        As of `ClosestCandidate`.
    """

    seed: int
    round: int

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        loss = 0.0 if self.groups else float("nan")
        for part in iterate_row_chunks(rows, backend) if self.groups else (rows,):
            # The first seeds are drawn uniformly; later ones by their squared distance (D^2
            # sampling).
            mass = np.ones(part.X.shape[0])
            if self.groups:
                loss = loss + self._meet_last_group(part, backend)
                mass = backend.to_numpy(part.state[:, 0])
            if part.weight is not None:
                mass = mass * backend.to_numpy(part.weight)
            at, keys = draw_keys(part, mass, float(out[-1, 0]), self.seed, self.round)
            self.keep(at, keys, [], part.X, out, backend)
        return scalar(loss)


@dataclass(frozen=True, eq=False)
class CandidateWeights(_CandidateStatistic):
    """Weight of the rows to which each candidate is the closest.

    Parameters
    ----------
    groups, shift
        As of `ClosestCandidate`.
    """

    def shape(self, model: Any) -> tuple[int, ...]:
        return sum(map(len, self.groups)), 1

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        loss = 0.0
        for part in iterate_row_chunks(rows, backend):
            loss = loss + self._meet_last_group(part, backend)
            labels = cast(part.state[:, 1], namespace(part.state).int64)
            each = ones((labels.shape[0], 1), part.state.dtype, like=labels)
            backend.add_rows(each, labels, part.weight, out)
        return scalar(loss)


def choose_centroids(candidates: Array, weight: Array, k: int, seed: int) -> Array:
    """Return k centroids of weighted candidates, few enough for one process, by scikit-learn."""
    if len(candidates) == k:
        return candidates
    small = len(candidates) * k <= _MAX_RETRY_PRODUCTS
    tries = 8 if small else 1
    # Threads that meet after each of so few products take longer than one of them alone.
    alone = _find_openmp_libraries().limit(limits=1, user_api="openmp") if small else nullcontext()
    with warnings.catch_warnings(), alone:
        warnings.simplefilter("ignore")  # candidates that are equal are seen later
        # Recluster the weighted candidates: the last step of k-means||.
        found = KMeans(k, n_init=tries, random_state=seed % 2**32).fit(
            candidates, sample_weight=np.maximum(weight, np.finfo(float).tiny)
        )
    return np.asarray(found.cluster_centers_, dtype=np.float64)


@cache
def _find_openmp_libraries() -> ThreadpoolController:
    """Return the process's OpenMP libraries; finding them takes milliseconds."""
    return ThreadpoolController()


#: Squared mean over the variance from which the rows are measured again, about their mean.
_RECENTRE_RATIO = 100.0
#: Sample that the first centroids are found in: rows a centroid, rows at least, entries at most.
_SAMPLE_PER_CENTROID, _MIN_SAMPLE_ROWS, _MAX_SAMPLE_ENTRIES = 50, 2000, 1 << 21
#: Squared way of the centroids over the variance below which they count as unmoved (rounding).
_UNMOVED_SHARE = 1e-28


@dataclass(frozen=True, eq=False)
class RowBounds(RowState):
    """Bounds of each row's distances to its centroid and to the others.

    They only tell where no look is needed, so that not to know any is as good.

    Parameters
    ----------
    k : int
    shift : ndarray of shape (n_features,) or None
    """

    name = "bounds"
    k: int
    shift: Array | None

    def make(self, model: Any, rows: BatchRows, backend: Backend) -> Any:
        """Return bounds that exclude nothing."""
        return backend.row_bounds(rows.X, self.shift, self.k)


@dataclass(frozen=True, eq=False)
class CentroidAssignment(Statistic):
    """Weight and weighted sum of the rows of each centroid; last, the sum of squared distances.

    Parameters
    ----------
    centroids : ndarray of shape (k, n_features)
        Less the shift.
    shift : ndarray of shape (n_features,) or None
        What is taken from each row; None for sparse rows.
    before : ndarray of shape (k, n_features) or None
        Centres of the last such sum of more than one centroid, if any.
    """

    centroids: Array
    shift: Array | None
    before: Array | None = None
    in_parts: ClassVar[bool] = True

    @property
    def state(self) -> RowBounds | None:
        """Return bounds of the distances, by which most rows keep their centroid unread."""
        return RowBounds(len(self.centroids), self.shift) if len(self.centroids) > 1 else None

    @property
    def shows_not_finite(self) -> bool:
        """Return True: the sums have the squared distances."""
        return True

    def shape(self, model: Any) -> tuple[int, ...]:
        return len(self.centroids) + 1, 1 + model.n_features

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        centroids = to_rows_dtype(self.centroids, rows.X, backend)
        shift, before = (
            None if each is None else to_rows_dtype(each, rows.X, backend)
            for each in (self.shift, self.before)
        )
        weight = None if rows.weight is None else cast(rows.weight, centroids.dtype)
        with np.errstate(over="ignore", invalid="ignore"):  # the sums show it
            inertia = backend.assign(
                rows.X, shift, centroids, weight, out[:-1, ...], rows.state, before
            )
        out[-1, 0] += inertia
        return scalar(inertia)


@dataclass(frozen=True, eq=False)
class FarthestRows(BottomKSample):
    """The rows farthest from their centroids: ``[squared distance, centroid, weight, *row]``.

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

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        centroids = to_rows_dtype(self.centroids, rows.X, backend)
        shift = None if self.shift is None else to_rows_dtype(self.shift, rows.X, backend)
        for part in iterate_row_chunks(rows, backend):
            found = backend.nearest(part.X, shift, centroids)
            labels, apart = (backend.to_numpy(array) for array in found)
            weight = np.ones(len(apart)) if part.weight is None else backend.to_numpy(part.weight)
            (at,) = np.nonzero(weight > 0)
            facts = [labels[at], weight[at]]
            self.keep(at, apart[at], facts, part.X, out, backend)
        return float("nan")


@dataclass(frozen=True, eq=False)
class KMeansSolver(Solver):
    """k-means from chosen centroids: the best of several runs.

    Parameters
    ----------
    k : int
    init : {"k-means||", "k-means++", "random"} or ndarray of shape (k, n_features)
    n_init : int
        Runs.
    max_iter : int
        Lloyd's steps of a run.
    tol : float
        Squared way of all centroids in a step, of the mean variance of a feature, at which a run
        has converged.
    oversampling : float
        Candidates of a round of ``"k-means||"``, for each centroid.
    rounds : int
        Rounds of it, after the centroids of a sample.
    seed : int
    sparse : bool
        Whether rows are sparse, which stay where they are.
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
        """Return two passes a step (one for empty clusters), and those that initialise."""
        first = {"k-means++": self.k, "k-means||": self.rounds}
        chosen = first.get(self.init, 1) if isinstance(self.init, str) else 0
        return 2 + self.n_init * (chosen + 3 + 2 * self.max_iter + 1)

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Run Lloyd's steps `n_init` times."""
        if sums.kept is not None:
            at = _KMeansRuns.of_state(sums.kept)
        else:
            at = self._prepare_runs(model.n_features, sums)
        while at.number < self.n_init:
            self._run_lloyd(at, sums)
            if sums.should_stop:
                break
        inertia, n_iter, n_found = at.best_numbers
        return Solution(at.add_shift(at.best), int(n_iter), extra=at.extra_facts(inertia, n_found))

    def _prepare_runs(self, n_features: int, sums: Sums) -> _KMeansRuns:
        """Find the rows' mean, which is subtracted from dense rows, and their variance."""
        origin = np.zeros((1, n_features))
        shift = None if self.sparse else origin[0]
        mean, variance = self._mean_and_variance(sums, origin, shift)
        # A mean far from the origin costs digits of the distances: measure again nearer to it.
        if shift is not None and mean @ mean > _RECENTRE_RATIO * variance:
            shift = round_to_float32(mean)
            mean, variance = self._mean_and_variance(sums, origin, shift)
            mean += shift
        tolerance = self.tol * variance / n_features
        shift = None if shift is None else round_to_float32(mean)
        return _KMeansRuns(n_features, shift, tolerance, _UNMOVED_SHARE * variance)

    @staticmethod
    def _mean_and_variance(sums: Sums, origin: Array, shift: Array | None) -> tuple[Array, float]:
        """Return the mean, less the shift, and the variance summed over features."""
        found = sums(CentroidAssignment(origin, shift))
        if not np.isfinite(found).all():
            raise DivergedError(
                "The squares of the rows overflow. Scale the features (StandardScaler), or use "
                "float64."
            )
        mean = found[0, 1:] / found[0, 0]
        return mean, max(0.0, float(found[1, 0] / found[0, 0] - mean @ mean))

    def _run_lloyd(self, at: _KMeansRuns, sums: Sums) -> None:
        """Take Lloyd's steps from the progress so far to the end of the run."""
        if at.n_iter == 0:
            at.centroids = self._choose_first_centroids(at, sums)
        while True:
            found = self._assign_rows(at, sums)
            before, at.centroids = at.centroids, self._update_centroids(found, at, sums)
            at.n_iter += 1
            # Squared way of all centroids, which scikit-learn's `tol` bounds.
            moved = float(((at.centroids - before) ** 2).sum())
            if moved <= max(at.tolerance, at.still) or at.n_iter == self.max_iter:
                break
            if sums.should_stop:
                break
            sums.keep(
                at.add_shift(at.centroids),
                at.state,
                extra=at.extra_facts(*_inertia_and_count(found)),
            )
        # The inertia belongs to the last centroids: one more pass unless they did not move.
        if moved > at.still and not sums.should_stop:
            found = self._assign_rows(at, sums)
        at.end_run(*_inertia_and_count(found))

    @staticmethod
    def _assign_rows(at: _KMeansRuns, sums: Sums) -> Array:
        before, at.asked = at.asked, at.centroids
        return sums(CentroidAssignment(at.centroids, at.shift, before))

    def _update_centroids(self, found: Array, at: _KMeansRuns, sums: Sums) -> Array:
        """Return each cluster's mean; an empty one moves to the row farthest from its centroid."""
        weight, total = found[:-1, :1].copy(), found[:-1, 1:].copy()
        (empty,) = np.nonzero(weight[:, 0] == 0)
        if len(empty):
            # Empty clusters take the rows that are farthest from their centroids, as in scikit-
            # learn.
            far = sums(FarthestRows(len(empty), centroids=at.centroids, shift=at.shift))
            for centroid, (key, old, own, *row) in zip(empty, far, strict=True):
                if key > 0 and weight[int(old), 0] > own:
                    apart = own * at.subtract_shift(np.array(row))
                    # The row leaves its old cluster.
                    total[int(old)] -= apart
                    weight[int(old)] -= own
                    total[centroid], weight[centroid] = apart, own
        return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), at.centroids)

    # -- first centroids -------------------------------------------------------------------------

    def _choose_first_centroids(self, at: _KMeansRuns, sums: Sums) -> Array:
        if not isinstance(self.init, str):
            return at.subtract_shift(self.init)
        if self.init == "random":
            return self._repeat_to_k(self._draw_seeds(at, sums, self.k, ()))
        # k-means++ draws one candidate a pass, k-means|| some k candidates in each of few rounds.
        one_by_one = self.init == "k-means++"
        groups: tuple[Array, ...] = (
            self._draw_seeds(at, sums, 1, ())
            if one_by_one
            else self._centroids_of_sample(at, sums),
        )
        some = 1 if one_by_one else max(1, round(self.oversampling * self.k))
        for _ in range(self.k - 1 if one_by_one else self.rounds):
            drawn = self._draw_seeds(at, sums, some, groups)
            if not len(drawn):
                break
            groups = (*groups, drawn)
        candidates = np.concatenate(groups)
        if len(candidates) <= self.k:
            return self._repeat_to_k(candidates)
        weight = sums(CandidateWeights(groups, at.shift))
        return choose_centroids(candidates, weight[:, 0], self.k, self.seed + at.number)

    def _centroids_of_sample(self, at: _KMeansRuns, sums: Sums) -> Array:
        """Return the centroids that one process finds in a random sample of the rows."""
        some = min(max(_SAMPLE_PER_CENTROID * self.k, _MIN_SAMPLE_ROWS), sums.n_rows)
        some = max(min(some, _MAX_SAMPLE_ENTRIES // at.n_features), 2 * self.k)
        rows = self._draw_seeds(at, sums, some, ())
        if len(rows) <= self.k:
            return rows
        return choose_centroids(rows, np.ones(len(rows)), self.k, self.seed + at.number)

    def _draw_seeds(
        self, at: _KMeansRuns, sums: Sums, n_rows: int, groups: tuple[Array, ...]
    ) -> Array:
        """Draw rows by their squared distance to the candidates so far; subtract the shift."""
        # Each draw of each run has a number of its own, so that none repeats another's.
        numbers = {"seed": self.seed, "round": at.number * (self.k + self.rounds + 1) + len(groups)}
        found = sums(SeedSample(n_rows=n_rows, groups=groups, shift=at.shift, **numbers))
        return at.subtract_shift(found[found[:, 0] > 0, 1:])

    def _repeat_to_k(self, rows: Array) -> Array:
        """Return `k` rows, repeating them where the data has fewer."""
        return np.resize(rows, (self.k, rows.shape[1]))


def round_to_float32(mean: Array) -> Array:
    """Return the shift rounded to float32, so that differences from it are alike in both dtypes."""
    return mean.astype(np.float32).astype(np.float64)


def _inertia_and_count(found: Array) -> tuple[float, int]:
    """Return the inertia, and how many centroids have rows."""
    return float(found[-1, 0]), int((found[:-1, 0] > 0).sum())


@dataclass
class _KMeansRuns:
    """Progress of the runs: the present centroids, and the best run so far.

    Parameters
    ----------
    n_features : int
    shift : ndarray or None
    tolerance, still : float
        Squared ways of all centroids at which a run ends, and at which they have not moved.
    """

    n_features: int
    shift: Array | None
    tolerance: float
    still: float
    number: int = 0
    n_iter: int = 0
    centroids: Array = field(default_factory=lambda: np.empty((0, 0)))
    best: Array = field(default_factory=lambda: np.empty((0, 0)))
    #: Inertia, steps, and centroids that have rows.
    best_numbers: tuple[float, float, float] = (np.inf, 0, 0)
    #: Centres that rows were last assigned to, if any. No part of the state: rows forget them too.
    asked: Array | None = None

    def subtract_shift(self, rows: Array) -> Array:
        """Return rows less the shift."""
        return rows if self.shift is None else rows - self.shift

    def add_shift(self, centroids: Array) -> Array:
        """Return centroids with the shift added back."""
        return centroids if self.shift is None else centroids + self.shift

    def extra_facts(self, inertia: float, n_found: float) -> dict[str, Any]:
        """Return what a solution has beside the centroids."""
        return {"inertia": inertia, "n_found": n_found, "shift": self.shift}

    def end_run(self, inertia: float, n_found: int) -> None:
        """Keep the run if it is the best, and begin the next."""
        if inertia < self.best_numbers[0] or not self.best.size:
            self.best, self.best_numbers = self.centroids, (inertia, self.n_iter, n_found)
        self.number, self.n_iter = self.number + 1, 0

    def state(self) -> dict[str, Array]:
        """Return the checkpoint of the runs."""
        shift = np.empty(0) if self.shift is None else self.shift
        numbers = self.tolerance, self.still, self.number, self.n_iter, *self.best_numbers
        points = {"centroids": self.centroids, "best": self.best}
        return {"shift": shift, "numbers": np.array(numbers), **points}

    @classmethod
    def of_state(cls, state: dict[str, Array]) -> _KMeansRuns:
        """Return the progress that a checkpoint was made of."""
        tolerance, still, number, n_iter, *best = state["numbers"].tolist()
        shift = state["shift"] if state["shift"].size else None
        return cls(
            state["centroids"].shape[1], shift, tolerance, still, int(number), int(n_iter),
            state["centroids"], state["best"], tuple(best),
        )  # fmt: skip


@dataclass(frozen=True)
class RowSampleSolver(Solver):
    """Rows drawn by their weights in one pass; fewer, where fewer have a weight.

    Parameters
    ----------
    n_rows : int
    seed : int
    """

    name = "sample"
    n_rows: int
    seed: int

    @property
    def max_passes(self) -> int:
        """Return 1."""
        return 1

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Return the sampled rows, an array of shape (n_rows, n_features)."""
        found = sums(SeedSample(n_rows=self.n_rows, groups=(), shift=None, seed=self.seed, round=0))
        return Solution(found[found[:, 0] > 0, 1:])


@dataclass(frozen=True, eq=False)
class InertiaSolver(Solver):
    """The sum of the squared distances of the rows to the nearest of given centroids.

    Parameters
    ----------
    centroids : ndarray of shape (k, n_features)
        Less the shift.
    shift : ndarray of shape (n_features,) or None
    """

    name = "inertia"
    centroids: Array
    shift: Array | None

    @property
    def max_passes(self) -> int:
        """Return 1."""
        return 1

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Return the inertia, in an array of one number."""
        return Solution(np.array([sums(CentroidAssignment(self.centroids, self.shift))[-1, 0]]))
