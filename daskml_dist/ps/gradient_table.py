"""Table of the lanes' gradients, whose mean gives the direction of asynchronous steps."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.ps.messages import sum_in_lane_order


@dataclass
class TableEntry:
    """Sum of gradients, with its number of rows and pushes."""

    index: NDArray[np.int64] | None
    values: NDArray[Any]
    rows: float
    n_pushes: int = 1

    def mean(self) -> TableEntry:
        """Return the mean push."""
        return TableEntry(self.index, self.values / self.n_pushes, self.rows / self.n_pushes)

    def add(self, other: TableEntry, sign: int = 1) -> None:
        """Add another sum, or subtract it."""
        values = other.values if sign > 0 else -other.values
        parts = [(0, self.index, self.values), (1, other.index, values)]
        self.index, self.values = sum_in_lane_order(parts, owned={0})
        self.rows += sign * other.rows
        self.n_pushes += other.n_pushes


class GradientTable:
    """Gradients of all lanes in a round, in which each lane has the same weight, fast or slow.

    A round has two phases. First, gradients are only collected, until there is one from each lane.
    Then each lane's next push makes a step along the sum of the lanes' mean pushes, once per lane.
    Later pushes of a lane that had its step belong to the next round.

    Unlike in the paper, a lane that made no step also continues from the present parameters.

    References
    ----------
    A. Maranjyan and P. Richtarik, "Ringleader ASGD", ICLR 2026, algorithm 1.
    """

    def __init__(self) -> None:
        self._entries: dict[int, TableEntry] = {}
        #: Lanes that had their step in this round, and their pushes since then.
        self._stepped_lanes: set[int] = set()
        self._next_entries: dict[int, TableEntry] = {}
        #: Sum of the mean pushes of all lanes; None in the first phase.
        self._total: TableEntry | None = None

    def add(self, lane: int, push: TableEntry, lanes: Collection[int]) -> TableEntry | None:
        """Take a push; return the gradient of the step that it makes, or None if it makes none.

        `lanes` are all lanes that may push, without those that have left.
        """
        if lane in self._stepped_lanes:
            self._gather(self._next_entries, lane, push)
            return None
        old_mean = self._entries[lane].mean() if lane in self._entries else None
        self._gather(self._entries, lane, push)
        if any(n not in self._entries for n in lanes):
            return None
        # Phase 2: only one lane's mean changes, so the update costs the same for any number of
        # lanes.
        if self._total is not None and old_mean is not None:
            self._total.add(old_mean, sign=-1)
            self._total.add(self._entries[lane].mean())
        else:
            self._total = self._sum_entries()
        step = TableEntry(self._total.index, self._total.values.copy(), self._total.rows)
        self._stepped_lanes.add(lane)
        if self._stepped_lanes.issuperset(lanes):
            self._entries, self._next_entries = self._next_entries, {}
            self._stepped_lanes.clear()
            self._total = None
        return step

    @staticmethod
    def _gather(entries: dict[int, TableEntry], lane: int, push: TableEntry) -> None:
        """Add a push to its lane's entry."""
        if lane in entries:
            entries[lane].add(push)
        else:
            # The sender, in the same process, may still use its own array.
            entries[lane] = TableEntry(push.index, push.values.copy(), push.rows)

    def _sum_entries(self) -> TableEntry:
        """Return the sum of the lanes' mean pushes."""
        means = {lane: entry.mean() for lane, entry in self._entries.items()}
        index, values = sum_in_lane_order(
            [(lane, mean.index, mean.values) for lane, mean in means.items()], owned=means
        )
        return TableEntry(index, values, sum(mean.rows for mean in means.values()))
