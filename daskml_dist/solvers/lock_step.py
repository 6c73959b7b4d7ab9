"""Solvers that run side by side, each as if alone, and whose requests are answered together.

A solver calls its sums from deep within its loops, or from within SciPy, so it cannot be a
generator: each runs in a thread of its own. Only one thread runs at a time, always in the same
order, so what they request does not depend on scheduling. :class:`PerTargetSolver` solves for
several targets in this way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from daskml_dist.backends import Backend
from daskml_dist.backends.namespace import namespace
from daskml_dist.models.base import BatchRows
from daskml_dist.models.linear import LinearModel
from daskml_dist.solvers.base import Array, Solution, Solver, State, Statistic, Sums

__all__ = [
    "LockStepSums",
    "PerTargetSolver",
    "PerTargetStatistic",
    "combine_target_problems",
    "run_solvers_in_lock_step",
]


class _AbandonedError(BaseException):
    """End of a solver that gets no more answers; a BaseException, so that no handler stops it."""


class LockStepSums:
    """Sums of one solver, whose thread waits here until its request is answered.

    Parameters
    ----------
    model : Model
    solver : Solver
    start : ndarray or None
    n_rows : float
        Sum of the weights of its rows.
    should_stop : callable
    """

    kept = None

    def __init__(
        self, model: Any, solver: Solver, start: Array | None, n_rows: float,
        should_stop: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.n_rows: Any = n_rows
        self.request: Statistic | None = None
        self.solution: Solution | None = None
        self.error: BaseException | None = None
        self._problem = model, solver, start
        self._should_stop = should_stop
        self._answer: Array | None = None
        self._abandoned = False
        self._asked, self._answered = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="lock-step", daemon=True)

    @property
    def should_stop(self) -> bool:
        """Return whether the user ended the fit."""
        return self._should_stop()

    def keep(self, w: Array, state: State | None = None, again: int = 0, extra: Any = None) -> None:
        """Ignore the checkpoint: a fit that begins again repeats its remembered requests."""

    def __call__(self, statistic: Statistic) -> Array:
        """Ask, and wait for the answer."""
        self.request = statistic
        self._asked.release()
        self._answered.acquire()
        if self._abandoned:
            raise _AbandonedError
        assert self._answer is not None
        return self._answer

    # -- called by the leading thread ----------------------------------------------------------

    def start_thread(self) -> None:
        """Run the solver up to its first request."""
        self._thread.start()
        self._asked.acquire()

    def resume_with(self, answer: Array) -> None:
        """Answer, and run the solver up to its next request, or its end."""
        self.request, self._answer = None, answer
        self._answered.release()
        self._asked.acquire()

    def abandon(self) -> None:
        """End a solver that waits."""
        if self._thread.is_alive():
            self._abandoned = True
            self._answered.release()
        self._thread.join()

    def _run(self) -> None:
        model, solver, start = self._problem
        try:
            self.solution = solver.solve(model, self, start)
        except _AbandonedError:
            return
        except BaseException as error:
            self.error = error
        self.request = None
        self._asked.release()


def run_solvers_in_lock_step(
    solver_runs: Sequence[LockStepSums],
    answers: Callable[[list[int], list[Statistic]], Sequence[Array]],
) -> list[Solution]:
    """Run solvers to their ends."""
    begun: list[LockStepSums] = []
    try:
        for one in solver_runs:
            begun.append(one)
            one.start_thread()
        while True:
            # Solvers that wait for an answer, in a fixed order.
            asking = [i for i, one in enumerate(solver_runs) if one.request is not None]
            for one in solver_runs:
                if one.error is not None:
                    raise one.error
            if not asking:
                return [one.solution for one in solver_runs if one.solution is not None]
            requests = [solver_runs[i].request for i in asking]
            # One answer for all requests of this round.
            found = answers(asking, [q for q in requests if q is not None])
            for i, answer in zip(asking, found, strict=True):
                solver_runs[i].resume_with(answer)
    finally:
        for one in begun:
            one.abandon()


@dataclass(frozen=True, eq=False)
class PerTargetStatistic(Statistic):
    """Inner statistics of models of one target each, summed in one reading of the rows.

    Parameters
    ----------
    each : tuple of Statistic
        Without a memory of rows.
    targets : tuple of int
        Column of the targets that each is asked of.
    """

    each: tuple[Statistic, ...]
    targets: tuple[int, ...]

    @property
    def in_parts(self) -> bool:  # type: ignore[override]
        """Return whether all inner statistics read X in parts."""
        return all(one.in_parts for one in self.each)

    @property
    def shows_not_finite(self) -> bool:
        """Return whether any inner statistic shows what is not finite."""
        return any(one.shows_not_finite for one in self.each)

    def _target_shapes(self, model: LinearModel) -> list[tuple[int, ...]]:
        return [
            one.shape(model.of_target(target))
            for one, target in zip(self.each, self.targets, strict=True)
        ]

    def shape(self, model: LinearModel) -> tuple[int, ...]:
        return (sum(map(prod, self._target_shapes(model))),)

    def parts(self, model: LinearModel, sums: Any) -> list[Any]:
        """Return views of the flat sums, one for each inner statistic."""
        found, start = [], 0
        for shape in self._target_shapes(model):
            stop = start + prod(shape)
            found.append(namespace(sums).reshape(sums[start:stop], shape))
            start = stop
        return found

    def add(self, model: LinearModel, rows: BatchRows, out: Any, backend: Backend) -> Any:
        loss, xp = 0.0, namespace(rows.y)
        parts = self.parts(model, out)
        for one, target, part in zip(self.each, self.targets, parts, strict=True):
            y = xp.concat([rows.y[:, target]])  # a copy in one piece, as kernels read it
            of_one = BatchRows(
                rows.X, y, rows.weight, rows.key, rows.block, rows.first, places=rows.places
            )
            loss = loss + one.add(model.of_target(target), of_one, part, backend)
        return loss if len(self.each) == model.width else float("nan")


@dataclass(frozen=True, eq=False)
class PerTargetSolver(Solver):
    """Solver of several targets, each by a solver that goes the way it would go alone.

    ``extra["targets"]`` has what else each found.

    Parameters
    ----------
    each : tuple of Solver
        Whose statistics are added, and remember nothing of the rows.
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
            LockStepSums(
                model.of_target(target),
                solver,
                None if start is None else start[:, target : target + 1].copy(),
                sums.n_rows,
                lambda: sums.should_stop,
            )
            for target, solver in enumerate(self.each)
        ]

        def answers(at: list[int], requests: list[Statistic]) -> Sequence[Array]:
            asked = PerTargetStatistic(tuple(requests), tuple(at))
            return asked.parts(model, sums(asked))

        found = run_solvers_in_lock_step(solver_runs, answers)
        last = [one for one in found if not one.converged]
        return Solution(
            np.concatenate([one.w for one in found], axis=1),
            max(one.n_iter for one in found),
            not last,
            last[0].message if last else "",
            {
                "targets": [one.extra for one in found],
                "warnings": [text for one in found for text in one.extra.get("warnings", ())],
            },
        )


def combine_target_problems(
    problems: Sequence[tuple[LinearModel, Solver]], n_targets: int | None
) -> tuple[LinearModel, Solver]:
    """Combine the problems of all targets to one; return that of a one-dimensional target as it
    is.
    """
    model, solver = problems[0]
    if n_targets is None:
        return model, solver
    shift = tuple(shift for one, _ in problems for shift in one.target_shift)
    joined = replace(model, n_targets=n_targets, target_shift=shift)
    return joined, PerTargetSolver(tuple(solver for _, solver in problems))
