"""Loop *solver*: the first trainer runs the solver, and all trainers compute its sums.

Since only the first trainer runs the solver, machines that round differently cannot diverge. Every
trainer keeps a log of the sums, or of the solver's last saved state and the sums since then
(`SumLog`). After a loss the solver restarts from that state on the worker that is now the first
trainer. It requests the same sums and gets them from the log, without a pass over the rows. Only
the sum that was lost is computed again, so the fit ends with the digits of an undisturbed one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, reduce
from operator import itemgetter
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.packing import (
    KnownClasses,
    RepeatedObjects,
    name_classes,
    pack_object_parts,
    unpack_object,
)
from daskml_dist.comm.server_connections import ShardedConnection
from daskml_dist.errors import InvalidParameterError
from daskml_dist.losses.base import Loss
from daskml_dist.solvers.base import ReduceScatterStatistic, RowState, Solution, Statistic
from daskml_dist.training.spec import InterruptedState
from daskml_dist.training.worker.loops.context import Context, gather_lane_parts
from daskml_dist.training.worker.loops.rounds import (
    EXTRA,
    LaneSums,
    PausedError,
    SumLog,
    SumReports,
    connect_to_ledger,
    share_furthest,
)

#: Kinds of messages to all trainers: compute a sum, save the solver's state.
_REQUEST_SUM, _KEEP_STATE = 0, 1
#: Bytes of a message's header: the kind and two numbers.
_HEADER = 3 * np.dtype(np.int64).itemsize
_BASES = (Statistic, RowState, Loss)


def run_solver_loop(context: Context) -> Solution | None:
    """Run the fit's solver; rank 0 returns the solution."""
    rounds = _SumMaker(context)
    if (packed := share_furthest(context, rounds.log.held_range, rounds.log.packed)) is not None:
        rounds.log.replace_by(packed)
    if context.rank:
        rounds.answer_requests()
        return None
    work = context.fit.rounds
    with connect_to_ledger(context) as connection:
        assert connection is not None
        sums = _RequestedSums(context, rounds, connection)
        try:
            # The solver is ordinary code that calls `sums(statistic)`; see `solvers.Sums`.
            solution = work.solver.solve(work.model, sums, work.first())
        except PausedError as paused:
            solution = paused.solution
        sums.end()
    # A sum may itself be the solution, and is read-only.
    return replace(solution, w=np.require(solution.w, requirements="W"))


class _SumMaker:
    """Computation of a trainer's part in each sum, with the log of all sums."""

    def __init__(self, context: Context) -> None:
        self._context = context
        n_rows = sum(context.lane_rows)
        # From the last generation in this process, else from a checkpoint, else empty.
        log: SumLog | None = context.memory.get("log")
        if log is None and (earlier_log := context.fit.rounds.log) is not None:
            log = SumLog(n_rows)
            log.replace_by(earlier_log)
        if log is None or log.n_rows != n_rows:
            log = SumLog(n_rows)
        self.log = context.memory["log"] = log.restart()
        self._sums = LaneSums(context)

    @cached_property
    def request_packer(self) -> RepeatedObjects:
        """Return the packer of statistics, made at first use: a single trainer needs none."""
        work = self._context.fit.rounds
        return RepeatedObjects(reduce_request_classes(work.solver, work.model))

    def answer_requests(self) -> None:
        """Compute the sums that the first trainer requests, until it has its solution."""
        communicator = self._context.communicator
        # An empty message ends the fit.
        while (message := communicator.broadcast_bytes()).size:
            kind, *numbers = message[:_HEADER].view(np.int64).tolist()
            if kind == _KEEP_STATE:
                self.log.keep(unpack_object(message[_HEADER:], {}), *numbers)
            else:
                self.sum(self.request_packer.unpack(message[_HEADER:]), *numbers)

    def broadcast_message(self, message: Any, kind: int, *header_numbers: int) -> None:
        """Send a statistic to be summed, or a state to be saved, to the other trainers."""
        if self._context.communicator.size > 1:
            # Fixed-size header, then the packed object, sent without joining them.
            header = np.array([kind, *header_numbers], np.int64)
            keeps_state = kind == _KEEP_STATE
            parts = (
                pack_object_parts(message, {}) if keeps_state else self.request_packer.pack(message)
            )
            self._context.communicator.broadcast_bytes([header.data.cast("B"), *parts])

    def sum(self, statistic: Statistic, sum_number: int, source_sum: int) -> NDArray[np.float64]:
        """Return sum `sum_number` (from 1) over all trainers' rows, followed by `EXTRA` numbers.

        `source_sum` is the number of the last sum that wrote the row state of this statistic; 0:
        none.
        """
        # Merges that are not sums (sketches, sorted samples) also depend on the order.
        in_order = self._context.fit.run.deterministic or not statistic.additive
        if in_order:
            # The parts of all lanes, on every rank.
            total = self._merge_in_order(
                self._sums.sum_by_lane(statistic, sum_number, source_sum), statistic
            )
            # Each rank finishes only its own range.
            if isinstance(statistic, ReduceScatterStatistic):
                own_range = slice(
                    *self._range_bounds(statistic)[self._context.communicator.rank :][:2]
                )
                total = self._finish_range(total[own_range], total[-EXTRA:], statistic)
        elif isinstance(statistic, ReduceScatterStatistic):
            total = self._reduce_scatter(
                self._sums.sum_lanes(statistic, sum_number, source_sum), statistic
            )
        else:
            total = self._sums.sum_lanes(statistic, sum_number, source_sum)
            total[2 - EXTRA :] = self._context.count_moved_bytes()
            # Into separate memory, since the log keeps the sum and the lanes' memory is reused.
            out = self.log.allocate(len(total))
            total = np.asarray(self._context.communicator.allreduce(total, out))
        # All numbers except the bytes moved are bit-identical on every rank.
        self.log.add(sum_number, total, statistic.remembered)
        return total

    def _merge_in_order(
        self, lane_sums: list[tuple[int, NDArray[np.float64]]], statistic: Statistic
    ) -> NDArray[np.float64]:
        """Merge the lanes' parts in lane order, or trainers in pairs if not deterministic."""
        lane_sums[0][1][2 - EXTRA :] = self._context.count_moved_bytes()
        if not self._context.fit.run.deterministic:
            return self._merge_in_pairs([part for _, part in lane_sums], statistic)
        gathered = sorted(
            gather_lane_parts(self._context.communicator, lane_sums), key=itemgetter(0)
        )
        return self._merge_parts([part for *_, part in gathered], statistic)

    def _merge_in_pairs(
        self, lane_sums: list[NDArray[np.float64]], statistic: Statistic
    ) -> NDArray[np.float64]:
        """Merge this trainer's lanes, then trainers in pairs, so that no rank gathers all parts."""
        own_part = self._merge_parts(lane_sums, statistic)
        (total,) = self._context.communicator.reduce(
            [own_part], lambda lower, higher: [self._merge_parts([*lower, *higher], statistic)]
        )
        return total

    def _merge_parts(
        self, partial_sums: list[NDArray[np.float64]], statistic: Statistic
    ) -> NDArray[np.float64]:
        """Return the parts merged one after the other."""
        # Merged into a copy, since the parts' memory is reused for the next sum.
        first, *other_parts = partial_sums
        total, shape = first.copy(), statistic.shape(self._context.fit.work.model)
        for part in other_parts:
            statistic.merge(total[:-EXTRA].reshape(shape), part[:-EXTRA].reshape(shape))
            total[-EXTRA:] += part[-EXTRA:]
        return total

    def _reduce_scatter(
        self, total: NDArray[np.float64], statistic: ReduceScatterStatistic
    ) -> NDArray[np.float64]:
        """Sum and finish this rank's range; return the finished ranges of all ranks."""
        communicator = self._context.communicator
        total[2 - EXTRA :] = self._context.count_moved_bytes()
        extra = communicator.allreduce(total[-EXTRA:].copy())
        own_range = communicator.reduce_scatter(total[:-EXTRA], self._range_bounds(statistic))
        return self._finish_range(own_range, extra, statistic)

    def _range_bounds(self, statistic: ReduceScatterStatistic) -> list[int]:
        """Return the bounds of each rank's range of the flattened sum, and its end."""
        n, *other_sizes = statistic.shape(self._context.fit.work.model)
        return [bound * math.prod(other_sizes) for bound in self._context.communicator.bounds(n)]

    def _finish_range(
        self,
        own_sums: NDArray[np.float64],
        extra: NDArray[np.float64],
        statistic: ReduceScatterStatistic,
    ) -> NDArray[np.float64]:
        """Finish this rank's range; return the results of all ranges, followed by `extra`."""
        communicator, model = self._context.communicator, self._context.fit.work.model
        n, *other_sizes = statistic.shape(model)
        bounds = slice(*communicator.bounds(n)[communicator.rank :][:2])
        own_results = []
        if bounds.stop > bounds.start:
            result = statistic.finish(model, own_sums.reshape(-1, *other_sizes), bounds)
            own_results.append(np.ascontiguousarray(result, dtype=np.float64))
        parts = [part.ravel() for parts in communicator.allgather(own_results) for part in parts]
        return np.concatenate([*parts, extra])


class _RequestedSums:
    """Sums over all trainers, in the solver's interface (`solvers.Sums`)."""

    def __init__(self, context: Context, rounds: _SumMaker, connection: ShardedConnection) -> None:
        log = rounds.log
        self.n_rows = log.n_rows
        self.kept = log.saved_state
        self._n_before = len(log.reports)
        self._context = context
        self._rounds = rounds
        self._reports = SumReports(context, connection)
        self._n_requested, self._n_iter = log.first, log.n_iter
        #: Number of the last sum that named each state.
        self._last_sums: dict[str, int] = {}
        self._points: list[NDArray[np.float64]] = []
        # Reports of sums before the saved state are sent again, since the ledger may be a new one.
        for extra in log.reports[: log.first]:
            self._reports.add(extra)

    @property
    def should_stop(self) -> bool:
        """Return whether the user wants the fit to end."""
        stopped = self._context.fit.rounds.is_stopped and self._n_requested >= self._n_before
        return stopped or self._reports.should_stop

    def __call__(self, statistic: Statistic) -> NDArray[np.float64]:
        """Return the sum of a statistic over all rows, from the log or computed now."""
        self._n_requested += 1
        total = self._rounds.log.get(self._n_requested)
        # Row states (margins, labels) are valid only if the right sum wrote them.
        source = self._find_state_source(statistic.state)
        # Not in the log: check the bounds, send the statistic to all trainers, and sum.
        if total is None:
            solver, pause_at = self._context.fit.rounds.solver, self._context.fit.rounds.pause_at
            if self._n_requested > solver.max_passes:
                raise InvalidParameterError(
                    f"The solver {type(solver).__name__} requests more than "
                    f"max_passes={solver.max_passes} sums. Set max_passes to the largest number "
                    "it may need."
                )
            # This part of the fit ends here, once its log is complete.
            log = self._rounds.log
            if pause_at is not None and self._n_requested > pause_at and log.is_whole:
                raise PausedError(log.packed())
            self._broadcast_checked(statistic, _REQUEST_SUM, self._n_requested, source)
            total = self._rounds.sum(statistic, self._n_requested, source)
        self._reports.add(total[-EXTRA:])
        self._context.end_pass()
        return total[:-EXTRA].reshape(statistic.answer_shape(self._context.fit.work.model))

    def _find_state_source(self, state: RowState | None) -> int:
        """Return the number of the last sum that wrote a row state; 0: none."""
        if state is None:
            return 0
        source = self._last_sums.get(state.name, 0)
        self._last_sums[state.name] = self._n_requested
        return source

    def _broadcast_checked(self, message: Any, *header_numbers: int) -> None:
        """Send an object to all trainers; raise with a remedy if it cannot be packed."""
        try:
            self._rounds.broadcast_message(message, *header_numbers)
        except TypeError as error:
            raise InvalidParameterError(
                f"The {type(message).__name__} of a solver cannot be sent to other workers: {error}"
            ) from error

    def keep(
        self,
        w: NDArray[np.float64],
        state: Callable[[], dict[str, NDArray[np.float64]]] | None = None,
        again: int = 0,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """Keep the parameters after an iteration, and the state that the solver can continue from.

        `again` is the number of last sums that the solver requests again when it continues.
        """
        self._n_iter += 1
        # Copied into one of two alternating arrays: an interrupt may happen during the copy, and
        # the other array is then still valid.
        buffer = np.empty_like(w)
        if len(self._points) == 2 and (old_point := self._points.pop(0)).shape == w.shape:
            buffer = old_point
        buffer[...] = w
        self._points.append(buffer)
        w = buffer
        # The result of an interrupted fit.
        solution = Solution(
            w, self._n_iter, converged=False, message="interrupted", extra=extra or {}
        )
        self._context.set_left_behind(lambda: InterruptedState(solution))
        # If the solver's state is smaller than the sums, it replaces them.
        if state is not None and self._rounds.log.is_worth_replacing(self._n_requested):
            state_arrays = {name: np.array(array) for name, array in state().items()}
            self._broadcast_checked(state_arrays, _KEEP_STATE, self._n_iter, again)
            self._rounds.log.keep(state_arrays, self._n_iter, again)

    def end(self) -> None:
        """Report the last sums, and release the other trainers."""
        self._reports.send()
        self._context.end_pass()
        self._context.communicator.broadcast_bytes()


def reduce_request_classes(*pickled_objects: Any) -> KnownClasses:
    """Return the classes of which statistics consist, by name.

    They are the classes of loaded modules, and those that are pickled by value with the given
    objects.
    """
    of_modules = [
        kind for base in _BASES for kind in _iterate_subclasses(base) if _is_found_in_module(kind)
    ]
    return name_classes([*of_modules, *_find_pickled_classes(pickled_objects)])


def _iterate_subclasses(base: type[Any]) -> Iterator[type[Any]]:
    """Yield all subclasses of a class."""
    for kind in base.__subclasses__():
        yield kind
        yield from _iterate_subclasses(kind)


def _is_found_in_module(kind: type) -> bool:
    """Return whether a class is the object that its module has under its name."""
    # A class that a notebook cell redefines leaves an old one of the same name behind.
    module = sys.modules.get(kind.__module__)
    module_object: Any = reduce(
        lambda parent, name: getattr(parent, name, None), kind.__qualname__.split("."), module
    )
    return module_object is kind


def _find_pickled_classes(objects: Any) -> list[type]:
    """Return the classes that are pickled with some objects, in the same order in every process."""
    finder = _ClassFinder()
    finder.dump(objects)
    return finder.classes


class _ClassFinder(cloudpickle.Pickler):
    """Pickler that only records classes, and copies no array."""

    def __init__(self) -> None:
        super().__init__(self, protocol=5, buffer_callback=lambda _: None)
        self.classes: list[type] = []

    def write(self, data: bytes) -> int:
        """Discard the pickled bytes."""
        return len(data)

    def reducer_override(self, obj: Any) -> Any:
        """Record the class of a statistic's part, and continue pickling."""
        if isinstance(obj, type) and issubclass(obj, _BASES):
            self.classes.append(obj)
        return super().reducer_override(obj)
