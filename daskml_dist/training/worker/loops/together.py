"""Parts that trainers who all run the solver share: where they go on, iterations, bytes moved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.sharded import ShardedConnection
from daskml_dist.errors import InvalidParameterError
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.loops.lane_sums import SumReports

__all__ = ["Together"]

Array = NDArray[Any]


class Together:
    """Base class of what a solver sees in each trainer, where all of them run it.

    Parameters
    ----------
    context : Context
    connection : ShardedConnection or None
        To the ledger; the first trainer reports for all.
    """

    def __init__(self, context: Context, connection: ShardedConnection | None) -> None:
        self._context = context
        self._communicator = context.communicator
        self._to_ledger = None if connection is None else SumReports(context, connection)
        self._reports: list[Array] = []
        self.should_stop = False
        self._moved = 0, 0
        #: Bytes sent and received since the last iteration, by all.
        self._extra: Array = np.zeros(2)

    @property
    def _is_to_stop(self) -> bool:
        """Whether the ledger wants the fit to end, which the first trainer alone knows."""
        return self._to_ledger is not None and self._to_ledger.should_stop

    def _bytes_moved(self) -> tuple[float, float]:
        """Bytes that this trainer has sent and received since it was asked last."""
        moved = self._communicator.bytes_sent, self._communicator.bytes_received
        sent, received = moved[0] - self._moved[0], moved[1] - self._moved[1]
        self._moved = moved
        return sent, received

    def _furthest(
        self, n_iter: int, state: Callable[[], Array], reports: Sequence[Array]
    ) -> tuple[int, Array, list[Array]] | None:
        """Start of a new generation: the furthest iteration of any trainer, given to all.

        Parameters
        ----------
        n_iter : int
            Iterations that this trainer knows of.
        state : callable
            What they have come to; asked of the trainer that is furthest.
        reports : sequence of ndarray
            What was reported of them.

        Returns
        -------
        tuple of int, ndarray and list of ndarray, or None
            Iterations, state and reports; None where all trainers know as many.
        """
        if not self._context.generation:
            return None
        n_iters = [int(n[0]) for (n,) in self._communicator.allgather([np.array([n_iter])])]
        most = max(n_iters)
        if min(n_iters) == most:
            return None
        furthest = n_iters.index(most)
        own = [state(), np.array(reports)] if self._communicator.rank == furthest else []
        found, all_reports = self._communicator.allgather(own)[furthest]
        return most, found, list(all_reports)

    def _go_on_from(self, reports: Iterable[Array]) -> None:
        """Report again what was reported of the iterations before a loss."""
        self._reports = list(reports)
        for extra in self._reports:
            self._report(extra)

    def _count(self, solver: Any, loss: float, n_rows: float, scores: Sequence[float] = ()) -> None:
        """Count an iteration.

        Raises
        ------
        InvalidParameterError
            The solver makes more than it said.
        """
        if len(self._reports) >= solver.max_passes:
            raise InvalidParameterError(
                f"The solver {type(solver).__name__} makes more than its max_passes="
                f"{solver.max_passes} iterations. Let max_passes say how many it may need."
            )
        self._reports.append(np.array([loss, n_rows, *self._extra, *scores]))
        self._extra = np.zeros(2)

    def _end_pass(self) -> None:
        """Report what was counted last, which is a pass of the fit."""
        self._report(self._reports[-1])
        self._context.end_pass()

    def _report(self, extra: Array) -> None:
        if self._to_ledger is not None:
            self._to_ledger.add(extra)

    def end(self) -> None:
        """Report the last iterations."""
        if self._to_ledger is not None:
            self._to_ledger.send()
