"""Rounds of a solver: the first trainer asks for sums over all rows, all trainers make them.

The first trainer alone runs the solver, so that machines whose digits differ cannot part ways.
Every trainer remembers the sums. After a loss the solver begins again wherever the first trainer
now is: it asks the same questions, and gets what is remembered without a look at the rows. Only
the open question is asked anew, so a fit ends with the digits of an undisturbed one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.packing import Kinds, kinds
from daskml_dist.comm.repeated import RepeatedObjects
from daskml_dist.comm.sharded import ShardedConnection
from daskml_dist.errors import InvalidParameterError
from daskml_dist.losses import Loss
from daskml_dist.solvers import Solution, Statistic
from daskml_dist.training.spec import Left
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.loops.lane_sums import EXTRA, LaneSums, SumReports
from daskml_dist.training.worker.loops.sum_log import SumLog

__all__ = ["question_kinds", "run_solver"]


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
    # A sum may itself be the solution, and is read-only.
    return replace(solution, w=np.require(solution.w, requirements="W"))


class _Rounds:
    """A trainer's part in each sum."""

    def __init__(self, context: Context) -> None:
        self._context = context
        n_rows = sum(context.lane_rows)
        log: SumLog | None = context.memory.get("log")
        if log is None or log.n_rows != n_rows or not log.is_whole:
            log = context.memory["log"] = SumLog(n_rows)
        self.log = log
        self.questions = RepeatedObjects(question_kinds())
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
            self.log.become(communicator.allgather(own)[longest])

    def answer(self) -> None:
        """Make the sums that the first trainer asks for, until it has its solution."""
        communicator = self._context.communicator
        while (question := communicator.broadcast_bytes()).size:
            self.sum(self.questions.unpack(question))

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
        # Into memory of its own, since it is remembered; the lanes' is used again.
        out = self.log.room(len(total))
        return np.asarray(self._context.communicator.allreduce(total, out))

    def _in_order(
        self, parts: list[tuple[int, NDArray[np.float64]]], statistic: Statistic
    ) -> NDArray[np.float64]:
        """Merge the parts of all lanes in the order of the lanes, or else of the trainers."""
        parts[0][1][2 - EXTRA :] = self._sums.bytes_moved()
        if not self._context.fit.run.deterministic:
            return self._in_pairs([part for _, part in parts], statistic)
        arrays: list[NDArray[Any]] = [np.array([number for number, _ in parts])]
        gathered = self._context.communicator.allgather([*arrays, *(part for _, part in parts)])
        of_lane = {
            number: part
            for numbers, *rest in gathered
            for number, part in zip(numbers.tolist(), rest, strict=True)
        }
        return self._merged([of_lane[number] for number in sorted(of_lane)], statistic)

    def _in_pairs(
        self, parts: list[NDArray[np.float64]], statistic: Statistic
    ) -> NDArray[np.float64]:
        """Merge this trainer's lanes, then trainers in pairs: nobody gathers all there is."""
        own = self._merged(parts, statistic)
        (total,) = self._context.communicator.reduce(
            [own], lambda lower, higher: [self._merged([*lower, *higher], statistic)]
        )
        return total

    def _merged(
        self, parts: list[NDArray[np.float64]], statistic: Statistic
    ) -> NDArray[np.float64]:
        first, *others = parts
        total, shape = first.copy(), statistic.shape(self._context.fit.work.model)
        for part in others:
            statistic.merge(total[:-EXTRA].reshape(shape), part[:-EXTRA].reshape(shape))
            total[-EXTRA:] += part[-EXTRA:]
        return total


class _Asked:
    """The sums of all trainers, as the solver sees them (`solvers.Sums`)."""

    def __init__(self, context: Context, rounds: _Rounds, connection: ShardedConnection) -> None:
        self.n_rows = rounds.log.n_rows
        self._context = context
        self._rounds = rounds
        self._reports = SumReports(context, connection)
        self._n_asked = self._n_kept = 0
        self._points: list[NDArray[np.float64]] = []

    @property
    def should_stop(self) -> bool:
        """Whether the user asked the fit to end."""
        return self._reports.should_stop

    def __call__(self, statistic: Statistic) -> NDArray[np.float64]:
        sums = self._rounds.log.sums
        self._n_asked += 1
        if self._n_asked <= len(sums):
            total = sums[self._n_asked - 1]
        else:
            if self._context.communicator.size > 1:
                self._context.communicator.broadcast_bytes(self._as_data(statistic))
            total = self._rounds.sum(statistic)
        self._reports.add(total[-EXTRA:])
        self._context.end_pass()
        return total[:-EXTRA].reshape(statistic.shape(self._context.fit.work.model))

    def _as_data(self, statistic: Statistic) -> list[Any]:
        try:
            return self._rounds.questions.pack(statistic)
        except TypeError as error:
            raise InvalidParameterError(
                f"The statistic {type(statistic).__name__} cannot travel to other workers: {error}"
            ) from error

    def keep(self, w: NDArray[np.float64]) -> None:
        """Keep the point at which an iteration ended, for a fit that is interrupted."""
        self._n_kept += 1
        found = Solution(self._copied(w), self._n_kept, converged=False, message="interrupted")
        self._context.leaves(lambda: Left(found))

    def _copied(self, w: NDArray[np.float64]) -> NDArray[np.float64]:
        """A copy, in the memory of the last but one: a fit may be interrupted at any moment."""
        room = np.empty_like(w)
        if len(self._points) == 2 and (old := self._points.pop(0)).shape == w.shape:
            room = old
        room[...] = w
        self._points.append(room)
        return room

    def end(self) -> None:
        """Report the last sums, and let the other trainers go."""
        self._reports.send()
        self._context.end_pass()
        self._context.communicator.broadcast_bytes()


def question_kinds() -> Kinds:
    """Classes of the questions that can be asked: those that fits have brought into the process."""
    return kinds([*_derived(Statistic), *_derived(Loss)])


def _derived(base: type[Any]) -> Iterator[type[Any]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _derived(kind)
