"""Rounds of a solver: the first trainer asks for sums over all rows, all trainers make them.

The first trainer alone runs the solver, so that machines whose digits differ cannot part ways.
Every trainer remembers the sums, or the state that the solver kept and the sums since. After a loss
the solver begins again, wherever the first trainer now is, from that state: it asks the same
questions, and gets what is remembered without a look at the rows. Only the open question is asked
anew, so a fit ends with the digits of an undisturbed one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, reduce
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.packing import Kinds, kinds, pack_object_parts, unpack_object
from daskml_dist.comm.repeated import RepeatedObjects
from daskml_dist.comm.sharded import ShardedConnection
from daskml_dist.errors import InvalidParameterError
from daskml_dist.losses import Loss
from daskml_dist.solvers import ReduceScatterStatistic, RowState, Solution, Statistic
from daskml_dist.training.spec import Left
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.loops.rounds import EXTRA, LaneSums, SumLog, SumReports

__all__ = ["question_kinds", "run_solver"]


#: Kinds of messages to all trainers; before each stand its kind and two numbers.
_ASK, _KEEP = 0, 1
_HEADER = 3 * np.dtype(np.int64).itemsize
_BASES = (Statistic, RowState, Loss)


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
    work = context.fit.rounds
    try:
        solution = work.solver.solve(work.model, sums, work.first())
    except _PausedError as paused:
        solution = Solution(np.empty(0), 0, False, "paused", {"log": paused.log.packed()})
    sums.end()
    # A sum may itself be the solution, and is read-only.
    return replace(solution, w=np.require(solution.w, requirements="W"))


class _PausedError(Exception):
    """The fit has come as far as it is to for now."""

    def __init__(self, log: SumLog) -> None:
        super().__init__("paused")
        self.log = log


class _Rounds:
    """A trainer's part in each sum."""

    def __init__(self, context: Context) -> None:
        self._context = context
        n_rows = sum(context.lane_rows)
        log: SumLog | None = context.memory.get("log")
        if log is None and (before := context.fit.rounds.log) is not None:
            log = SumLog(n_rows)
            log.become(before)
        if log is None or log.n_rows != n_rows:
            log = SumLog(n_rows)
        self.log = context.memory["log"] = log.begin()
        self._sums = LaneSums(context)

    @cached_property
    def questions(self) -> RepeatedObjects:
        """Packer and reader of the questions; a single trainer needs none."""
        work = self._context.fit.rounds
        return RepeatedObjects(question_kinds(work.solver, work.model))

    def remember(self) -> None:
        """Give all trainers the longest memory of any."""
        if not self._context.generation:
            return
        communicator = self._context.communicator
        reaches = [tuple(r.tolist()) for (r,) in communicator.allgather([np.array(self.log.reach)])]
        if min(reaches) < (best := max(reaches)):
            own = [self.log.packed()] if communicator.rank == reaches.index(best) else []
            (packed,) = communicator.allgather(own)[reaches.index(best)]
            self.log.become(packed)

    def answer(self) -> None:
        """Make the sums that the first trainer asks for, until it has its solution."""
        communicator = self._context.communicator
        while (message := communicator.broadcast_bytes()).size:
            kind, *numbers = message[:_HEADER].view(np.int64).tolist()
            if kind == _KEEP:
                self.log.keep(unpack_object(message[_HEADER:], {}), *numbers)
            else:
                self.sum(self.questions.unpack(message[_HEADER:]), *numbers)

    def tell(self, thing: Any, kind: int, *numbers: int) -> None:
        """Send what `answer` takes to the other trainers."""
        if self._context.communicator.size > 1:
            header = np.array([kind, *numbers], np.int64)
            keeps = kind == _KEEP
            parts = pack_object_parts(thing, {}) if keeps else self.questions.pack(thing)
            self._context.communicator.broadcast_bytes([header.data.cast("B"), *parts])

    def sum(self, statistic: Statistic, number: int, left: int) -> NDArray[np.float64]:
        """Sum `number` (from 1) over all trainers' rows, with `EXTRA` numbers behind it.

        `left` is the number of the last sum whose statistic named the same state; 0 for none.
        """
        in_order = self._context.fit.run.deterministic or not statistic.additive
        if in_order:
            total = self._in_order(self._sums.parts(statistic, number, left), statistic)
            if isinstance(statistic, ReduceScatterStatistic):
                own = slice(*self._bounds(statistic)[self._context.communicator.rank :][:2])
                total = self._finished(total[own], total[-EXTRA:], statistic)
        elif isinstance(statistic, ReduceScatterStatistic):
            total = self._scattered(self._sums.total(statistic, number, left), statistic)
        else:
            total = self._reduced(self._sums.total(statistic, number, left))
        # All but the bytes is the same on every rank, and to the bit.
        self.log.add(number, total, statistic.remembered)
        return total

    def _reduced(self, total: NDArray[np.float64]) -> NDArray[np.float64]:
        total[2 - EXTRA :] = self._sums.bytes_moved()
        # Into memory of its own, since it is given away; the lanes' is used again.
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

    def _scattered(
        self, total: NDArray[np.float64], statistic: ReduceScatterStatistic
    ) -> NDArray[np.float64]:
        """Add up the own range alone."""
        communicator = self._context.communicator
        total[2 - EXTRA :] = self._sums.bytes_moved()
        extra = communicator.allreduce(total[-EXTRA:].copy())
        own = communicator.reduce_scatter(total[:-EXTRA], self._bounds(statistic))
        return self._finished(own, extra, statistic)

    def _bounds(self, statistic: ReduceScatterStatistic) -> list[int]:
        """Bounds of each rank's range of the flattened sum, and its end."""
        n, *rest = statistic.shape(self._context.fit.work.model)
        return [at * math.prod(rest) for at in self._context.communicator.bounds(n)]

    def _finished(
        self,
        own: NDArray[np.float64],
        extra: NDArray[np.float64],
        statistic: ReduceScatterStatistic,
    ) -> NDArray[np.float64]:
        """Finish the own range, and gather what all ranges gave."""
        communicator, model = self._context.communicator, self._context.fit.work.model
        n, *rest = statistic.shape(model)
        at = slice(*communicator.bounds(n)[communicator.rank :][:2])
        found = []
        if at.stop > at.start:
            result = statistic.finish(model, own.reshape(-1, *rest), at)
            found.append(np.ascontiguousarray(result, dtype=np.float64))
        parts = [part.ravel() for parts in communicator.allgather(found) for part in parts]
        return np.concatenate([*parts, extra])


class _Asked:
    """The sums of all trainers, as the solver sees them (`solvers.Sums`)."""

    def __init__(self, context: Context, rounds: _Rounds, connection: ShardedConnection) -> None:
        log = rounds.log
        self.n_rows = log.n_rows
        self.kept = log.kept
        self._n_before = len(log.reports)
        self._context = context
        self._rounds = rounds
        self._reports = SumReports(context, connection)
        self._n_asked, self._n_iter = log.first, log.n_iter
        #: Number of the last sum that named each state.
        self._left: dict[str, int] = {}
        self._points: list[NDArray[np.float64]] = []
        for extra in log.reports[: log.first]:
            self._reports.add(extra)

    @property
    def should_stop(self) -> bool:
        """Whether the user asked the fit to end."""
        stopped = self._context.fit.rounds.is_stopped and self._n_asked >= self._n_before
        return stopped or self._reports.should_stop

    def __call__(self, statistic: Statistic) -> NDArray[np.float64]:
        self._n_asked += 1
        total = self._rounds.log.get(self._n_asked)
        left = self._left_by(statistic.state)
        if total is None:
            self._check_passes()
            self._pause()
            self._tell(statistic, _ASK, self._n_asked, left)
            total = self._rounds.sum(statistic, self._n_asked, left)
        self._reports.add(total[-EXTRA:])
        self._context.end_pass()
        return total[:-EXTRA].reshape(statistic.answer_shape(self._context.fit.work.model))

    def _pause(self) -> None:
        """End here, where the fit is to and all that it has come to is remembered."""
        pause_at, log = self._context.fit.rounds.pause_at, self._rounds.log
        if pause_at is not None and self._n_asked > pause_at and log.is_whole:
            raise _PausedError(log)

    def _left_by(self, state: RowState | None) -> int:
        """Number of the sum that left a state as this one is to find it."""
        if state is None:
            return 0
        left = self._left.get(state.name, 0)
        self._left[state.name] = self._n_asked
        return left

    def _check_passes(self) -> None:
        solver = self._context.fit.rounds.solver
        if self._n_asked > solver.max_passes:
            raise InvalidParameterError(
                f"The solver {type(solver).__name__} asks for more than its max_passes="
                f"{solver.max_passes} sums. Let max_passes say how many it may need."
            )

    def _tell(self, thing: Any, *numbers: int) -> None:
        try:
            self._rounds.tell(thing, *numbers)
        except TypeError as error:
            raise InvalidParameterError(
                f"The {type(thing).__name__} of a solver cannot travel to other workers: {error}"
            ) from error

    def keep(
        self,
        w: NDArray[np.float64],
        state: Callable[[], dict[str, NDArray[np.float64]]] | None = None,
        again: int = 0,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """Keep the point at which an iteration ended, and the state to go on from."""
        self._n_iter += 1
        w = self._copied(w)
        found = Solution(w, self._n_iter, converged=False, message="interrupted", extra=extra or {})
        self._context.leaves(lambda: Left(found))
        if state is not None and self._rounds.log.is_long(self._n_asked):
            made = {name: np.array(array) for name, array in state().items()}
            self._tell(made, _KEEP, self._n_iter, again)
            self._rounds.log.keep(made, self._n_iter, again)

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


def question_kinds(*brought: Any) -> Kinds:
    """Classes by name: those of modules, and those that some objects bring along.

    Parameters
    ----------
    *brought : object
        A fit's solver and model, whose classes may be no module's.
    """
    of_modules = [kind for base in _BASES for kind in _derived(base) if _is_of_module(kind)]
    return kinds([*of_modules, *_brought_by(brought)])


def _derived(base: type[Any]) -> Iterator[type[Any]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _derived(kind)


def _is_of_module(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    found: Any = reduce(
        lambda at, name: getattr(at, name, None), kind.__qualname__.split("."), module
    )
    return found is kind


def _brought_by(objects: Any) -> list[type]:
    """Classes that travel with some objects, in the same order in every process."""
    finder = _Finder()
    finder.dump(objects)
    return finder.found


class _Finder(cloudpickle.Pickler):
    """Goes where pickling goes, without a copy of any array."""

    def __init__(self) -> None:
        super().__init__(self, protocol=5, buffer_callback=lambda _: None)
        self.found: list[type] = []

    def write(self, data: bytes) -> int:
        return len(data)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and issubclass(obj, _BASES):
            self.found.append(obj)
        return super().reducer_override(obj)
