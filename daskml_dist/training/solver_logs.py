"""Points and logs from which a solver continues after a loss, or in a later part of its fit.

`SolverPoint` is the state after an iteration, `SumLog` the sums over all rows since the last saved
state, which a solver takes again in place of reading the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.base import ReusedMemory
from daskml_dist.comm.packing import pack_object, unpack_object
from daskml_dist.solvers.own_rows import State

#: Numbers that follow each sum in messages: loss, rows, bytes sent, bytes received.
EXTRA = 4
#: Bytes of sums in a log at most (256 MiB); after a loss, a solver with more begins again from its
#: last saved state, or from the start.
MAX_REMEMBERED_BYTES = 2**28
#: Bytes of sums (16 MiB) from which a solver's saved state replaces them.
REPLACED_FROM_BYTES = 2**24
Array = NDArray[Any]
FloatArray = NDArray[np.float64]


@dataclass
class SolverPoint:
    """End of a solver's iteration, to continue from after a loss or in the next part of a fit.

    Parameters
    ----------
    n_rows : int
        Rows of the fit.
    n_iter : int
        Iterations so far, as the solver counts them.
    make_state : callable or None
        Returns the arrays that the solver continues from, by name; None: it begins.
    reports : sequence of ndarray
        The `EXTRA` numbers that were reported of each pass, and its scores.
    """

    n_rows: int
    n_iter: int = 0
    make_state: State | None = None
    reports: Sequence[Array] = ()

    @property
    def state(self) -> Mapping[str, Array] | None:
        """Return the arrays that the solver continues from; None: it begins."""
        return None if self.make_state is None else self.make_state()

    def packed(self) -> NDArray[np.uint8]:
        """Return the point as bytes, for other trainers, later parts of a fit and checkpoints."""
        facts = [self.n_rows, self.n_iter, dict(self.state or {}), np.array(self.reports)]
        return np.frombuffer(pack_object(facts, {}), np.uint8)

    @classmethod
    def unpacked(cls, data: NDArray[np.uint8]) -> SolverPoint:
        """Return the point that :meth:`packed` made bytes of."""
        n_rows, n_iter, state, reports = unpack_object(data, {})
        if not isinstance(state, dict) or np.ndim(reports) != 2 or np.shape(reports)[1] < EXTRA:
            raise ValueError("no point of a solver on its own rows")
        return cls(n_rows, n_iter, lambda: state, list(reports))


@dataclass
class SumLog:
    """Log of the sums of a fit, or of a solver's last saved state and the sums since.

    Parameters
    ----------
    n_rows : int
        Rows of the fit.
    kept : dict from str to ndarray, or None
        The solver's last saved state; None: there is none, and the log is from the beginning.
    n_iter : int
        Iterations up to that state.
    first : int
        Number of sums up to that state, which are no longer in the log.
    sums : list of ndarray or None
        Sums since, each flattened and followed by `EXTRA` numbers; None: to be made again.
    reports : list of ndarray
        The `EXTRA` numbers of all sums since the beginning of the fit.
    is_whole : bool
        Whether all sums since that state are in the log: they may have become too large.
    n_bytes : int
        Size of the sums.
    """

    n_rows: int
    kept: dict[str, FloatArray] | None = None
    n_iter: int = 0
    first: int = 0
    sums: list[FloatArray | None] = field(default_factory=list)
    reports: list[FloatArray] = field(default_factory=list)
    is_whole: bool = True
    n_bytes: int = 0
    _memory: ReusedMemory = field(default_factory=ReusedMemory)

    def allocate(self, n: int) -> FloatArray:
        """Return memory for the next sum, of `n` numbers, reused once nobody holds that sum."""
        return self._memory.empty(8 * n).view(np.float64)

    def get(self, number: int) -> FloatArray | None:
        """Return sum `number` (from 1); None where it is not in the log."""
        at = number - self.first - 1
        return self.sums[at] if self.is_whole and at < len(self.sums) else None

    def add(self, number: int, total: FloatArray, remembered: bool = True) -> None:
        """Add a sum to the log, and make it read-only."""
        total.flags.writeable = False
        # A sum that was made before, was not remembered, and has been made again.
        if number <= len(self.reports):
            return
        self.reports.append(total[-EXTRA:].copy())
        # Statistics may declare that their sum is too large to be remembered.
        self.n_bytes += total.nbytes if remembered else 0
        if self.n_bytes > MAX_REMEMBERED_BYTES:
            self.sums, self.is_whole = [], False
        if self.is_whole:
            self.sums.append(total if remembered else None)

    def is_worth_replacing(self, number: int) -> bool:
        """Return whether a state kept after sum `number` is smaller than the sums up to there."""
        known = 0 if self.kept is None else _count_bytes(self.kept)
        return number == len(self.reports) and self.n_bytes > max(REPLACED_FROM_BYTES, known)

    def keep(self, state: dict[str, FloatArray], n_iter: int, again: int) -> None:
        """Replace all sums but the last `again` by the solver's state.

        The solver asks for these once more when it continues from the state.
        """
        self.kept, self.n_iter = state, n_iter
        self.first = len(self.reports) - again
        self.sums = self.sums[len(self.sums) - again :] if again else []
        self.is_whole = len(self.sums) == again
        self.n_bytes = sum(total.nbytes for total in self.sums if total is not None)

    def begin(self) -> SumLog:
        """Return this log for a solver that begins again: without sums where some are missing."""
        if not self.is_whole:
            self.sums, self.reports = [], self.reports[: self.first]
            self.is_whole, self.n_bytes = True, 0
        return self

    @property
    def reach(self) -> tuple[int, int]:
        """Return the number of sums, and the first remembered; the largest pair is the best log."""
        return len(self.reports), self.first

    def packed(self) -> NDArray[np.uint8]:
        """Return the log as bytes, for other trainers and for files."""
        reports = np.array(self.reports).reshape(-1, EXTRA)
        facts = [self.n_rows, self.kept, self.n_iter, self.first, self.sums, reports]
        return np.frombuffer(pack_object(facts, {}), np.uint8)

    def replace_by(self, data: NDArray[np.uint8]) -> None:
        """Replace this log by the one that :meth:`packed` made bytes of."""
        found = unpack_object(data, {})
        self.n_rows, self.kept, self.n_iter, self.first, self.sums, reports = found
        self.reports = list(reports)
        self.n_bytes, self.is_whole = _count_bytes(dict(enumerate(self.sums))), True
        for total in self.sums:
            if total is not None:
                total.flags.writeable = False


def _count_bytes(arrays: dict[str, FloatArray] | dict[int, FloatArray | None]) -> int:
    """Return the bytes of arrays."""
    return sum(array.nbytes for array in arrays.values() if array is not None)
