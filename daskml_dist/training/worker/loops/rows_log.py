"""Log of a solver that trainers run on their own rows: the state after an iteration, as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.packing import pack_object, unpack_object
from daskml_dist.training.worker.loops.lane_sums import EXTRA

__all__ = ["RowsLog"]


@dataclass
class RowsLog:
    """State of a fit by a `RowSolver` after an iteration.

    Parameters
    ----------
    n_rows : int
        Rows of the fit.
    n_iter : int
        Iterations so far, as the solver counts them.
    state : dict of str to ndarray
        Arrays that the solver goes on from.
    reports : ndarray of float64 of shape (n_passes, EXTRA + n_scores)
        Numbers that were reported of each pass, and its scores.
    """

    n_rows: int
    n_iter: int
    state: dict[str, NDArray[Any]]
    reports: NDArray[np.float64]

    def packed(self) -> NDArray[np.uint8]:
        """Return the log as bytes, for the next part of the fit and for files."""
        facts = [self.n_rows, self.n_iter, self.state, self.reports]
        return np.frombuffer(pack_object(facts, {}), np.uint8)

    @classmethod
    def unpacked(cls, data: NDArray[np.uint8]) -> RowsLog:
        """Return the log that :meth:`packed` made bytes of.

        Raises
        ------
        CommunicationError, ValueError, TypeError
            The bytes are not what it makes.
        """
        n_rows, n_iter, state, reports = unpack_object(data, {})
        if not isinstance(state, dict) or np.ndim(reports) != 2 or np.shape(reports)[1] < EXTRA:
            raise ValueError("no log of a solver on its own rows")
        return cls(n_rows, n_iter, state, reports)
