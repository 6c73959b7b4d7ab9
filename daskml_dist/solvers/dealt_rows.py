"""Values of rows, sent to the trainers that process sets of these rows, and returned.

A loss of sets of rows (those of a query, those at risk at a time) needs all rows of a set in one
trainer, in a particular order. :class:`DealtRows` stores which trainer processes which rows; each
iteration sends 8 bytes for each row that is processed elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.trees import TreeRows
from daskml_dist.solvers.binning import BinnedRows
from daskml_dist.solvers.boosting_scores import RowRange
from daskml_dist.solvers.own_rows import Array, OwnRows

#: Minimum average length of runs of neighbouring rows, from which copying slices is faster than
#: copying rows.
_MIN_RUN_ROWS = 64


class RowSelection:
    """Selection of rows in some order, whose runs of neighbours are copied as slices.

    Parameters
    ----------
    positions : ndarray of intp of shape (n,)
        Positions of the rows.
    """

    def __init__(self, positions: NDArray[np.intp]) -> None:
        self._positions = positions
        breaks = np.flatnonzero(np.diff(positions) != 1) + 1
        self._runs: list[slice] | None = None
        if len(positions) and (len(breaks) + 1) * _MIN_RUN_ROWS <= len(positions):
            ends = [0, *breaks.tolist(), len(positions)]
            self._runs = [
                slice(int(positions[a]), int(positions[b - 1]) + 1) for a, b in pairwise(ends)
            ]

    def __len__(self) -> int:
        return len(self._positions)

    def take(self, values: Array) -> Array:
        """Return the values of the selected rows; for a single run this is a view."""
        if self._runs is None:
            return values[self._positions]
        parts = [values[run] for run in self._runs]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def put(self, values: Array, out: Array) -> None:
        """Write values of the selected rows to their positions."""
        if self._runs is None:
            out[self._positions] = values
            return
        start = 0
        for run in self._runs:
            stop = start + run.stop - run.start
            out[run] = values[start:stop]
            start = stop


class DealtRows:
    """Rows of all trainers that one trainer processes.

    Collective: all trainers create theirs at the same time. Before it sends any rows, a subclass
    sets `_places`, the positions of the own rows that go to each trainer (None: all stay), and
    `_order`, the order of the received rows (None: as received).

    Parameters
    ----------
    rows : OwnRows
    binned_lanes : sequence of BinnedRows
        Rows of each own lane, with their numbers.
    row_range : RowRange or None, default=None
        Numbers of the rows that are used; None: all.
    """

    def __init__(
        self, rows: OwnRows, binned_lanes: Sequence[BinnedRows], row_range: RowRange | None = None
    ) -> None:
        self.rows = rows
        self._positions = [_select_numbers(part, row_range) for part in binned_lanes]
        self._n_of_parts = [part.n for part in binned_lanes]
        self._places: list[RowSelection] | None = None
        self._order: RowSelection | None = None

    def _join(self, lane_arrays: Sequence[Array | None], dtype: type = np.float64) -> Array:
        """Return the values of the chosen rows of all own lanes, concatenated by lane."""
        selected: list[Array] = [np.empty(0, dtype)]
        for values, positions in zip(lane_arrays, self._positions, strict=True):
            assert values is not None
            selected.append(values if positions is None else values[positions])
        return np.concatenate(selected)

    def _join_weights(self, binned_lanes: Sequence[BinnedRows]) -> Array:
        """Return the weights of the chosen rows, or ones if rows have no weights."""
        return self._join([np.ones(p.n) if p.weight is None else p.weight for p in binned_lanes])

    def _send(self, values: Array) -> Array:
        """Return the values of the rows that this trainer processes."""
        if self._places is None:
            return values
        # Rows that stay are not sent: this trainer sends itself no rows in the all-to-all.
        rank, no_values = self.rows.rank, values[:0]
        values_by_rank = [
            no_values if i == rank else selection.take(values)
            for i, selection in enumerate(self._places)
        ]
        received = self.rows.exchange_arrays(values_by_rank)
        received[rank] = self._places[rank].take(values)
        self._n_received = [len(part) for part in received]
        return np.concatenate(received)

    def _sort(self, values: Array) -> Array:
        """Return received values in the order in which this trainer processes them."""
        return values if self._order is None else self._order.take(values)

    def collect(self, values: Sequence[Array]) -> Array:
        """Return values of the own lanes' rows for the rows processed here (collective)."""
        return self._sort(self._send(self._join(values)))

    def collect_predictions(self, lanes: Sequence[TreeRows]) -> Array:
        """Return the raw predictions of the rows processed here (collective)."""
        # Predictions may be on a GPU, but sets of rows are processed on the host.
        self.rows.map_lanes(lambda lane: lane.fetch_raw_predictions(), lanes)
        return self.collect([b.extra["raw"][0] for lane in lanes for b in lane.binned_rows])

    def give_back(self, values: Array) -> list[Array]:
        """Return values of the processed rows to the lanes that own the rows (collective)."""
        # The steps of `collect`, reversed.
        if self._order is not None:
            received = np.empty_like(values)
            self._order.put(values, received)
            values = received
        if self._places is not None:
            rank, n = self.rows.rank, sum(map(len, self._places))
            # Each trainer gets back the values of its rows, in their original order.
            parts_by_rank = np.split(values, np.cumsum(self._n_received)[:-1])
            own_part, parts_by_rank[rank] = parts_by_rank[rank], values[:0]
            returned = self.rows.exchange_arrays(
                [np.ascontiguousarray(part) for part in parts_by_rank]
            )
            returned[rank] = own_part
            values = np.empty(n, values.dtype)
            for selection, part in zip(self._places, returned, strict=True):
                selection.put(part, values)
        counts = [
            n if selection is None else len(selection)
            for n, selection in zip(self._n_of_parts, self._positions, strict=True)
        ]
        return np.split(values, np.cumsum(counts)[:-1])

    def hand_gradients(self, lanes: Sequence[TreeRows], g: Array, h: Array) -> list[Array]:
        """Pass gradients and hessians of the processed rows to the lanes (collective).

        Returns
        -------
        list of ndarray of float64 of shape (2, 1)
            Largest gradient and hessian of each lane.
        """
        returned = self.give_back(g), self.give_back(h)
        # A device may process the rows of several lanes as one.
        counts = [len(lane.binned_rows) for lane in lanes]
        ends = np.cumsum(counts).tolist()
        lane_gradients: list[Any] = [
            (lane, *(gradients[end - n : end] for gradients in returned))
            for lane, n, end in zip(lanes, counts, ends, strict=True)
        ]
        return self.rows.map_lanes(
            lambda triple: triple[0].set_gradients(triple[1], triple[2]), lane_gradients
        )


def _select_numbers(binned: BinnedRows, row_range: RowRange | None) -> NDArray[np.intp] | None:
    """Return the positions of a lane's rows whose numbers lie in a range; None: all of them."""
    if row_range is None:
        return None
    assert binned.row_numbers is not None
    return np.flatnonzero(
        (binned.row_numbers >= row_range[0]) & (binned.row_numbers < row_range[1])
    )
