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

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import Backend
from daskml_dist.models.base import BatchRows
from daskml_dist.solvers.base import Array, Statistic
from daskml_dist.solvers.rows import is_sparse

__all__ = ["FirstRows", "exponentials"]


@dataclass(frozen=True, eq=False)
class FirstRows(Statistic):
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

    def keep(self, keys: Array, facts: list[Any], rows: Any, out: Any, backend: Backend) -> None:
        """Bring rows into `out`.

        Parameters
        ----------
        keys : ndarray of float64 of shape (n,)
        facts : list of ndarray of shape (n,)
        rows : rows of shape (n, n_features)
        out : array of :meth:`shape`
        backend : Backend
        """
        found = backend.to_numpy(out).copy()
        # Who is behind all that are there already need not be looked at.
        (ahead,) = np.nonzero(keys > found[-1, 0])
        if len(ahead) > self.n_rows:
            largest = np.argpartition(-keys[ahead], self.n_rows - 1)[: self.n_rows]
            ahead = np.sort(ahead[largest])
        if not len(ahead):
            return
        part = np.zeros((len(ahead), found.shape[1]))
        part[:, 0] = keys[ahead]
        for number, fact in enumerate(facts, 1):
            part[:, number] = fact[ahead]
        part[:, 1 + self.n_facts :] = _chosen(rows, ahead, backend)
        self.merge(found, part)
        out[...] = backend.to_device(found)


def exponentials(rows: BatchRows, *seed: int) -> NDArray[np.float64]:
    """Exponential numbers, one a row: of the seed, the block and the row's place in it alone."""
    stream = np.random.PCG64(np.random.SeedSequence((*seed, rows.block + 1)))
    stream.advance(rows.first)  # a number of 64 bits each
    uniform = np.random.Generator(stream).random(rows.X.shape[0])
    return np.maximum(-np.log1p(-uniform), np.finfo(np.float64).tiny)


def _chosen(rows: Any, at: NDArray[np.intp], backend: Backend) -> NDArray[Any]:
    if is_sparse(rows):
        return np.concatenate([backend.to_numpy(rows[i : i + 1].toarray()) for i in at.tolist()])
    return backend.to_numpy(backend.rows(rows, at))
