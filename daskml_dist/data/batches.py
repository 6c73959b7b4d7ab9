"""Lanes, the rows that they own, and reproducible batches of these rows.

A lane owns segments (row ranges of blocks): blocks are cut into lanes evenly by rows
(`make_even_lanes`), by columns, or whole. Each pass visits its blocks in a new order. Groups of up
to :data:`SHUFFLED_BLOCKS` blocks are shuffled together: blocks that are sorted (by label, by time)
still give mixed batches, and only one group must be in memory. Large batches are drawn as runs of
neighbouring rows, at least :data:`RUNS_PER_BATCH` of them, which are faster to read (two-level
shuffling, Xu et al. 2022). The order depends on (random_state, pass, block) alone, never on which
worker runs the lane. Private fits draw each row of a batch independently (`PoissonRows`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Blocks whose rows are shuffled together, if memory allows.
SHUFFLED_BLOCKS = 8
#: Runs of neighbouring rows in a batch: enough that its rows are a fair sample of the group.
#: Smaller batches are drawn row by row.
RUNS_PER_BATCH = 256
#: Longest run of rows, and minimum number of runs per pass, if each row is a step: consecutive
#: steps use the rows of one run, and many similar rows in sequence would bias them.
_MAX_RUN_IN_TURN, _MIN_RUNS_IN_TURN = 16, 2048

#: Rows whose positions are computed in one call (512 KiB of int64), for several small batches: one
#: NumPy call per batch would take longer than the batch.
_POSITIONS_AHEAD = 1 << 16
#: From this run length on, batches are represented as runs (`RowRuns`) instead of row numbers.
_LONG_RUN_ROWS = 16


@dataclass(frozen=True, slots=True)
class RowRuns:
    """Runs of neighbouring rows of a block, in sequence.

    Parameters
    ----------
    starts, counts : ndarray of int of shape (n_runs,)
        First row and number of rows of each.
    """

    starts: NDArray[np.intp]
    counts: NDArray[np.intp]

    def __len__(self) -> int:
        return int(self.counts.sum())

    @property
    def row_numbers(self) -> NDArray[np.intp]:
        """Return the number of each row."""
        # `before` is the position in the result at which each run begins; start + (position -
        # before) is the row.
        before = np.cumsum(self.counts) - self.counts
        return np.repeat(self.starts - before, self.counts) + np.arange(len(self))


BlockRows = NDArray[np.intp] | RowRuns | slice
#: Block and row numbers; if each row is a step, the block is an array with one entry per row.
DrawnRows = tuple[int | NDArray[np.intp], BlockRows]


@dataclass(frozen=True)
class Segment:
    """Rows ``start`` to ``stop`` of a block.

    Parameters
    ----------
    block, start, stop : int
    drawn_as : int or None
        Number of the block whose random order is used: it holds other columns of the same rows.
    """

    block: int
    start: int
    stop: int
    drawn_as: int | None = None

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def seed_block(self) -> int:
        """Return the number of the block that seeds the order of the rows."""
        return self.block if self.drawn_as is None else self.drawn_as


@dataclass(frozen=True)
class LaneSpec:
    """Lane (a logical worker): its number and its rows.

    Parameters
    ----------
    lane : int
    segments : tuple of Segment
    """

    lane: int
    segments: tuple[Segment, ...]

    @property
    def n_rows(self) -> int:
        """Return the number of rows of the lane, including held-out ones."""
        return sum(map(len, self.segments))


def split_rows(
    blocks: Sequence[int], rows: Mapping[int, int], n_lanes: int, *, snap: float = 0.0
) -> list[tuple[Segment, ...]]:
    """Split consecutive blocks into `n_lanes` nearly equal runs of rows."""
    # Rows are numbered across all blocks: block i has the rows edges[i] to edges[i + 1].
    edges = np.concatenate([[0], np.cumsum([rows[b] for b in blocks])])
    total = int(edges[-1])
    # Even boundaries, each moved to a block's boundary if one is near enough.
    cuts = (np.arange(n_lanes + 1) * total) // n_lanes
    if snap and total:
        next_edge = np.searchsorted(edges, cuts).clip(1, len(edges) - 1)
        below, above = edges[next_edge - 1], edges[next_edge]
        nearest = np.where(cuts - below <= above - cuts, below, above)
        close = np.abs(nearest - cuts) <= snap * total / n_lanes
        cuts = np.where(close, nearest, cuts)
    # First block that contributes rows to each lane, and one past the last.
    firsts = np.searchsorted(edges, cuts[:-1], "right") - 1
    lasts = np.searchsorted(edges, cuts[1:])
    begins, ends = edges[:-1].tolist(), edges[1:].tolist()
    lanes = []
    for low, high, first, last in zip(
        cuts[:-1].tolist(), cuts[1:].tolist(), firsts.tolist(), lasts.tolist(), strict=True
    ):
        lanes.append(
            tuple(
                Segment(blocks[i], max(low, begins[i]) - begins[i], min(high, ends[i]) - begins[i])
                for i in range(first, last)
                if max(low, begins[i]) < min(high, ends[i])
            )
        )
    return lanes


def make_even_lanes(rows: Mapping[int, int], n_lanes: int, *, snap: float = 0.0) -> list[LaneSpec]:
    """Return `n_lanes` lanes of nearly equal numbers of rows, at most one lane per row."""
    # A lane without rows would change nothing, but would cost as much as any lane.
    n_lanes = min(n_lanes, max(1, sum(rows.values())))
    segments = split_rows(sorted(rows), rows, n_lanes, snap=snap)
    return [LaneSpec(i, s) for i, s in enumerate(segments)]


def make_column_lanes(rows: Mapping[int, int], n_parts: int) -> list[LaneSpec]:
    """Return lanes that each hold all rows, for one part of the columns."""
    n_blocks = len(rows) // n_parts
    return [
        LaneSpec(
            part,
            tuple(
                Segment(block, 0, rows[block], drawn_as=position)
                for position in range(n_blocks)
                if rows[block := part * n_blocks + position]
            ),
        )
        for part in range(n_parts)
    ]


def make_block_lanes(rows: Mapping[int, int]) -> list[LaneSpec]:
    """Return a lane for each block that has rows."""
    segments = [Segment(block, 0, rows[block]) for block in sorted(rows) if rows[block]]
    return [LaneSpec(i, (segment,)) for i, segment in enumerate(segments)]


def make_whole_lanes(rows: Mapping[int, int], n_lanes: int) -> list[LaneSpec]:
    """Return lanes of whole consecutive blocks, nearly equal in number."""
    n_lane_blocks = len(rows) // n_lanes
    return [
        LaneSpec(
            lane,
            tuple(
                Segment(b, 0, rows[b])
                for b in range(lane * n_lane_blocks, (lane + 1) * n_lane_blocks)
            ),
        )
        for lane in range(n_lanes)
    ]


def count_held_out_rows(segment: Segment, fraction: float) -> int:
    """Return how many rows of a segment are held out for validation; at least one row is not."""
    return min(round(len(segment) * fraction), max(len(segment) - 1, 0))


def count_pass_steps(lanes: list[LaneSpec], batch_size: int | None, fraction: float = 0.0) -> int:
    """Return the steps of a pass, equal for all lanes; small lanes have small batches."""
    if batch_size is None:
        return 1
    # All lanes make as many steps as the largest one needs, so that they stay in lock-step.
    largest = max(
        sum(len(s) - count_held_out_rows(s, fraction) for s in lane.segments) for lane in lanes
    )
    return max(1, -(-largest // batch_size))


class LaneRows:
    """Batches of one lane, as rows of blocks.

    Parameters
    ----------
    spec : LaneSpec
    n_steps : int
        Batches in a pass; batch s holds rows ``[s n / n_steps, (s + 1) n / n_steps)`` in the order
        of the pass.
    seed : int
    shuffle : bool
    fraction : float
        Share of rows held out for validation.
    group : int, optional
        Blocks whose rows are shuffled together, if the blocks are streamed; the held-out rows are
        then drawn again when needed instead of stored.
    in_turn : bool, default=False
        Whether each row is a step: then runs of rows are shorter, and batches keep the order in
        which rows were drawn.
    """

    def __init__(
        self,
        spec: LaneSpec,
        n_steps: int,
        seed: int,
        shuffle: bool,
        fraction: float = 0.0,
        group: int | None = None,
        in_turn: bool = False,
    ) -> None:
        self._n_steps = n_steps
        #: Whether a batch has all rows, in their stored order.
        self._is_full = n_steps == 1
        self._seed = seed
        self._shuffle = shuffle
        self._size = group or SHUFFLED_BLOCKS
        self.segments = spec.segments
        self._n_held_out = [count_held_out_rows(segment, fraction) for segment in spec.segments]
        #: Held-out rows, and training rows, of segments that were already split.
        self._splits: dict[int, tuple[NDArray[np.intp], NDArray[np.intp]]] = {}
        self._remember = group is None
        self.n_rows = sum(map(len, spec.segments)) - sum(self._n_held_out)
        self._in_turn = in_turn
        # Rows per run: a batch has `RUNS_PER_BATCH` runs if it is large enough, else single rows.
        self._run = max(1, self.n_rows // n_steps // RUNS_PER_BATCH)
        if in_turn:
            self._run = min(max(1, self.n_rows // _MIN_RUNS_IN_TURN), _MAX_RUN_IN_TURN)

    @property
    def n_batches(self) -> int:
        """Return the number of batches per pass."""
        return self._n_steps

    @property
    def block_numbers(self) -> list[int]:
        """Return the numbers of all blocks, including empty ones."""
        return [segment.block for segment in self.segments]

    def _split(self, i: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the held-out rows and the training rows of segment i."""
        if i in self._splits:
            return self._splits[i]
        segment, count = self.segments[i], self._n_held_out[i]
        # No training pass has number 0: its random stream draws the held-out rows, once for all
        # passes.
        order = self._random(0, segment).permutation(len(segment)) + segment.start
        split = np.sort(order[:count]), np.sort(order[count:])
        if self._remember:
            self._splits[i] = split
        return split

    @property
    def held_out(self) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Yield each block that has validation rows, with these rows."""
        for i, segment in enumerate(self.segments):
            if self._n_held_out[i]:
                yield segment.block, self._split(i)[0]

    @property
    def training(self) -> Iterator[tuple[int, Any]]:
        """Yield each block that has training rows, with these rows, in stored order."""
        for i, segment in enumerate(self.segments):
            if len(segment):
                segment_rows = slice(segment.start, segment.stop)
                yield segment.block, self._split(i)[1] if self._n_held_out[i] else segment_rows

    def _random(self, pass_: int, *segments: Segment) -> np.random.Generator:
        """Return the random generator of a pass over segments; it is the same on every worker."""
        # The stream depends only on (seed, pass, block, first row), not on the worker.
        key = [self._seed, pass_]
        for segment in segments:
            key += [segment.seed_block, segment.start]
        return np.random.default_rng(key)

    def _visit(self, pass_: int) -> list[list[int]]:
        """Return the segments in the order of a pass, in groups that are shuffled together."""
        segment_order = [i for i, segment in enumerate(self.segments) if len(segment)]
        if self._is_full:
            # A full batch needs no random order: views of the blocks, in sequence, are enough.
            return [[i] for i in segment_order]
        # With only one group, the order of its blocks does not matter: their rows are shuffled
        # together.
        if self._shuffle and len(segment_order) > self._size:
            first = self.segments[segment_order[0]]
            segment_order = [
                segment_order[i] for i in self._random(pass_, first).permutation(len(segment_order))
            ]
        return [segment_order[i : i + self._size] for i in range(0, len(segment_order), self._size)]

    def blocks(self, pass_: int) -> list[list[int]]:
        """Return the blocks of a pass in order, in groups that are needed at the same time."""
        return [[self.segments[i].block for i in group] for group in self._visit(pass_)]

    def _yield_segments(self, groups: list[list[int]]) -> Iterator[DrawnRows]:
        """Yield each segment as a whole, in stored order."""
        for (i,) in groups:
            segment = self.segments[i]
            segment_rows = slice(segment.start, segment.stop)
            yield segment.block, self._split(i)[1] if self._n_held_out[i] else segment_rows

    def batches(self, pass_: int, start: int = 0) -> Iterator[list[DrawnRows]]:
        """Yield the batches of a pass (from 1), from step `start` on: lists of (block, rows)."""
        groups = self._visit(pass_)
        if self._is_full:
            if start == 0:
                yield list(self._yield_segments(groups))
            return
        # Batch s holds rows cuts[s] to cuts[s + 1] in the order of the pass: sizes differ by at
        # most one row.
        cuts = ((np.arange(self._n_steps + 1) * self.n_rows) // self._n_steps).tolist()
        n_visited = 0
        step = 0
        open_batch: list[DrawnRows] = []
        for group in groups:
            size, drawn_group = self._group(pass_, group)
            take: Callable[[int, int], Sequence[DrawnRows]] = (
                drawn_group.in_turn if self._in_turn else drawn_group
            )
            # Batches that end in this group; the first may have begun in an earlier group.
            while step < self._n_steps and cuts[step + 1] <= n_visited + size:
                low = max(cuts[step] - n_visited, 0)
                if step >= start:
                    yield [*open_batch, *take(low, cuts[step + 1] - n_visited)]
                open_batch = []
                step += 1
            # The remaining rows of the group begin a batch that later groups complete.
            if step < self._n_steps and cuts[step] < n_visited + size:
                open_batch = [*open_batch, *take(max(cuts[step] - n_visited, 0), size)]
            n_visited += size
        for _ in range(max(step, start), self._n_steps):
            yield []

    def _group(self, pass_: int, group: list[int]) -> tuple[int, _GroupOrder]:
        """Return the number of training rows of a group of segments, and their shuffled order."""
        segments = [self.segments[i] for i in group]
        training_rows = [self._split(i)[1] if self._n_held_out[i] else None for i in group]
        sizes = [len(self.segments[i]) - self._n_held_out[i] for i in group]
        order: NDArray[np.intp] | None = None
        if self._shuffle:
            order = self._random(pass_, *segments).permutation(sum(sizes) // self._run)
        return sum(sizes), _GroupOrder(
            list(zip(segments, training_rows, strict=True)), sizes, order, self._run
        )


@dataclass(frozen=True, slots=True)
class ClientSteps:
    """Steps of a drawn client in a round.

    Parameters
    ----------
    n_batches : int
        Batches that its rows are split into, in each of its local passes.
    n_steps : int
        Steps that it makes; if there are more steps than batches, it repeats its rows.
    """

    n_batches: int
    n_steps: int

    @property
    def n_passes(self) -> int:
        """Return the number of local passes that the steps begin."""
        return -(-self.n_steps // self.n_batches)


class ClientRows(LaneRows):
    """Batches of a client: each pass of the fit (a round) has several local passes.

    Parameters
    ----------
    spec : LaneSpec
    steps : ClientSteps
    seed, shuffle, fraction, group
        As in `LaneRows`.
    alone : bool
        Whether a round is one step, on all rows in stored order.
    """

    def __init__(
        self,
        spec: LaneSpec,
        steps: ClientSteps,
        seed: int,
        shuffle: bool,
        fraction: float = 0.0,
        group: int | None = None,
        alone: bool = False,
    ) -> None:
        super().__init__(spec, steps.n_batches, seed, shuffle, fraction, group)
        self._steps = steps
        self._is_full = alone

    def _own_passes(self, pass_: int) -> range:
        """Return the numbers of the client's local passes in a pass of the fit."""
        n = self._steps.n_passes
        return range((pass_ - 1) * n + 1, pass_ * n + 1)

    def blocks(self, pass_: int) -> list[list[int]]:
        return [
            group
            for lane_pass in self._own_passes(pass_)
            for group in super(ClientRows, self).blocks(lane_pass)
        ]

    def batches(self, pass_: int, start: int = 0) -> Iterator[list[DrawnRows]]:
        drawn = itertools.chain.from_iterable(map(super().batches, self._own_passes(pass_)))
        return itertools.islice(drawn, start, self._steps.n_steps)


#: Minimum number of rows drawn together (Poisson sampling): a call of NumPy costs as much as some
#: hundred rows.
_MIN_DRAWN_ROWS = 1 << 10


class PoissonRows(LaneRows):
    """Batches of one lane that contain each row with equal probability, independently.

    The size of a batch varies; that of a batch over all lanes is binomial. Each step draws a new
    batch: a row may be in several batches of a pass, or in none.

    Parameters
    ----------
    spec : LaneSpec
    n_steps : int
        Batches in a pass; each contains a row with probability ``1 / n_steps``.
    seed : int
        Any integer.
    """

    def __init__(self, spec: LaneSpec, n_steps: int, seed: int) -> None:
        super().__init__(spec, n_steps, seed, shuffle=False)

    def batches(self, pass_: int, start: int = 0) -> Iterator[list[DrawnRows]]:
        """Yield the batches of a pass (from 1), from step `start` on: lists of (block, rows)."""
        if self._n_steps == 1 or not self.n_rows:
            yield from super().batches(pass_, start)
            return
        members = [segment for segment in self.segments if len(segment)]
        edges = np.cumsum([0, *map(len, members)])
        for step, positions in enumerate(self._draw_positions(pass_, members)):
            if step < start:
                continue
            batch: list[DrawnRows] = [(members[0].block, positions + members[0].start)]
            if len(members) > 1:
                cuts = np.searchsorted(positions, edges)
                batch = [
                    (segment.block, positions[a:b] - edge + segment.start)
                    for segment, edge, a, b in zip(members, edges, cuts, cuts[1:], strict=False)
                    if a < b
                ]
            # An empty batch still is a step: it adds only noise.
            yield batch or [(members[0].block, np.empty(0, np.intp))]

    def _draw_positions(self, pass_: int, members: list[Segment]) -> Iterator[NDArray[np.intp]]:
        """Yield, for each batch of a pass, the sorted positions of its rows in the lane."""
        # The steps of a pass form one sequence of independent trials, one per row and step. The
        # gaps between successes are geometric, so the cost is proportional to the rows drawn.
        random, n_rows = self._random(pass_, *members), self.n_rows
        at_once = max(_MIN_DRAWN_ROWS, min(_POSITIONS_AHEAD, n_rows))
        # A geometric variable is an exponential one, rounded down: NumPy's own geometric draws take
        # four times as long.
        scale = -1 / math.log1p(-1 / self._n_steps)
        step, last_trial, pending = 0, -1, np.empty(0, np.intp)
        while step < self._n_steps:
            gaps = random.standard_exponential(at_once)
            gaps *= scale
            drawn = gaps.astype(np.intp)
            drawn += 1
            drawn[0] += last_trial
            drawn = np.cumsum(drawn, out=drawn)
            last_trial = int(drawn[-1])
            # Steps whose rows have all been drawn; the remaining draws belong to the next step.
            step_stop = min(last_trial // n_rows, self._n_steps)
            pending = np.concatenate([pending, drawn])
            if step_stop == step:
                continue
            firsts = np.arange(step, step_stop + 1) * n_rows
            cuts = np.searchsorted(pending, firsts[1:]).tolist()
            for first, a, b in zip(firsts.tolist(), [0, *cuts], cuts, strict=False):
                yield pending[a:b] - first
            step, pending = step_stop, pending[cuts[-1] :]


class _GroupOrder:
    """Order in which a pass reads the rows of a group of segments, as rows of blocks.

    Training rows have positions, numbered across the segments. Whole runs of `run` positions are
    permuted, so that the permutation is `run` times smaller than the rows; the positions that do
    not fill a run come last.
    """

    def __init__(
        self,
        members: list[tuple[Segment, NDArray[np.intp] | None]],
        sizes: list[int],
        order: NDArray[np.intp] | None,
        run: int,
    ) -> None:
        self._members = members
        self._offsets = np.concatenate([[0], np.cumsum(sizes)])
        self._order = order
        self._run = run
        # In a single segment without held-out rows, positions convert to rows directly.
        is_whole_block = len(members) == 1 and members[0][1] is None
        self._first = members[0][0].start if is_whole_block else 0
        self._alone = is_whole_block
        self._ahead: NDArray[np.intp] = np.empty(0, np.intp)
        self._ahead_from = 0
        self._blocks_ahead: NDArray[np.intp] = np.empty(0, np.intp)

    def __call__(self, low: int, high: int) -> list[tuple[int, BlockRows]]:
        if low >= high:
            return []
        if self._run >= _LONG_RUN_ROWS:
            return self._locate_runs(low, high)
        positions = self._next(low, high)
        if self._alone:
            return [(self._members[0][0].block, positions)]
        if len(self._members) == 1:
            return [self._rows(0, positions)]
        # The rows of a batch are summed, so their order is free: sorted, they are read in memory
        # order.
        positions.sort()
        # Positions are numbered across the blocks of the group: each block has a range of them.
        edges = np.searchsorted(positions, self._offsets)
        return [
            self._rows(m, positions[a:b] - self._offsets[m])
            for m, (a, b) in enumerate(itertools.pairwise(edges))
            if a < b
        ]

    def in_turn(self, low: int, high: int) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Return positions low to high in drawn order: the block of each row, and the row."""
        ahead_from = self._ahead_from
        if not ahead_from <= low <= high <= ahead_from + len(self._blocks_ahead):
            stop = min(max(high, low + _POSITIONS_AHEAD), int(self._offsets[-1]))
            self._ahead_from = ahead_from = low
            self._blocks_ahead, self._ahead = self._locate_positions(self._positions(low, stop))
        ahead = slice(low - ahead_from, high - ahead_from)
        return [(self._blocks_ahead[ahead], self._ahead[ahead])] if high > low else []

    def _locate_positions(
        self, positions: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the block and the row of each position."""
        # The block of a position is the last one that begins at or before it.
        member = np.searchsorted(self._offsets, positions, "right") - 1
        segments = [segment for segment, _ in self._members]
        first = np.array([segment.start for segment in segments]) - self._offsets[:-1]
        rows = positions + first[member]
        for m, (segment, training_rows) in enumerate(self._members):
            if training_rows is not None:
                in_segment = member == m
                rows[in_segment] = training_rows[rows[in_segment] - segment.start]
        return np.array([segment.block for segment in segments])[member], rows

    def _locate_runs(self, low: int, high: int) -> list[tuple[int, BlockRows]]:
        """Return positions as sorted runs; a run that crosses a block boundary is split there."""
        starts, stops = self._runs(low, high)
        if len(self._members) == 1:
            return [self._rows(0, RowRuns(starts, stops - starts))]
        # Sorted, the runs of a block are read in memory order.
        order = np.argsort(starts)
        starts, stops = starts[order], stops[order]
        block_runs = []
        for m, (a, b) in enumerate(itertools.pairwise(self._offsets.tolist())):
            overlapping = slice(np.searchsorted(stops, a, "right"), np.searchsorted(starts, b))
            first, stop = np.maximum(starts[overlapping], a), np.minimum(stops[overlapping], b)
            if len(first):
                block_runs.append(self._rows(m, RowRuns(first - a, stop - first)))
        return block_runs

    def _next(self, low: int, high: int) -> NDArray[np.intp]:
        """Return positions low to high of the order, in an array that the caller may change."""
        ahead_from = self._ahead_from
        if not ahead_from <= low <= high <= ahead_from + len(self._ahead):
            stop = min(max(high, low + _POSITIONS_AHEAD), int(self._offsets[-1]))
            self._ahead_from, self._ahead = low, self._positions(low, stop) + self._first
            ahead_from = low
        return self._ahead[low - ahead_from : high - ahead_from]

    def _positions(self, low: int, high: int) -> NDArray[np.intp]:
        """Return positions low to high of the order, as single positions."""
        if self._order is None:
            return np.arange(low, high)
        run_length, n_in_runs = self._run, len(self._order) * self._run
        stop = min(high, n_in_runs)
        # Runs that overlap the positions low to stop; the first and the last may be cut.
        first, run_stop = low // run_length, -(-stop // run_length)
        runs = self._order[first:run_stop, None] * run_length + np.arange(run_length)
        positions = runs.reshape(-1)[low - first * run_length :][: max(stop - low, 0)]
        return (
            positions
            if high <= n_in_runs
            else np.append(positions, np.arange(max(low, n_in_runs), high))
        )

    def _runs(self, low: int, high: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return positions low to high of the order, as the starts and stops of runs."""
        if self._order is None:
            return np.array([low]), np.array([high])
        run_length, n_in_runs = self._run, len(self._order) * self._run
        first, run_stop = low // run_length, -(-min(high, n_in_runs) // run_length)
        starts = self._order[first:run_stop] * run_length
        stops = starts + run_length
        if len(starts):
            starts[0] += low - first * run_length
            stops[-1] -= max(run_stop * run_length - high, 0)
        if high > n_in_runs:
            starts, stops = np.append(starts, max(low, n_in_runs)), np.append(stops, high)
        return starts, stops

    def _rows(self, member: int, positions: NDArray[np.intp] | RowRuns) -> tuple[int, BlockRows]:
        """Return the block and row numbers of positions among a segment's training rows."""
        segment, training_rows = self._members[member]
        if training_rows is not None:
            return segment.block, training_rows[
                positions.row_numbers if isinstance(positions, RowRuns) else positions
            ]
        if isinstance(positions, RowRuns):
            return segment.block, RowRuns(positions.starts + segment.start, positions.counts)
        return segment.block, positions + segment.start
