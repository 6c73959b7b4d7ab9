"""Solvers in lock step: each behaves as if alone, requests are ordered, no thread is left."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from daskml_dist.solvers.base import Solution, Solver, Statistic
from daskml_dist.solvers.lock_step import SolverRun, iterate_requests, run_in_lock_step


@dataclass(frozen=True)
class Number(Statistic):
    value: float

    def shape(self, model: Any) -> tuple[int, ...]:
        return (1,)

    def add(self, model: Any, rows: Any, out: Any, backend: Any) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Counts(Solver):
    """Solver that makes a number of reduce requests and returns the results."""

    times: int
    fails_at: int = -1
    name = "counts"
    max_passes = 1

    def solve(self, model: Any, sums: Any, start: Any) -> Solution:
        found = []
        for i in range(self.times):
            if i == self.fails_at:
                raise ValueError("no digits left")
            found.append(float(sums(Number(float(i)))[0]))
        return Solution(np.array(found), self.times)


def _solver_runs(*solvers: Solver) -> list[SolverRun]:
    return [iterate_requests(None, solver, None, 1.0, lambda: False) for solver in solvers]


def _threads() -> int:
    return sum(thread.name == "lock-step" for thread in threading.enumerate())


def test_each_solver_gets_its_results_and_may_end_early() -> None:
    log: list[tuple[list[int], list[float]]] = []

    def answers(at: list[int], questions: list[Any]) -> list[Any]:
        log.append((at, [question.value for question in questions]))
        return [np.array([10.0 * i + q.value]) for i, q in zip(at, questions, strict=True)]

    found = run_in_lock_step(_solver_runs(Counts(2), Counts(0), Counts(3)), answers)
    assert [solution.w.tolist() for solution in found] == [[0, 1], [], [20, 21, 22]]
    assert log == [([0, 2], [0, 0]), ([0, 2], [1, 1]), ([2], [2])]
    assert _threads() == 0


@pytest.mark.parametrize("fails_at", [0, 1])
def test_an_error_of_one_solver_ends_all(fails_at: int) -> None:
    with pytest.raises(ValueError, match="no digits"):
        run_in_lock_step(
            _solver_runs(Counts(3), Counts(3, fails_at)), lambda at, q: [np.zeros(1) for _ in at]
        )
    assert _threads() == 0


def test_an_error_of_a_reduction_ends_all() -> None:
    def answers(at: list[int], questions: list[Any]) -> list[Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_in_lock_step(_solver_runs(Counts(3), Counts(3)), answers)
    assert _threads() == 0
