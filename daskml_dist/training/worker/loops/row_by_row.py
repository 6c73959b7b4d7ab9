"""Row by row: each sparse row of a batch as a step of its own, on the cells of a replica.

The rows come in runs of neighbours, in random order: memory serves these several times faster than
single rows drawn at random, and the steps lead as far. Where the targets of a block come sorted,
such a run is all of one kind, and the runs are cut.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.ps.shard import Shard
from daskml_dist.training.spec import FitSpec
from daskml_dist.training.worker.lane import Lane
from daskml_dist.training.worker.reader import RowsInTurn

__all__ = ["RowByRow"]

#: Rows in turn of a block whose targets come sorted.
_ROWS_IF_SORTED = 4
#: Mean squared difference of neighbours' targets below which they come sorted, in units of what it
#: is in random order (von Neumann 1941).
_SORTED_BELOW = 0.5


class RowByRow:
    """Steps of single rows on a replica, by all threads of a trainer that share it.

    Parameters
    ----------
    fit : FitSpec
    replica : Shard
    """

    def __init__(self, fit: FitSpec, replica: Shard) -> None:
        self._fit = fit
        self._counting = threading.Lock()
        self._replica = replica
        self._cells = replica.interleave()
        self._steps: dict[int, Any] = {}
        self._orders: dict[int, NDArray[np.intp]] = {}
        self._is_sorted: dict[int, tuple[Any, bool]] = {}

    def step(self, lane: Lane, count: int = 1) -> int:
        """Step along the rows of a lane's next batches, at the rate of the first; how many."""
        replica = self._replica
        if replica.w.base is not self._cells:  # it has gone back to a snapshot
            self._cells = replica.interleave()
        steps, rate, rate_sum = (
            self._steps_of(lane.number),
            replica.learning_rate(),
            replica.rate_sum,
        )

        sizes: list[int] = []

        def run(batches: list[RowsInTurn], find: Callable[[int], Any]) -> float:
            sizes.extend(len(part) for part, _ in batches)
            of, rows = map(np.concatenate, zip(*batches, strict=True))
            numbers = np.flatnonzero(np.bincount(of))
            blocks = [find(number) for number in numbers.tolist()]
            place = np.searchsorted(numbers, of)
            if self._fit.work.shuffle and any(sort := [self._comes_sorted(b.y) for b in blocks]):
                order = self._cut(np.array(sort)[place], sizes)
                place, rows = place[order], rows[order]
            read = [(block.X, block.y, block.weight) for block in blocks]
            return float(steps.run(read, place, rows, self._cells, rate, rate_sum, sizes))

        n_rows = lane.take_row_steps(run, count)
        with self._counting:
            replica.count_row_steps(sizes or [0] * count, rate)
        return n_rows

    def _steps_of(self, lane: int) -> Any:
        if lane not in self._steps:
            from daskml_dist.backends.row_steps import RowSteps

            linear, group = self._fit.steps.model.linear, self._fit.steps.rule.only
            assert linear is not None
            l1, l2 = group.penalty.l1, group.penalty.l2
            self._steps[lane] = RowSteps(linear.loss, group.optimizer, l1, l2, linear.fit_intercept)
        return self._steps[lane]

    def _comes_sorted(self, y: NDArray[Any]) -> bool:
        found = self._is_sorted.get(id(y))
        if found is None or found[0] is not y:
            if len(self._is_sorted) > 64:  # of blocks that are streamed
                self._is_sorted.clear()
            found = self._is_sorted[id(y)] = y, _is_sorted(y)
        return found[1]

    def _cut(self, comes_sorted: NDArray[np.bool_], sizes: list[int]) -> NDArray[np.intp]:
        """Order of the rows of some batches, of which those with sorted blocks are cut."""
        order, first = np.arange(len(comes_sorted)), 0
        for size in sizes:
            some = slice(first, first + size)
            if comes_sorted[some].any():
                if size not in self._orders:
                    self._orders[size] = _in_runs(size, _ROWS_IF_SORTED)
                order[some] = self._orders[size] + first
            first += size
        return order


def _in_runs(n_rows: int, length: int) -> NDArray[np.intp]:
    """Numbers up to `n_rows` in runs of neighbours, whose order is random and always the same."""
    runs = np.random.default_rng(n_rows).permutation(-(-n_rows // length))
    order: NDArray[np.intp] = (runs[:, None] * length + np.arange(length)).reshape(-1)
    return order[order < n_rows]


def _is_sorted(y: NDArray[Any]) -> bool:
    """Whether the targets of neighbours are alike; a block of one target alone comes so as well."""
    if len(y) < 2:
        return False
    steps = np.diff(y.astype(np.float64))
    return bool(np.mean(steps**2) <= _SORTED_BELOW * 2 * np.var(y, dtype=np.float64))
