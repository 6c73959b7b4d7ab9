"""Interface of vertex-centric solvers: ranks of vertices, factors of users and items.

The data are *entries* of a sparse matrix: a row key, a column key and a value (source, target and
weight of an edge; user, item and rating). A solver computes a value for each key from the values
of the keys that it shares entries with. The sorted keys are partitioned into ranges, one a lane. A
trainer owns the values of its lanes' keys, holds all entries of these keys as rows of CSR blocks,
and fetches the values of the column keys from the trainers that own them (the "halo"). See
"Pregel", Malewicz et al. 2010, and "GraphLab", Low et al. 2012.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.solvers.base import Solution

Array = NDArray[Any]
R = TypeVar("R")


@dataclass(frozen=True)
class EntrySide:
    """Orientation of the matrix of entries: unchanged, or transposed.

    Parameters
    ----------
    name : str
    rows, columns : str
        The *spaces*, sets of keys numbered together, of the row keys and of the column keys.
        Sources and targets of edges share one space, users and items do not.
    row_key_index : {0, 1}
        Which key of an entry is its row: 0 the first; 1 the second (transposed).
    """

    name: str
    rows: str
    columns: str
    row_key_index: int


@dataclass(frozen=True)
class KeyRange:
    """Range of the keys of a space that a lane owns.

    Parameters
    ----------
    lane : int
    first : int
        Index of the range's first key among all sorted keys of the space.
    own_slice : slice
        Position of the range's values in the trainer's own array of the space.
    ids : ndarray of shape (n,)
        The keys as in the user's data (their labels), sorted.
    strengths : ndarray of float64 of shape (2, n)
        Weighted degrees: for each key, the sum of the values of the entries whose first key it is,
        and of those whose second key it is; without values, the number of the entries.
    """

    lane: int
    first: int
    own_slice: slice
    ids: Array
    strengths: NDArray[np.float64]

    def __len__(self) -> int:
        return int(self.own_slice.stop - self.own_slice.start)


@dataclass(frozen=True)
class KeyedRows:
    """A lane's entries on one side: a CSR matrix with a row for each key that it owns.

    Parameters
    ----------
    range : KeyRange
        Row keys.
    indptr : ndarray of int64 of shape (n + 1,)
    indices : ndarray of int32 or int64 of shape (n_entries,)
        For each entry, the position of its column key's value in the array that
        :meth:`KeyedEntries.touched` or :meth:`KeyedEntries.in_parts` returns. The entries of a row
        are sorted by column key; duplicates are possible.
    values : ndarray of float64 or float32 of shape (n_entries,), or None
        None: all are 1.
    of_row : tuple of int, or None
        For a piece of one long row (:meth:`KeyedEntries.in_parts`): the number of the row's entries
        before the piece, and in the whole row. None: whole rows.
    """

    range: KeyRange
    indptr: NDArray[np.int64]
    indices: Array
    values: Array | None
    of_row: tuple[int, int] | None = None


class KeyedEntries(Protocol):
    """The entries of a fit, as seen by each of the trainers that solve together.

    Methods are collective: all trainers make the same calls in the same order. The result of a
    lane does not depend on the trainer that computes it.

    Attributes
    ----------
    n_keys : dict of str to int
        Number of keys in each space, over all trainers.
    n_done : int
        Iterations done before the loss from which the fit resumes; 0 at the start.
    kept : dict of str to ndarray, or None
        Values given to :meth:`keep` at the end of iteration `n_done`, by space: of the keys that
        the trainer owns now, which may be others than before the loss. None at the start.
    solver_state : ndarray of float64 or None
        The `solver_state` given to :meth:`keep` with them.
    should_stop : bool
        Whether the user asked the fit to end. Updated by :meth:`sum`, so that it is the same in
        all trainers.
    """

    n_keys: dict[str, int]
    n_done: int
    kept: dict[str, Array] | None
    solver_state: NDArray[np.float64] | None

    @property
    def should_stop(self) -> bool: ...

    # Work on the own keys, without messages.
    def ranges(self, space: str) -> list[KeyRange]:
        """Return the key ranges of a space that this trainer owns, one for each of its lanes."""

    def map(self, function: Callable[[KeyedRows], R], side: str) -> list[R]:
        """Apply a function to each own lane's rows of a side, in the trainer's compute threads.

        The function may write into the trainer's array of the rows' space at
        ``rows.range.own_slice``: the lanes' ranges do not overlap.
        """

    # Exchanges along the entries: the values of their column keys come from the owners (halo).
    def touched(self, side: str, values: Array) -> Array:
        """Return the values of all column keys of the own rows of a side, from their owners.

        Parameters
        ----------
        side : str
        values : ndarray of shape (n_own, ...)
            Values of the own keys in the space of the columns.
        """

    def in_parts(
        self,
        side: str,
        values: Array,
        prepare: Callable[[KeyedRows], KeyedRows],
        n_piece_entries: int | None = None,
        only_long_rows: bool = False,
    ) -> Iterator[tuple[Array, Callable[[Callable[[KeyedRows], R]], list[R]]]]:
        """Yield column keys' values and rows, a part at a time if not all values fit in memory.

        Parameters
        ----------
        side : str
        values : ndarray of shape (n_own, ...)
            As of :meth:`touched`.
        prepare : callable
            Preprocesses a lane's rows, once, before they are cut into parts.
        n_piece_entries : int, optional
            Rows too long for a part are cut at multiples of this number of entries, and come
            first (`KeyedRows.of_row`). None: every row is whole.
        only_long_rows : bool, default=False
            Whether to yield only the pieces of long rows, for a second pass over them.

        Yields
        ------
        touched : ndarray
            Values of the part's column keys.
        map_rows : callable
            Applies a function to the part's rows of each lane, in the compute threads.
        """

    # Exchanges with the owners of any keys, whether own entries name them or not.
    def gather(self, space: str, key_indices: NDArray[np.int64], values: Array) -> Array:
        """Return the values of any keys of a space, from their owners (gather).

        Parameters
        ----------
        space : str
        key_indices : ndarray of int64 of shape (m,)
            Indices of the wanted keys among all keys of the space; each trainer has its own.
        values : ndarray of shape (n_own, ...)
            Values of the own keys.
        """

    def scatter(
        self, space: str, key_indices: NDArray[np.int64], contributions: Array
    ) -> tuple[NDArray[np.intp], Array]:
        """Send contributions to the owners of any keys of a space (scatter).

        Parameters
        ----------
        space : str
        key_indices : ndarray of int64 of shape (m,)
            Indices of the keys among all keys of the space.
        contributions : ndarray of shape (m, ...)
            Contribution to each of them.

        Returns
        -------
        positions : ndarray of intp
            Positions, in the trainer's own array, of the own keys that trainers contributed to.
        contributions : ndarray
            Their contributions, in the same order; a key may occur several times.
        """

    # Results that are the same in all trainers, and the end of an iteration.
    def sum(self, lane_terms: Sequence[Any]) -> NDArray[np.float64]:
        """Return the sum of one part a lane, over all trainers.

        Added in the order of the lanes, so the bits do not depend on the number of trainers.
        """

    def keep(
        self,
        values: Mapping[str, Array],
        n_iter: int,
        solver_state: Any = None,
        loss: float = float("nan"),
    ) -> None:
        """Record the end of an iteration, which counts as a pass over the data.

        From time to time the values are copied to the next trainer (a buddy checkpoint): after a
        loss the fit resumes from there, and ends with the bits of an undisturbed one.

        Parameters
        ----------
        values : mapping of str to ndarray
            Values of the own keys, by space.
        n_iter : int
        solver_state : array of float64, optional
            State of the solver that is the same in all trainers.
        loss : float, optional
            For the fit's history.
        """


@dataclass
class KeyedSolution(Solution):
    """Result of a solver over keys.

    Parameters
    ----------
    values : dict of str to ndarray of shape (n, ...)
        By space, the values of a trainer's own keys; after :meth:`join`, of all keys.
    ids : dict of str to ndarray of shape (n,)
        The keys as in the user's data; filled by the engine.
    lanes : dict of str to dict of int to slice
        By space and lane, the position of the lane's keys in `values`; filled by the engine.
    """

    values: dict[str, Array] = field(default_factory=dict)
    ids: dict[str, Array] = field(default_factory=dict)
    lanes: dict[str, dict[int, slice]] = field(default_factory=dict)

    @staticmethod
    def join(solutions: Sequence[KeyedSolution]) -> KeyedSolution:
        """Return one solution with the values of all keys; the first one is changed in place."""
        first = solutions[0]
        lane_slices = [solution.lanes for solution in solutions]
        for space in first.values:
            first.values[space] = _join_lane_values(
                [solution.values[space] for solution in solutions], space, lane_slices
            )
        # Empty lanes are left out: their arrays of ids have a default dtype, not the user's.
        for space in first.ids:
            first.ids[space] = _join_lane_values(
                [solution.ids[space] for solution in solutions], space, lane_slices, True
            )
        # Positions in a trainer's own arrays are not valid in the joined ones.
        first.lanes = {}
        return first


def _join_lane_values(
    arrays: Sequence[Array], space: str, places: Sequence[Any], filled: bool = False
) -> Array:
    """Return values concatenated in the order of lanes, without empty lanes if `filled`."""
    parts = {
        lane: array[positions]
        for array, lane_slices in zip(arrays, places, strict=True)
        for lane, positions in lane_slices[space].items()
        if positions.stop > positions.start or not filled
    }
    # Lanes own adjacent ranges of the sorted keys, so concatenation by lane sorts the keys.
    return np.concatenate([parts[lane] for lane in sorted(parts)])


class KeyedSolver(ABC):
    """Base class of the solvers over keys. Immutable: it is pickled to every trainer.

    Attributes
    ----------
    max_passes : int
        Most calls of :meth:`KeyedEntries.keep`.
    """

    @property
    @abstractmethod
    def max_passes(self) -> int: ...

    @abstractmethod
    def solve(self, keyed: KeyedEntries) -> KeyedSolution:
        """Solve in step with the other trainers, which make the same calls in the same order.

        If ``keyed.kept`` is not None, resume from there, as if iteration ``keyed.n_done`` had just
        ended.
        """
