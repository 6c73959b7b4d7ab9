"""What a sum over all rows costs a round solver, beside the all-reduce that it is made of.

The rows are few, so what is left is the way of a question to the other process and of the sum back.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks import _transport_peers as peers
from benchmarks._common import markdown, persisted, processes
from benchmarks.transport import all_ranks
from daskml_dist.backends import Backend
from daskml_dist.data.collection import as_collection
from daskml_dist.models.base import BatchRows, Model
from daskml_dist.solvers import Solution, Solver, Statistic, Sums
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.job import FitJob
from daskml_dist.training.spec import RunSettings

#: Numbers (float64) of a sum and repetitions: 1 KB, 64 KB, 4 MB.
PLAN: peers.Plan = [(1 << 7, 500), (1 << 13, 200), (1 << 19, 30)]


@dataclass(frozen=True)
class Nothing(Model):
    """No parameters."""

    n_features: int = 1

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Ones(Statistic):
    """So many ones of each trainer, for a question as long as it is said to be."""

    n: int
    question: NDArray[np.float64]
    remembered: ClassVar[bool] = False

    def shape(self, model: Model) -> tuple[int, ...]:
        return (self.n,)

    def add(self, model: Model, rows: BatchRows, out: Any, backend: Backend) -> float:
        out += 1.0
        return 0.0


@dataclass(frozen=True)
class Timed(Solver):
    """Finds how long the sums of a plan take, in us: with a short question, and one as long."""

    name = "timed"
    plan: tuple[tuple[int, int], ...]

    @property
    def max_passes(self) -> int:
        return sum(2 * (5 + times) for _, times in self.plan)

    def solve(self, model: Any, sums: Sums, start: NDArray[np.float64] | None) -> Solution:
        taken = []
        for n, times in self.plan:
            for length in (1, n):
                statistic = Ones(n, np.ones(length))
                for _ in range(5):
                    sums(statistic)
                taken.append(_median_us(lambda: sums(statistic), times))  # noqa: B023
        return Solution(np.reshape(taken, (len(self.plan), 2)))


def _median_us(act: Any, times: int) -> float:
    taken = []
    for _ in range(times):
        since = time.perf_counter()
        act()
        taken.append(time.perf_counter() - since)
    return statistics.median(taken) * 1e6


def run(tiny: bool = False) -> str:
    """A table."""
    plan = [(n, 3) for n, _ in PLAN[:1]] if tiny else PLAN
    # The all-reduce is of float32.
    alone = all_ranks(2, peers.allreduce_rank, True, [(2 * n, times) for n, times in plan])
    rows = [
        [f"{8 * n >> 10:,} KB", *(f"{taken:,.0f}" for taken in (bare, *found))]
        for (n, _), bare, found in zip(plan, alone, _measured(plan), strict=True)
    ]
    columns = ["sum", "all-reduce alone", "sum", "sum, as long a question"]
    return markdown("A sum of a round solver, 2 processes, us, medians", columns, rows)


def _measured(plan: peers.Plan) -> NDArray[np.float64]:
    with processes(2) as client:
        X = persisted(np.zeros((100, 1)), 2)
        with FitJob(as_collection(X), client, RunSettings(n_lanes=2)) as job:
            job.rows = DatasetInfo.of(job.summarize_rows(), None, None, False)
            solver = Timed(tuple(plan))
            job.lay_out_lanes(solver.max_passes)
            solution = job.train(job.plan_rounds(Nothing(), solver)).state
    assert isinstance(solution, Solution)
    return solution.w
