"""Rounds of a solver: the first trainer asks for sums over all rows, all trainers make them.

The first trainer alone runs the solver, so that machines whose digits differ cannot part ways.
Every trainer remembers the sums. After a loss the solver begins again wherever the first trainer
now is: it asks the same questions, and gets what is remembered without a look at the rows. Only
the open question is asked anew, so a fit ends with the digits of an undisturbed one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.packing import Kinds, kinds, pack_object, unpack_object
from daskml_dist.comm.sharded import ShardedConnection
from daskml_dist.errors import InvalidParameterError
from daskml_dist.losses import Loss
from daskml_dist.solvers import Solution, Statistic
from daskml_dist.training.spec import Left
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.loops.lane_sums import EXTRA, LaneSums, report_sum

__all__ = ["question_kinds", "run_solver"]

#: Bytes of sums that a trainer remembers at most; a solver that needs more begins anew.
_MEMORY = 2**28


def run_solver(context: Context) -> Solution | None:
    """Run the fit's solver; rank 0 returns the solution."""
    rounds = _Rounds(context)
    rounds.remember()
    if context.rank:
        rounds.answer()
        return None
    connection = context.connect()
    try:
        return _lead(context, _Asked(context, rounds, connection))
    finally:
        connection.close()


def _lead(context: Context, sums: _Asked) -> Solution:
    fit = context.fit
    start = fit.rounds.first()
    assert start is not None
    solution = fit.rounds.solver.solve(fit.work.model, sums, start)
    sums.end()
    return solution


@dataclass
class _Log:
    """The sums so far, and the rows that they were made of."""

    n_rows: int
    sums: list[NDArray[np.float64]] = field(default_factory=list)
    is_whole: bool = True

    def add(self, total: NDArray[np.float64]) -> None:
        self.sums.append(total)
        if sum(kept.nbytes for kept in self.sums) > _MEMORY:
            self.sums, self.is_whole = [], False


class _Rounds:
    """A trainer's part in each sum."""

    def __init__(self, context: Context) -> None:
        self._context = context
        n_rows = sum(context.lane_rows)
        log: _Log | None = context.memory.get("log")
        if log is None or log.n_rows != n_rows or not log.is_whole:
            log = context.memory["log"] = _Log(n_rows)
        self.log = log
        self.kinds = question_kinds()
        self._sums = LaneSums(context)

    def remember(self) -> None:
        """Give all trainers the longest memory of any."""
        if not self._context.generation:
            return
        communicator = self._context.communicator
        lengths = communicator.allgather([np.array([len(self.log.sums)])])
        known = [int(length[0]) for (length,) in lengths]
        longest = known.index(max(known))
        if min(known) < max(known):
            own = self.log.sums if communicator.rank == longest else []
            self.log.sums = list(communicator.allgather(own)[longest])

    def answer(self) -> None:
        """Make the sums that the first trainer asks for, until it has its solution."""
        while question := self._context.communicator.broadcast_bytes():
            self.sum(unpack_object(question, self.kinds))

    def sum(self, statistic: Statistic) -> NDArray[np.float64]:
        """The sum over all trainers' rows, with `EXTRA` numbers behind it."""
        if self._context.fit.run.deterministic or not statistic.additive:
            total = self._in_order(self._sums.parts(statistic), statistic)
        else:
            total = self._reduced(self._sums.total(statistic))
        # All but the bytes is the same on every rank, and to the bit.
        self.log.add(total)
        return total

    def _reduced(self, total: NDArray[np.float64]) -> NDArray[np.float64]:
        total[2 - EXTRA :] = self._sums.bytes_moved()
        return np.asarray(self._context.communicator.allreduce(total))

    def _in_order(
        self, parts: list[tuple[int, NDArray[np.float64]]], statistic: Statistic
    ) -> NDArray[np.float64]:
        """Gather the parts of all lanes, and merge them in the order of the lanes."""
        parts[0][1][2 - EXTRA :] = self._sums.bytes_moved()
        arrays: list[NDArray[Any]] = [np.array([number for number, _ in parts])]
        gathered = self._context.communicator.allgather([*arrays, *(part for _, part in parts)])
        of_lane = {
            number: part
            for numbers, *rest in gathered
            for number, part in zip(numbers.tolist(), rest, strict=True)
        }
        first, *others = (of_lane[number] for number in sorted(of_lane))
        total, shape = first.copy(), statistic.shape(self._context.fit.work.model)
        for part in others:
            statistic.merge(total[:-EXTRA].reshape(shape), part[:-EXTRA].reshape(shape))
            total[-EXTRA:] += part[-EXTRA:]
        return total


class _Asked:
    """The sums of all trainers, as the solver sees them (`solvers.Sums`)."""

    def __init__(self, context: Context, rounds: _Rounds, connection: ShardedConnection) -> None:
        self.n_rows = rounds.log.n_rows
        self.should_stop = False
        self._context = context
        self._rounds = rounds
        self._connection = connection
        self._n_asked = self._n_kept = 0

    def __call__(self, statistic: Statistic) -> NDArray[np.float64]:
        sums = self._rounds.log.sums
        self._n_asked += 1
        if self._n_asked <= len(sums):
            total = sums[self._n_asked - 1]
        else:
            if self._context.communicator.size > 1:
                self._context.communicator.broadcast_bytes(self._as_data(statistic))
            total = self._rounds.sum(statistic)
        self._report(total[-EXTRA:])
        return total[:-EXTRA].reshape(statistic.shape(self._context.fit.work.model)).copy()

    def _as_data(self, statistic: Statistic) -> bytes:
        try:
            return pack_object(statistic, self._rounds.kinds)
        except TypeError as error:
            raise InvalidParameterError(
                f"The statistic {type(statistic).__name__} cannot travel to other workers: {error}"
            ) from error

    def keep(self, w: NDArray[np.float64]) -> None:
        """Keep the point at which an iteration ended, for a fit that is interrupted."""
        self._n_kept += 1
        found = Solution(w.copy(), self._n_kept, converged=False, message="interrupted")
        self._context.leaves(lambda: Left(found))

    def end(self) -> None:
        """Let the other trainers go."""
        self._context.communicator.broadcast_bytes(b"")

    def _report(self, extra: NDArray[np.float64]) -> None:
        """Report the pass for all lanes; the ledger ignores what it knows already."""
        self.should_stop = report_sum(self._context, self._connection, self._n_asked, extra)
        self._context.end_pass()


def question_kinds() -> Kinds:
    """Classes of the questions that can be asked: those that fits have brought into the process."""
    return kinds([*_derived(Statistic), *_derived(Loss)])


def _derived(base: type[Any]) -> Iterator[type[Any]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _derived(kind)
