"""Steps of single sparse rows on a replica with interleaved parameters and optimizer state.

Rows are read in runs of adjacent rows, the runs in random order: this is several times faster than
drawing single rows, and the fit converges as well. If the targets of a block are sorted, a run
would contain only one class, so runs are cut to a few rows.

Schedules count each row as a step. Compiled steps have one rate in a call, so rows whose rates
differ (at first, since a batch may be longer than all steps before it) are several calls.
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

#: Rows per run in a block with sorted targets.
_SORTED_RUN_ROWS = 4
#: Von Neumann's ratio (1 in random order) up to which targets count as sorted.
_MAX_SORTED_RATIO = 0.5
#: Largest difference between the learning rates of rows that are stepped at one rate, as a share.
_RATE_TOLERANCE = 0.1
#: Blocks whose check for sorted targets is cached; streamed blocks are new objects in each pass.
_MAX_CHECKED_BLOCKS = 64


class RowByRow:
    """Steps of single rows on a replica, which threads of a trainer may share.

    Parameters
    ----------
    fit : FitSpec
    replica : Shard
    n_threads : int, default=1
        Threads that call :meth:`step` at the same time.
    """

    def __init__(self, fit: FitSpec, replica: Shard, n_threads: int = 1) -> None:
        self._fit = fit
        self._n_threads = n_threads
        self._counting = threading.Lock()
        self._replica = replica
        self._cells = replica.interleave()
        self._steps: dict[int, Any] = {}
        self._orders: dict[int, NDArray[np.intp]] = {}
        self._sorted_blocks: dict[int, tuple[Any, bool]] = {}

    def step(self, lane: Lane, count: int = 1) -> int:
        """Step along the rows of a lane's next batches; return the number of rows."""
        replica = self._replica
        if replica.w.base is not self._cells:  # new arrays, as after a restored snapshot
            self._cells = replica.interleave()
        steps = self._get_row_steps(lane.number)
        rate, rate_sum = replica.learning_rate(), replica.rate_sum
        # The other threads make as many steps meanwhile.
        updates_per_row = self._n_threads / replica.rule.scheduled_steps

        sizes: list[int] = []

        def run(batches: list[RowsInTurn], find: Callable[[int], Any]) -> float:
            """Step along rows of blocks; return the sum of their losses."""
            nonlocal rate
            sizes.extend(len(part) for part, _ in batches)
            # Rows of several batches in one call; `sizes` gives the end of each batch.
            batch_numbers, rows = map(np.concatenate, zip(*batches, strict=True))
            numbers = np.flatnonzero(np.bincount(batch_numbers))
            blocks = [find(number) for number in numbers.tolist()]
            # Numbers of blocks become positions in the list of arrays.
            indices = np.searchsorted(numbers, batch_numbers)
            if self._fit.work.shuffle and any(
                sort := [self._has_sorted_targets(b.y) for b in blocks]
            ):
                order = self._cut_sorted_runs(np.array(sort)[indices], sizes)
                indices, rows = indices[order], rows[order]
            read = [(block.X, block.y, block.weight) for block in blocks]
            runs = _find_rate_runs(
                len(rows), lambda row: replica.learning_rate(row * updates_per_row)
            )
            if len(runs) == 1:
                return float(steps.run(read, indices, rows, self._cells, rate, rate_sum, sizes))
            loss, rate_passed = 0.0, rate_sum
            for start, stop, own_rate in runs:
                batch = slice(start, stop)
                loss += steps.run(
                    read, indices[batch], rows[batch], self._cells, own_rate, rate_passed
                )
                rate_passed += (stop - start) * own_rate * self._n_threads
            rate = sum((stop - start) * own_rate for start, stop, own_rate in runs) / len(rows)
            return loss

        n_rows = lane.take_row_steps(run, count)
        with self._counting:
            replica.count_row_steps(sizes or [0] * count, rate)
        return n_rows

    def _get_row_steps(self, lane: int) -> Any:
        """Return a lane's compiled steps, made once."""
        if lane not in self._steps:
            from daskml_dist.backends.row_steps import RowSteps

            linear, group = self._fit.steps.model.linear, self._fit.steps.rule.only_group
            assert linear is not None
            l1, l2 = group.penalty.l1, group.penalty.l2
            self._steps[lane] = RowSteps(
                linear.loss, group.optimizer, l1, l2, linear.fit_intercept, self._n_threads
            )
        return self._steps[lane]

    def _has_sorted_targets(self, y: NDArray[Any]) -> bool:
        """Return whether a block's targets are sorted, checked once per block."""
        known_block = self._sorted_blocks.get(id(y))
        if known_block is None or known_block[0] is not y:
            if len(self._sorted_blocks) > _MAX_CHECKED_BLOCKS:
                self._sorted_blocks.clear()
            known_block = self._sorted_blocks[id(y)] = y, _are_targets_sorted(y)
        return known_block[1]

    def _cut_sorted_runs(
        self, comes_sorted: NDArray[np.bool_], sizes: list[int]
    ) -> NDArray[np.intp]:
        """Return an order of the rows in which runs of sorted blocks are cut."""
        order, first = np.arange(len(comes_sorted)), 0
        for size in sizes:
            batch = slice(first, first + size)
            if comes_sorted[batch].any():
                if size not in self._orders:
                    self._orders[size] = _order_in_short_runs(size, _SORTED_RUN_ROWS)
                order[batch] = self._orders[size] + first
            first += size
        return order


def _find_rate_runs(n_rows: int, find_rate: Callable[[int], float]) -> list[tuple[int, int, float]]:
    """Return runs of rows with similar learning rates: first row, end and first rate of each."""
    runs, start = [], 0
    while start < n_rows:
        rate, stop = find_rate(start), n_rows
        # Halved until the rates at both ends are similar.
        while stop - start > 1 and abs(find_rate(stop - 1) - rate) > _RATE_TOLERANCE * rate:
            stop = start + (stop - start) // 2
        runs.append((start, stop, rate))
        start = stop
    return runs


def _order_in_short_runs(n_rows: int, length: int) -> NDArray[np.intp]:
    """Return the numbers below `n_rows` in runs of `length`, the runs in a fixed random order."""
    # Seeded by the size, so batches of one size always have the same order.
    runs = np.random.default_rng(n_rows).permutation(-(-n_rows // length))
    order: NDArray[np.intp] = (runs[:, None] * length + np.arange(length)).reshape(-1)
    return order[order < n_rows]


def _are_targets_sorted(y: NDArray[Any]) -> bool:
    """Return whether adjacent targets are similar; True for a block with a single target value."""
    if len(y) < 2:
        return False
    # Ratio of von Neumann (1941): mean squared successive difference over twice the variance; 1 in
    # random order.
    steps = np.diff(y.astype(np.float64))
    return bool(np.mean(steps**2) <= _MAX_SORTED_RATIO * 2 * np.var(y, dtype=np.float64))
