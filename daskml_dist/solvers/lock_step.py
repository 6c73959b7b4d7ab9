"""Solvers that run side by side, each as if alone, and whose questions are answered together.

Each solver runs in a thread of its own, but only one at a time, and always in the same order: what
they ask does not depend on how threads are scheduled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from daskml_dist.solvers.base import Array, Solution, Solver, State, Statistic

__all__ = ["Seat", "in_lock_step"]


class _AbandonedError(BaseException):
    """The other solvers will not be answered any more: no handler is to catch it."""


class Seat:
    """Sums of one solver: it waits here until its question is answered.

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
        self.question: Statistic | None = None
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
        """Whether the user ended the fit."""
        return self._should_stop()

    def keep(self, w: Array, state: State | None = None, again: int = 0, extra: Any = None) -> None:
        """Nothing: a fit that begins again asks all questions anew, which are remembered."""

    def __call__(self, statistic: Statistic) -> Array:
        """Ask, and wait for the answer."""
        self.question = statistic
        self._asked.release()
        self._answered.acquire()
        if self._abandoned:
            raise _AbandonedError
        assert self._answer is not None
        return self._answer

    # -- for whoever leads ---------------------------------------------------------------------

    def begin(self) -> None:
        """Run the solver up to its first question."""
        self._thread.start()
        self._asked.acquire()

    def go_on(self, answer: Array) -> None:
        """Answer, and run the solver up to its next question, or its end."""
        self.question, self._answer = None, answer
        self._answered.release()
        self._asked.acquire()

    def leave(self) -> None:
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
        self.question = None
        self._asked.release()


def in_lock_step(
    seats: Sequence[Seat], answers: Callable[[list[int], list[Statistic]], Sequence[Array]]
) -> list[Solution]:
    """Run solvers to their ends.

    Parameters
    ----------
    seats : sequence of Seat
    answers : callable
        Takes the numbers of the seats that ask and their questions; returns an answer each.

    Returns
    -------
    list of Solution
    """
    begun: list[Seat] = []
    try:
        for seat in seats:
            begun.append(seat)
            seat.begin()
        while True:
            asking = [i for i, seat in enumerate(seats) if seat.question is not None]
            for seat in seats:
                if seat.error is not None:
                    raise seat.error
            if not asking:
                return [seat.solution for seat in seats if seat.solution is not None]
            questions = [seats[i].question for i in asking]
            found = answers(asking, [q for q in questions if q is not None])
            for i, answer in zip(asking, found, strict=True):
                seats[i].go_on(answer)
    finally:
        for seat in begun:
            seat.leave()
