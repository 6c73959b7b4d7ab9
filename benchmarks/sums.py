"""Cost of a sum over all rows for a round solver, compared with the all-reduce inside it.

There are few rows, so the time is that of sending a request to the other process and the sum back.
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

#: Numbers (float64) in a sum, and repetitions: 1 KB, 64 KB, 4 MB.
PLAN: peers.Plan = [(1 << 7, 500), (1 << 13, 200), (1 << 19, 30)]


@dataclass(frozen=True)
class Nothing(Model):
    """Model without parameters."""

    n_features: int = 1

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Ones(Statistic):
    """Statistic of ones from each trainer, for a request of a given length."""

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
    """Solver that times the sums of a plan, in us: with a short request, and with one as long."""

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
    """Return a table."""
    plan = [(n, 3) for n, _ in PLAN[:1]] if tiny else PLAN
    # The all-reduce uses float32.
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
            job.rows = DatasetInfo.from_summary(job.summarize_rows(), None, None, False)
            solver = Timed(tuple(plan))
            job.lay_out_lanes(solver.max_passes)
            solution = job.train(job.plan_rounds(Nothing(), solver)).state
    assert isinstance(solution, Solution)
    return solution.w
