"""Log of a round solver's course, which every trainer keeps, so that any can lead it on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.memory import UsedAgain
from daskml_dist.comm.packing import pack_object, unpack_object
from daskml_dist.training.worker.loops.lane_sums import EXTRA

__all__ = ["SumLog"]

Array = NDArray[np.float64]

#: Bytes of sums that a trainer remembers at most; a solver that needs more begins anew, or where
#: it kept its state last.
_MEMORY = 2**28
#: Bytes of sums from which on a solver's state is taken in their place.
_MUCH = 2**24


@dataclass
class SumLog:
    """The sums so far, or the state that a solver kept and the sums since.

    Parameters
    ----------
    n_rows : int
        Rows that they were made of.
    kept : dict from str to ndarray, or None
        The state that the solver can go on from; None: from its start.
    n_iter : int
        Iterations up to there.
    first : int
        Sums up to there, which are forgotten.
    sums : list of ndarray or None
        Those since, each flattened and with `EXTRA` numbers behind it; None: to be made anew.
    reports : list of ndarray
        The `EXTRA` numbers of all sums since the fit began.
    """

    n_rows: int
    kept: dict[str, Array] | None = None
    n_iter: int = 0
    first: int = 0
    sums: list[Array | None] = field(default_factory=list)
    reports: list[Array] = field(default_factory=list)
    is_whole: bool = True
    n_bytes: int = 0
    _memory: UsedAgain = field(default_factory=UsedAgain)

    def room(self, n: int) -> Array:
        """Memory for the next sum, of `n` numbers."""
        return self._memory.empty(8 * n).view(np.float64)

    def get(self, number: int) -> Array | None:
        """Sum `number` (from 1), where it is remembered."""
        at = number - self.first - 1
        return self.sums[at] if self.is_whole and at < len(self.sums) else None

    def add(self, number: int, total: Array, remembered: bool = True) -> None:
        """Remember a sum as it is: whoever sees it may not change it."""
        total.flags.writeable = False
        if number <= len(self.reports):
            return  # one that was not remembered, made anew
        self.reports.append(total[-EXTRA:].copy())
        self.n_bytes += total.nbytes if remembered else 0
        if self.n_bytes > _MEMORY:
            self.sums, self.is_whole = [], False
        if self.is_whole:
            self.sums.append(total if remembered else None)

    def is_long(self, number: int) -> bool:
        """Whether a state that is kept after sum `number` is better than the sums up to there."""
        known = 0 if self.kept is None else _bytes(self.kept)
        return number == len(self.reports) and self.n_bytes > max(_MUCH, known)

    def keep(self, state: dict[str, Array], n_iter: int, again: int) -> None:
        """Put a solver's state in the place of all sums but the last, which it asks for again."""
        self.kept, self.n_iter = state, n_iter
        self.first = len(self.reports) - again
        self.sums = self.sums[len(self.sums) - again :] if again else []
        self.is_whole = len(self.sums) == again
        self.n_bytes = sum(total.nbytes for total in self.sums if total is not None)

    def begin(self) -> SumLog:
        """Log that a solver is led by which begins again: without what is not whole."""
        if not self.is_whole:
            self.sums, self.reports = [], self.reports[: self.first]
            self.is_whole, self.n_bytes = True, 0
        return self

    @property
    def reach(self) -> tuple[int, int]:
        """Reach of the log, and its beginning: what goes furthest, and is shortest, is best."""
        return len(self.reports), self.first

    def packed(self) -> NDArray[np.uint8]:
        """The log as bytes, for other trainers and for files."""
        reports = np.array(self.reports).reshape(-1, EXTRA)
        facts = [self.n_rows, self.kept, self.n_iter, self.first, self.sums, reports]
        return np.frombuffer(pack_object(facts, {}), np.uint8)

    def become(self, data: NDArray[np.uint8]) -> None:
        """Undo :meth:`packed`.

        Raises
        ------
        CommunicationError
            The bytes are not what it makes.
        """
        found = unpack_object(data, {})
        self.n_rows, self.kept, self.n_iter, self.first, self.sums, reports = found
        self.reports = list(reports)
        self.n_bytes, self.is_whole = _bytes(dict(enumerate(self.sums))), True
        for total in self.sums:
            if total is not None:
                total.flags.writeable = False


def _bytes(arrays: dict[str, Array] | dict[int, Array | None]) -> int:
    return sum(array.nbytes for array in arrays.values() if array is not None)
