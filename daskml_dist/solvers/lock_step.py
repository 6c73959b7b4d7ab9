"""Solvers that run concurrently, each as if alone, and whose requests are answered together.

Each solver is a generator of the statistics that it requests (:func:`iterate_requests`), and one
loop answers all of them (:func:`run_in_lock_step`). :class:`PerTargetSolver` solves for
several targets in this way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np

from daskml_dist.backends.base import Backend
from daskml_dist.backends.namespace import namespace
from daskml_dist.models.base import BatchRows
from daskml_dist.models.linear import LinearModel
from daskml_dist.solvers.base import Array, Solution, Solver, State, Statistic, Sums, known_loss

Q = TypeVar("Q")
A = TypeVar("A")
R = TypeVar("R")
#: A running solver: it yields the statistics that it requests, receives their sums, and returns its
#: solution.
SolverRun = Generator[Statistic, Array, Solution]


class _AbandonedError(BaseException):
    """Raised in a solver that gets no more answers; a BaseException, so no handler stops it."""


class _QueuedSums:
    """Sums for a solver in a separate thread, which waits here until its request is answered."""

    kept = None

    def __init__(self, n_rows: float, should_stop: Callable[[], bool]) -> None:
        self.n_rows: Any = n_rows
        self._should_stop = should_stop
        #: Messages of the solver: requests, then its solution or the error that ended it.
        self.messages: SimpleQueue[Statistic | Solution | BaseException] = SimpleQueue()
        #: Answers to requests; None ends the solver.
        self.answers: SimpleQueue[Array | None] = SimpleQueue()

    @property
    def should_stop(self) -> bool:
        """Return whether the user ended the fit."""
        return self._should_stop()

    def keep(self, w: Array, state: State | None = None, again: int = 0, extra: Any = None) -> None:
        """Ignore the snapshot: after a loss the log of sums repeats the answers to all requests."""

    def __call__(self, statistic: Statistic) -> Array:
        """Request a sum, and wait for it."""
        self.messages.put(statistic)
        if (answer := self.answers.get()) is None:
            raise _AbandonedError
        return answer


def iterate_requests(
    model: Any, solver: Solver, start: Array | None, n_rows: float, should_stop: Callable[[], bool]
) -> SolverRun:
    """Run a solver on rows of weight `n_rows`; yield its requests, and return its solution."""
    # A solver calls its sums from deep within its loops, and from within SciPy's L-BFGS-B, which
    # only a thread can suspend. It and the caller run alternately, so the requests do not depend on
    # scheduling. A switch costs 30 to 70 us; a pass over the rows takes milliseconds.
    sums = _QueuedSums(n_rows, should_stop)

    def solve() -> None:
        # Errors are passed on too: an error in a thread would only be printed.
        try:
            sums.messages.put(solver.solve(model, sums, start))
        except BaseException as error:
            sums.messages.put(error)

    thread = threading.Thread(target=solve, name="lock-step", daemon=True)
    thread.start()
    try:
        while isinstance(message := sums.messages.get(), Statistic):
            sums.answers.put((yield message))
    finally:
        # If the generator is closed early, the solver still waits for an answer.
        sums.answers.put(None)
        thread.join()
    if isinstance(message, BaseException):
        raise message
    return message


def run_in_lock_step(
    runs: Sequence[Generator[Q, A, R]], answer_together: Callable[[list[int], list[Q]], Sequence[A]]
) -> list[R]:
    """Run generators to their ends; each round answers the requests of all of them together."""
    results: dict[int, R] = {}
    # The answer to each run that has not finished; None starts it.
    answer_of: dict[int, Any] = dict.fromkeys(range(len(runs)))
    try:
        while answer_of:
            requests: dict[int, Q] = {}
            for i, answer in answer_of.items():
                try:
                    requests[i] = runs[i].send(answer)
                except StopIteration as end:
                    results[i] = end.value
            replies = answer_together(list(requests), list(requests.values())) if requests else []
            answer_of = dict(zip(requests, replies, strict=True))
    finally:
        # After an error in one run, the threads of the others must end too.
        for run in runs:
            run.close()
    return [results[i] for i in range(len(runs))]


@dataclass(frozen=True, eq=False)
class PerTargetStatistic(Statistic):
    """Inner statistics of models of one target each, summed in one pass over the rows.

    Parameters
    ----------
    statistics : tuple of Statistic
        Statistics without a state of the rows.
    targets : tuple of int
        Target column of each.
    """

    statistics: tuple[Statistic, ...]
    targets: tuple[int, ...]

    @property
    def in_parts(self) -> bool:  # type: ignore[override]
        """Return whether all inner statistics read X in parts."""
        return all(statistic.in_parts for statistic in self.statistics)

    @property
    def shows_not_finite(self) -> bool:
        """Return whether any inner statistic becomes non-finite if X has NaN or infinity."""
        return any(statistic.shows_not_finite for statistic in self.statistics)

    def _target_shapes(self, model: LinearModel) -> list[tuple[int, ...]]:
        return [
            statistic.shape(model.of_target(target))
            for statistic, target in zip(self.statistics, self.targets, strict=True)
        ]

    def shape(self, model: LinearModel) -> tuple[int, ...]:
        return (sum(map(prod, self._target_shapes(model))),)

    def split_sums(self, model: LinearModel, sums: Any) -> list[Any]:
        """Return views of the flat sums, one for each inner statistic."""
        target_sums, start = [], 0
        for shape in self._target_shapes(model):
            stop = start + prod(shape)
            target_sums.append(namespace(sums).reshape(sums[start:stop], shape))
            start = stop
        return target_sums

    def add(self, model: LinearModel, rows: BatchRows, out: Any, backend: Backend) -> Any:
        loss, xp = 0.0, namespace(rows.y)
        parts = self.split_sums(model, out)
        for statistic, target, part in zip(self.statistics, self.targets, parts, strict=True):
            y = xp.concat([rows.y[:, target]])  # a contiguous copy, as kernels read it
            target_rows = BatchRows(
                rows.X, y, rows.weight, rows.key, rows.block, rows.first, places=rows.places
            )
            loss = loss + known_loss(
                statistic.add(model.of_target(target), target_rows, part, backend)
            )
        # Once some targets are solved, the sum is not the loss of the whole model.
        return loss if len(self.statistics) == model.width else float("nan")


@dataclass(frozen=True, eq=False)
class PerTargetSolver(Solver):
    """Solver of several targets, each by a separate solver that runs as if alone.

    ``extra["targets"]`` has the `extra` of each one's solution.

    Parameters
    ----------
    each : tuple of Solver
        Solvers whose statistics are additive, and have no state of the rows.
    """

    each: tuple[Solver, ...]

    name = "of_targets"

    @cached_property
    def max_passes(self) -> int:
        """Return the passes of the slowest target."""
        return max(solver.max_passes for solver in self.each)

    def solve(self, model: LinearModel, sums: Sums, start: Array | None) -> Solution:
        """Solve for all targets."""
        solver_runs = [
            iterate_requests(
                model.of_target(target),
                solver,
                None if start is None else start[:, target : target + 1].copy(),
                sums.n_rows,
                lambda: sums.should_stop,
            )
            for target, solver in enumerate(self.each)
        ]

        def answer_together(
            target_indices: list[int], requests: list[Statistic]
        ) -> Sequence[Array]:
            together = PerTargetStatistic(tuple(requests), tuple(target_indices))
            return together.split_sums(model, sums(together))

        solutions = run_in_lock_step(solver_runs, answer_together)
        failed = [solution for solution in solutions if not solution.converged]
        return Solution(
            np.concatenate([solution.w for solution in solutions], axis=1),
            max(solution.n_iter for solution in solutions),
            not failed,
            failed[0].message if failed else "",
            {
                "targets": [solution.extra for solution in solutions],
                "warnings": [
                    text for solution in solutions for text in solution.extra.get("warnings", ())
                ],
            },
        )


def combine_target_problems(
    problems: Sequence[tuple[LinearModel, Solver]], n_targets: int | None
) -> tuple[LinearModel, Solver]:
    """Return the models and solvers of all targets as one; `n_targets` is None for a 1-d target."""
    model, solver = problems[0]
    if n_targets is None:
        return model, solver
    shift = tuple(shift for target_model, _ in problems for shift in target_model.target_shift)
    joint_model = replace(model, n_targets=n_targets, target_shift=shift)
    return joint_model, PerTargetSolver(tuple(solver for _, solver in problems))
