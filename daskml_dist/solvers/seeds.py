"""First centres of k-means: rows far from those that were chosen, in few rounds over all rows.

References
----------
B. Bahmani, B. Moseley, A. Vattani, R. Kumar and S. Vassilvitskii, "Scalable k-means++", VLDB 2012.
D. Arthur and S. Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
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
from daskml_dist.models.base import BatchRows
from daskml_dist.solvers.base import Array, RowState, Statistic
from daskml_dist.solvers.bottom_k_sampling import BottomKSample, drawn, some_rows
from daskml_dist.solvers.rows import is_sparse, to_rows

__all__ = ["CandidateWeights", "Closest", "Seeds", "choose"]

Groups = tuple[Array, ...]

#: Products of candidates and centres up to which the best of several tries is taken.
_SMALL = 10**5


@dataclass(frozen=True, eq=False)
class Closest(RowState):
    """The squared distance of each row to the closest candidate, and the number of that one.

    Parameters
    ----------
    groups : tuple of ndarray of shape (m, n_features)
        Candidates as they were chosen, round by round, less the shift.
    shift : ndarray of shape (n_features,) or None
        What is taken from each row.
    """

    name = "closest"
    groups: Groups
    shift: Array | None

    def make(self, model: Any, rows: BatchRows, backend: Backend) -> Any:
        """Distances to all candidates, group by group."""
        like = rows.X.values if is_sparse(rows.X) else rows.X
        state = zeros((rows.X.shape[0], 2), arithmetic_dtype(rows.X), like=like)
        state[:, 0] = namespace(state).inf
        for number in range(len(self.groups)):
            self.meet(state, rows, number, backend)
        return state

    def meet(self, state: Any, rows: BatchRows, number: int, backend: Backend) -> None:
        """Look whether a group is closer."""
        group = to_rows(self.groups[number], rows.X, backend)
        shift = None if self.shift is None else to_rows(self.shift, rows.X, backend)
        labels, apart = backend.nearest(rows.X, shift, group)
        xp, first = namespace(state), sum(map(len, self.groups[:number]))
        nearer = apart < state[:, 0]
        state[:, 1] = xp.where(nearer, cast(labels + first, state.dtype), state[:, 1])
        state[:, 0] = xp.where(nearer, apart, state[:, 0])


@dataclass(frozen=True, eq=False)
class _OfCandidates(Statistic):
    """Base class of sums over rows that have met all candidates but those of the last round.

    Parameters
    ----------
    groups, shift
        As of `Closest`.
    """

    groups: Groups
    shift: Array | None
    in_parts: ClassVar[bool] = True

    @property
    def state(self) -> Closest | None:
        """The closest of all candidates before the last group."""
        return Closest(self.groups[:-1], self.shift) if self.groups else None

    def _meet(self, rows: BatchRows, backend: Backend) -> Any:
        """The state of rows that have met the last group; their weighted distances' sum."""
        every = Closest(self.groups, self.shift)
        every.meet(rows.state, rows, len(self.groups) - 1, backend)
        apart = cast(rows.state[:, 0], namespace(rows.state).float64)
        return total(apart if rows.weight is None else apart * rows.weight)


@dataclass(frozen=True, eq=False)
class Seeds(_OfCandidates, BottomKSample):
    """Rows drawn by their squared distance to the closest candidate; the first ones uniformly.

    Parameters
    ----------
    n_rows : int
    seed, round : int
        Of the draw.
    groups, shift
        As of `Closest`.
    """

    seed: int
    round: int

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        loss = 0.0 if self.groups else float("nan")
        for part in some_rows(rows, backend) if self.groups else (rows,):
            mass = np.ones(part.X.shape[0])
            if self.groups:
                loss = loss + self._meet(part, backend)
                mass = backend.to_numpy(part.state[:, 0])
            if part.weight is not None:
                mass = mass * backend.to_numpy(part.weight)
            at, keys = drawn(part, mass, float(out[-1, 0]), self.seed, self.round)
            self.keep(at, keys, [], part.X, out, backend)
        return scalar(loss)


@dataclass(frozen=True, eq=False)
class CandidateWeights(_OfCandidates):
    """Weight of the rows to which each candidate is the closest.

    Parameters
    ----------
    groups, shift
        As of `Closest`.
    """

    def shape(self, model: Any) -> tuple[int, ...]:
        return sum(map(len, self.groups)), 1

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        loss = 0.0
        for part in some_rows(rows, backend):
            loss = loss + self._meet(part, backend)
            labels = cast(part.state[:, 1], namespace(part.state).int64)
            each = ones((labels.shape[0], 1), part.state.dtype, like=labels)
            backend.add_rows(each, labels, part.weight, out)
        return scalar(loss)


def choose(candidates: Array, weight: Array, k: int, seed: int) -> Array:
    """k centres of weighted candidates, few enough for one process: by scikit-learn's k-means.

    Parameters
    ----------
    candidates : ndarray of shape (n, n_features), n >= k
    weight : ndarray of shape (n,)
    k, seed : int

    Returns
    -------
    ndarray of shape (k, n_features)
    """
    if len(candidates) == k:
        return candidates
    small = len(candidates) * k <= _SMALL
    tries = 8 if small else 1
    # Threads that meet after each of so few products take longer than one of them alone.
    alone = _openmp().limit(limits=1, user_api="openmp") if small else nullcontext()
    with warnings.catch_warnings(), alone:
        warnings.simplefilter("ignore")  # candidates that are equal are seen later
        found = KMeans(k, n_init=tries, random_state=seed % 2**32).fit(
            candidates, sample_weight=np.maximum(weight, np.finfo(float).tiny)
        )
    return np.asarray(found.cluster_centers_, dtype=np.float64)


@cache
def _openmp() -> ThreadpoolController:
    """The process's OpenMP libraries; looking for them takes milliseconds."""
    return ThreadpoolController()
