"""Interface of solvers over keys: ranks of vertices, factors of users and items.

The data are *entries*: a row key, a column key and a value (source, target and weight of an edge;
user, item and rating). A solver finds a value for each key, which depends on the values of the
keys that it shares entries with. Keys are cut into ranges, one a lane; a trainer owns the values
of its lanes' keys, has all entries of these keys as rows of CSR blocks, and fetches the other
trainers' values that its entries touch ("GraphLab" of Low et al. 2012; "Pregel", Malewicz et al.
2010).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.solvers.base import Solution

__all__ = ["EntrySide", "KeyRange", "KeyedEntries", "KeyedRows", "KeyedSolution", "KeyedSolver"]

Array = NDArray[Any]
R = TypeVar("R")


@dataclass(frozen=True)
class EntrySide:
    """One of the two ways to read entries: as rows of their first key, or of their second.

    Parameters
    ----------
    name : str
    rows, columns : str
        The *space* that the keys of its rows and its columns are numbered in. Sources and targets
        of edges share one, users and items do not.
    by : {0, 1}
        Whether the first or the second key of an entry is its row.
    """

    name: str
    rows: str
    columns: str
    by: int


@dataclass(frozen=True)
class KeyRange:
    """Range of the keys of a space that a lane owns.

    Parameters
    ----------
    lane : int
    first : int
        Number of the first of them among all keys of the space, which are sorted.
    own : slice
        Where their values lie in the trainer's own array of the space.
    ids : ndarray of shape (n,)
        What the user calls them, sorted.
    strengths : ndarray of float64 of shape (2, n)
        Of each key, the sum of the values of all entries whose first, and whose second, key it is;
        their number where entries have no values.
    """

    lane: int
    first: int
    own: slice
    ids: Array
    strengths: NDArray[np.float64]

    def __len__(self) -> int:
        return int(self.own.stop - self.own.start)


@dataclass(frozen=True)
class KeyedRows:
    """A lane's entries on one side: a CSR matrix with a row for each key that it owns.

    Parameters
    ----------
    range : KeyRange
        Of the rows.
    indptr : ndarray of int64 of shape (n + 1,)
    indices : ndarray of int32 or int64 of shape (n_entries,)
        Of each entry, where the value of its column key lies in what :meth:`Keyed.touched` gives
        for the side. The entries of a row are in the order of their column keys; the same two keys
        may come several times.
    values : ndarray of float64 or float32 of shape (n_entries,), or None
        None: all are 1.
    of_row : tuple of int, or None
        Where rows are taken in parts, and these are but some of a row's entries: how many the row
        has before them, and in all.
    """

    range: KeyRange
    indptr: NDArray[np.int64]
    indices: Array
    values: Array | None
    of_row: tuple[int, int] | None = None


class KeyedEntries(Protocol):
    """The entries of a fit, as seen by each of the trainers that solve together.

    All trainers make the same calls in the same order, and get the same answers where these are
    not of their own keys. What a lane computes does not depend on the trainer that runs it.

    Attributes
    ----------
    n_keys : dict of str to int
        Keys of each space, of all trainers.
    n_done : int
        Iterations that were made before, where a fit goes on after a loss; 0 at the start.
    kept : dict of str to ndarray, or None
        What :meth:`keep` was given then: the own values by space, as they lie with the lanes that
        the trainer has now. None at the start.
    small : ndarray of float64 or None
        The numbers that :meth:`keep` was given then.
    should_stop : bool
        Whether the user asked the fit to end, as far as the last :meth:`sum` told; the same in all
        trainers.
    """

    n_keys: dict[str, int]
    n_done: int
    kept: dict[str, Array] | None
    small: NDArray[np.float64] | None

    @property
    def should_stop(self) -> bool: ...

    def ranges(self, space: str) -> list[KeyRange]:
        """Return the own keys of a space: one range for each own lane, one after the other."""

    def map(self, function: Callable[[KeyedRows], R], side: str) -> list[R]:
        """Apply a function to each own lane's rows of a side, in the trainer's compute threads.

        It may write into the own array of the rows' space at ``rows.range.own``, where nobody else
        does.
        """

    def touched(self, side: str, values: Array) -> Array:
        """Fetch the values of all column keys of the own rows of a side from their owners."""

    def in_parts(
        self,
        side: str,
        values: Array,
        ready: Callable[[KeyedRows], KeyedRows],
        piece: int | None = None,
        again: bool = False,
    ) -> Iterator[tuple[Array, Callable[[Callable[[KeyedRows], R]], list[R]]]]:
        """Fetch values as `touched` does, for some rows at a time where memory is short."""

    def at(self, space: str, numbers: NDArray[np.int64], values: Array) -> Array:
        """Fetch the values of any keys of a space from their owners; each trainer asks for its own.

        Parameters
        ----------
        space : str
        numbers : ndarray of int64 of shape (m,)
            Of keys, among all of the space.
        values : ndarray of shape (n_own, ...)
            Of the own keys.
        """

    def sent(
        self, space: str, numbers: NDArray[np.int64], parts: Array
    ) -> tuple[NDArray[np.intp], Array]:
        """Give parts to the owners of any keys of a space."""

    def sum(self, parts: Sequence[Any]) -> NDArray[np.float64]:
        """Sum over the lanes of all trainers, in the order of the lanes: the same to the bit."""

    def keep(
        self,
        values: Mapping[str, Array],
        n_iter: int,
        small: Any = None,
        loss: float = float("nan"),
    ) -> None:
        """Take note that an iteration ended: each counts as a pass of the fit.

        Now and then the values are copied, and mirrored on the next trainer: after a loss the fit
        goes on from such an image, and ends with the digits of an undisturbed one.
        """


@dataclass
class KeyedSolution(Solution):
    """Result of a solver over keys.

    Parameters
    ----------
    values : dict of str to ndarray of shape (n, ...)
        By space: of a trainer's own keys in its solution, of all keys once trainers' are joined.
    ids : dict of str to ndarray of shape (n,)
        What the user calls these keys; the engine fills it.
    lanes : dict of str to dict of int to slice
        By space and lane, where the own keys lie in `values`; the engine fills it.
    """

    values: dict[str, Array] = field(default_factory=dict)
    ids: dict[str, Array] = field(default_factory=dict)
    lanes: dict[str, dict[int, slice]] = field(default_factory=dict)

    @staticmethod
    def join(some: Sequence[KeyedSolution]) -> KeyedSolution:
        """Join the solutions of all trainers to one with the values of all keys."""
        first = some[0]
        places = [one.lanes for one in some]
        for space in first.values:
            first.values[space] = _join_lane_values(
                [one.values[space] for one in some], space, places
            )
        # A lane without keys does not know of what type they are.
        for space in first.ids:
            first.ids[space] = _join_lane_values(
                [one.ids[space] for one in some], space, places, True
            )
        first.lanes = {}
        return first


def _join_lane_values(
    arrays: Sequence[Array], space: str, places: Sequence[Any], filled: bool = False
) -> Array:
    """Concatenate values in the order of lanes; only lanes that have keys where `filled`."""
    parts = {
        lane: array[at]
        for array, of in zip(arrays, places, strict=True)
        for lane, at in of[space].items()
        if at.stop > at.start or not filled
    }
    return np.concatenate([parts[lane] for lane in sorted(parts)])


class KeyedSolver(ABC):
    """Base class of the solvers over keys. Immutable: it travels, as pickle takes it.

    Attributes
    ----------
    max_passes : int
        Calls of :meth:`Keyed.keep` at most.
    """

    @property
    @abstractmethod
    def max_passes(self) -> int: ...

    @abstractmethod
    def solve(self, keyed: KeyedEntries) -> KeyedSolution:
        """Solve together with other trainers, which make the same calls.

        Where ``keyed.kept`` is not None it goes on from there, as if the iteration number
        ``keyed.n_done`` had just ended.
        """
