"""Races: the few rows of all that come first, by keys that each row draws or has.

A row of weight w that draws ``w / e``, e exponential, has one of the m largest keys as often as it
is among m rows drawn by their weights, one after the other, without replacement. So a sample is one
sum over all rows, of fixed size, wherever these are.

References
----------
P. S. Efraimidis and P. G. Spirakis, "Weighted random sampling with a reservoir", Information
Processing Letters 97(5), 2006.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import Backend
from daskml_dist.backends.row_slices import row_slices
from daskml_dist.models.base import BatchRows
from daskml_dist.solvers.base import Array, Statistic
from daskml_dist.solvers.rows import is_sparse

__all__ = ["BottomKSample", "drawn", "some_rows"]

#: Rows of a host that are worked on at once.
_AT_ONCE = 1 << 13


@dataclass(frozen=True, eq=False)
class BottomKSample(Statistic):
    """Base class of races: the rows with the largest keys, as ``[key, *facts, *row]``.

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
        part[:, 1 + self.n_facts :] = _chosen(rows, at[ahead], backend)
        self.merge(found, part)
        out[...] = backend.to_device(found)


def drawn(
    rows: BatchRows, mass: Array, last: float, *seed: int
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Rows whose key may be larger than the last so far, and their keys ``mass / exponential``.

    What a row draws follows from the seed, its block and its place in it alone.

    Parameters
    ----------
    rows : BatchRows
    mass : ndarray of shape (n,)
    last : float
    *seed : int
    """
    stream = np.random.PCG64(np.random.SeedSequence((*seed, rows.block + 1)))
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


def some_rows(rows: BatchRows, backend: Backend) -> Iterator[BatchRows]:
    """The rows some at a time, so that caches hold what is made of them."""
    n, d = rows.X.shape
    step = max(_AT_ONCE, backend.entries_at_once // max(d, 1))
    if is_sparse(rows.X) or n <= step:
        yield rows
        return
    for at in row_slices(n, step):
        yield rows.part(at, backend)


def _chosen(rows: Any, at: NDArray[np.intp], backend: Backend) -> NDArray[Any]:
    if is_sparse(rows):
        return np.concatenate([backend.to_numpy(rows[i : i + 1].toarray()) for i in at.tolist()])
    return backend.to_numpy(backend.rows(rows, at))
