"""First centroids of k-means (k-means||), and weighted sampling of rows in one pass.

:class:`BottomKSample` is weighted sampling without replacement as a sum of fixed size: a row of
weight w that draws ``w / e``, e exponential, has one of the m largest keys as often as it is
among m rows drawn by their weights one after the other. :class:`SeedSample` draws rows far from
the candidates so far.

References
----------
P. S. Efraimidis and P. G. Spirakis, "Weighted random sampling with a reservoir", Information
Processing Letters 97(5), 2006. B. Bahmani, B. Moseley, A. Vattani, R. Kumar and S. Vassilvitskii,
"Scalable k-means++", VLDB 2012. D. Arthur and S. Vassilvitskii, "k-means++: the advantages of
careful seeding", SODA 2007.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
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
from daskml_dist.models.base import BatchRows
from daskml_dist.solvers.base import Array, RowState, Statistic
from daskml_dist.solvers.rows import is_sparse, to_rows_dtype

__all__ = [
    "BottomKSample",
    "CandidateWeights",
    "ClosestCandidate",
    "SeedSample",
    "choose_centroids",
    "draw_keys",
    "iterate_row_chunks",
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
