"""Steps of single sparse rows, each an update of its own, on the cells of a replica.

Rows come in runs of neighbours in random order: memory serves these several times faster than rows
drawn one by one, and the steps lead as far. Where the targets of a block are sorted such a run is
all of one class, so the runs are cut to a few rows.
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

#: Rows in turn of a block whose targets are sorted.
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
        self._sorted_blocks: dict[int, tuple[Any, bool]] = {}

    def step(self, lane: Lane, count: int = 1) -> int:
        """Step along the rows of a lane's next batches; return the number of rows."""
        replica = self._replica
        if replica.w.base is not self._cells:  # it has gone back to a snapshot
            self._cells = replica.interleave()
        steps, rate, rate_sum = (
            self._get_row_steps(lane.number),
            replica.learning_rate(),
            replica.rate_sum,
        )

        sizes: list[int] = []

        def run(batches: list[RowsInTurn], find: Callable[[int], Any]) -> float:
            """Step along rows of blocks; return the sum of their losses."""
            sizes.extend(len(part) for part, _ in batches)
            # Rows of several batches in one call; `sizes` says where each batch ends.
            of, rows = map(np.concatenate, zip(*batches, strict=True))
            numbers = np.flatnonzero(np.bincount(of))
            blocks = [find(number) for number in numbers.tolist()]
            # Numbers of blocks become positions in the list of arrays.
            place = np.searchsorted(numbers, of)
            if self._fit.work.shuffle and any(
                sort := [self._has_sorted_targets(b.y) for b in blocks]
            ):
                order = self._cut_sorted_runs(np.array(sort)[place], sizes)
                place, rows = place[order], rows[order]
            read = [(block.X, block.y, block.weight) for block in blocks]
            return float(steps.run(read, place, rows, self._cells, rate, rate_sum, sizes))

        n_rows = lane.take_row_steps(run, count)
        with self._counting:
            replica.count_row_steps(sizes or [0] * count, rate)
        return n_rows

    def _get_row_steps(self, lane: int) -> Any:
        """Return a lane's compiled steps, made once."""
        if lane not in self._steps:
            from daskml_dist.backends.row_steps import RowSteps

            linear, group = self._fit.steps.model.linear, self._fit.steps.rule.only
            assert linear is not None
            l1, l2 = group.penalty.l1, group.penalty.l2
            self._steps[lane] = RowSteps(linear.loss, group.optimizer, l1, l2, linear.fit_intercept)
        return self._steps[lane]

    def _has_sorted_targets(self, y: NDArray[Any]) -> bool:
        """Return whether a block's targets are sorted, found once a block."""
        found = self._sorted_blocks.get(id(y))
        if found is None or found[0] is not y:
            if len(self._sorted_blocks) > 64:  # of blocks that are streamed
                self._sorted_blocks.clear()
            found = self._sorted_blocks[id(y)] = y, _are_targets_sorted(y)
        return found[1]

    def _cut_sorted_runs(
        self, comes_sorted: NDArray[np.bool_], sizes: list[int]
    ) -> NDArray[np.intp]:
        """Return an order of the rows in which runs of sorted blocks are cut."""
        order, first = np.arange(len(comes_sorted)), 0
        for size in sizes:
            some = slice(first, first + size)
            if comes_sorted[some].any():
                if size not in self._orders:
                    self._orders[size] = _order_in_short_runs(size, _ROWS_IF_SORTED)
                order[some] = self._orders[size] + first
            first += size
        return order


def _order_in_short_runs(n_rows: int, length: int) -> NDArray[np.intp]:
    """Return the numbers up to `n_rows` in short runs, in a fixed random order."""
    # Seeded by the size: the same batch size always has the same order.
    runs = np.random.default_rng(n_rows).permutation(-(-n_rows // length))
    order: NDArray[np.intp] = (runs[:, None] * length + np.arange(length)).reshape(-1)
    return order[order < n_rows]


def _are_targets_sorted(y: NDArray[Any]) -> bool:
    """Return whether neighbouring targets are alike; True for a block of one target alone."""
    if len(y) < 2:
        return False
    # Ratio of von Neumann (1941): mean squared successive difference over twice the variance; 1 in
    # random order.
    steps = np.diff(y.astype(np.float64))
    return bool(np.mean(steps**2) <= _SORTED_BELOW * 2 * np.var(y, dtype=np.float64))
