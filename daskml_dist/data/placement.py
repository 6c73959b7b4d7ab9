"""Placement: the rows of each lane, and the worker that runs it.

Two aims are at odds. A pass takes as long as the lane of most rows, so lanes should be even; and a
block that goes to another worker is sent over the network. By default no block moves (a lane for
each thread of each worker with rows); with a given number of lanes they are even, their bounds move
to block bounds nearby, and each goes to the worker that holds most of its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from daskml_dist.data.batches import LaneSpec, Segment
from daskml_dist.data.blocks import BlockInfo

#: A lane's boundary moves to a block's boundary that is nearer than this share of a lane: lanes are
#: then at most half as long again as even ones, and fewer blocks are needed by two workers.
_SNAP_SHARE = 0.25


@dataclass(frozen=True)
class Placement:
    """Lanes and the worker of each.

    Parameters
    ----------
    lanes : list of LaneSpec
        Lane i has number i.
    workers : list of str
        Address of the worker that runs lane i.
    """

    lanes: list[LaneSpec]
    workers: list[str]

    def by_worker(self) -> dict[str, list[LaneSpec]]:
        """Return the lanes of each worker, workers in the order of their first lane."""
        lanes: dict[str, list[LaneSpec]] = {}
        for lane, worker in zip(self.lanes, self.workers, strict=True):
            lanes.setdefault(worker, []).append(lane)
        return lanes


@dataclass(frozen=True)
class PlacementGain:
    """Gain of an even placement over another, and what it would move.

    Parameters
    ----------
    skew : float
        Rows of the fullest lane over those of the fullest lane of the even placement.
    rows : int
        By how many rows the fullest lane is fuller.
    nbytes : int
        Bytes of blocks that workers would get.
    """

    skew: float
    rows: int
    nbytes: int

    @classmethod
    def between(
        cls,
        uneven: Placement,
        even: Placement,
        holders: Mapping[int, Sequence[str]],
        infos: Sequence[BlockInfo],
    ) -> PlacementGain:
        """Compare two placements of the same blocks."""
        # A pass takes as long as the fullest lane's.
        full, fair = (max(lane.n_rows for lane in p.lanes) for p in (uneven, even))
        sizes = {info.index: info.nbytes for info in infos}
        wanted = {
            (segment.block, worker)
            for lane, worker in zip(even.lanes, even.workers, strict=True)
            for segment in lane.segments
        }
        moved = sum(sizes[block] for block, worker in wanted if worker not in holders[block])
        return cls(full / max(fair, 1), full - fair, moved)

    def pays(self, passes: int, seconds_a_row: float, bandwidth: float) -> bool:
        """Return whether the skew costs more time than the move, over a number of passes."""
        # Seconds that the skew costs over all passes, against those that the blocks are on their
        # way.
        return passes * self.rows * seconds_a_row > self.nbytes / bandwidth


def split_rows(
    blocks: Sequence[int], rows: Mapping[int, int], n_lanes: int, *, snap: float = 0.0
) -> list[tuple[Segment, ...]]:
    """Split blocks, one after the other, into `n_lanes` nearly equal runs of rows."""
    # Rows are numbered through all blocks: block i holds edges[i] to edges[i + 1].
    edges = np.concatenate([[0], np.cumsum([rows[b] for b in blocks])])
    total = int(edges[-1])
    # Even boundaries, which move to a block's boundary where one is near enough.
    cuts = (np.arange(n_lanes + 1) * total) // n_lanes
    if snap and total:
        after = np.searchsorted(edges, cuts).clip(1, len(edges) - 1)
        below, above = edges[after - 1], edges[after]
        nearest = np.where(cuts - below <= above - cuts, below, above)
        close = np.abs(nearest - cuts) <= snap * total / n_lanes
        cuts = np.where(close, nearest, cuts)
    # First block of which each lane has a row, and the first after its last one.
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
    """Return `n_lanes` lanes of nearly equal numbers of rows, or one a row where these are
    fewer.
    """
    # A lane without rows would change nothing, and cost what any lane costs.
    n_lanes = min(n_lanes, max(1, sum(rows.values())))
    segments = split_rows(sorted(rows), rows, n_lanes, snap=snap)
    return [LaneSpec(i, s) for i, s in enumerate(segments)]


def place_lanes(
    rows: Mapping[int, int],
    holders: Mapping[int, Sequence[str]],
    threads: Mapping[str, int],
    n_lanes: int | None,
) -> Placement:
    """Choose lanes and workers."""
    if n_lanes is None:
        return _place_where_rows_lie(rows, holders, threads)
    lanes = make_even_lanes(rows, n_lanes, snap=_SNAP_SHARE)
    return Placement(lanes, _choose_workers(lanes, holders, threads))


def make_column_lanes(rows: Mapping[int, int], n_parts: int) -> list[LaneSpec]:
    """Return lanes of all rows, each of one part of the columns."""
    n_blocks = len(rows) // n_parts
    return [
        LaneSpec(
            part,
            tuple(
                Segment(block, 0, rows[block], drawn_as=at)
                for at in range(n_blocks)
                if rows[block := part * n_blocks + at]
            ),
        )
        for part in range(n_parts)
    ]


def place_column_lanes(
    rows: Mapping[int, int],
    holders: Mapping[int, Sequence[str]],
    threads: Mapping[str, int],
    n_parts: int,
) -> Placement:
    """Place lanes of columns, evenly, where most of their blocks are; as :func:`place_lanes`."""
    lanes = make_column_lanes(rows, n_parts)
    return Placement(lanes, _choose_workers(lanes, holders, threads))


def make_whole_lanes(rows: Mapping[int, int], n_lanes: int) -> list[LaneSpec]:
    """Return lanes of whole blocks, each of equally many blocks that follow each other."""
    each = len(rows) // n_lanes
    return [
        LaneSpec(lane, tuple(Segment(b, 0, rows[b]) for b in range(lane * each, (lane + 1) * each)))
        for lane in range(n_lanes)
    ]


def place_whole_blocks(
    rows: Mapping[int, int],
    holders: Mapping[int, Sequence[str]],
    threads: Mapping[str, int],
    n_lanes: int,
) -> Placement:
    """Place lanes of whole blocks, evenly, where most of their blocks are; as `place_lanes`."""
    lanes = make_whole_lanes(rows, n_lanes)
    return Placement(lanes, _choose_workers(lanes, holders, threads))


def reassign_lanes(
    lanes: Sequence[LaneSpec],
    current: Mapping[int, str],
    holders: Mapping[int, Sequence[str]],
    capacity: Mapping[str, float],
    *,
    even: bool = False,
) -> dict[int, str]:
    """Give lanes that lost their worker to others; move as few as possible."""
    loads = _WorkerLoads(current, capacity)

    def local(lane: LaneSpec, worker: str) -> int:
        return sum(len(s) for s in lane.segments if worker in holders.get(s.block, ()))

    for lane in lanes:
        if lane.lane not in loads.given:
            # The emptiest worker for its capacity; of equally empty ones that with most of the
            # rows.
            best = min(sorted(capacity), key=lambda w: (loads.fill(w), -local(lane, w)))
            loads.give(lane.lane, best)
    # Each move takes a lane from the fullest worker, so that it ends.
    while even and (move := loads.evening()) is not None:
        full, free = move
        moved = min(
            (lane for lane in lanes if loads.given[lane.lane] == full),
            key=lambda lane: (-local(lane, free), -lane.lane),
        )
        loads.give(moved.lane, free)
    return loads.given


class _WorkerLoads:
    """Lanes of each worker, beside its capacity."""

    def __init__(self, current: Mapping[int, str], capacity: Mapping[str, float]) -> None:
        # Lanes of workers that are lost have no worker here, and are given away first.
        self.given = {lane: worker for lane, worker in current.items() if worker in capacity}
        self._capacity = capacity
        self._lanes = Counter(self.given.values())

    def fill(self, worker: str, more: int = 1) -> float:
        """Return the share of a worker's capacity that its lanes, and `more` of them, take."""
        return (self._lanes[worker] + more) / self._capacity[worker]

    def give(self, lane: int, worker: str) -> None:
        """Give a lane to a worker."""
        if lane in self.given:
            self._lanes[self.given[lane]] -= 1
        self.given[lane] = worker
        self._lanes[worker] += 1

    def evening(self) -> tuple[str, str] | None:
        """Return workers between which moving a lane evens the load; None where none do."""
        # Sorted by address first, so that ties are broken alike in every run.
        full = max(sorted(self._capacity), key=lambda worker: self.fill(worker, 0))
        free = min(sorted(self._capacity), key=self.fill)
        return (full, free) if self.fill(free) < self.fill(full, 0) else None


def _place_where_rows_lie(
    rows: Mapping[int, int], holders: Mapping[int, Sequence[str]], threads: Mapping[str, int]
) -> Placement:
    """Return a placement that moves no block: a lane for each thread of each worker with rows."""
    held: dict[str, list[int]] = {}
    load = dict.fromkeys(threads, 0)
    for block in sorted(rows):
        # A block that no worker holds at the moment is made, or fetched, by the least loaded one.
        worker = min([w for w in holders[block] if w in load] or load, key=lambda w: (load[w], w))
        held.setdefault(worker, []).append(block)
        load[worker] += rows[block]
    segments: list[tuple[Segment, ...]] = []
    workers: list[str] = []
    # In the order of the first blocks, so that lanes are numbered alike in each run.
    for worker in sorted(held, key=lambda w: held[w][0]):
        parts = [s for s in split_rows(held[worker], rows, threads[worker]) if s]
        segments += parts
        workers += [worker] * len(parts)
    return Placement([LaneSpec(i, s) for i, s in enumerate(segments)], workers)


def _choose_workers(
    lanes: list[LaneSpec], holders: Mapping[int, Sequence[str]], threads: Mapping[str, int]
) -> list[str]:
    """Give each lane to the worker that holds most of it, evenly over the workers."""
    names = sorted(threads)[: len(lanes)] if len(lanes) < len(threads) else sorted(threads)
    if len(lanes) < len(threads):
        holding = {w for block in holders.values() for w in block}
        names = sorted(sorted(threads), key=lambda w: w not in holding)[: len(lanes)]
    # Every worker runs as many lanes as any other, or one more.
    room = dict.fromkeys(names, len(lanes) // len(names))
    for name in names[: len(lanes) % len(names)]:
        room[name] += 1
    workers = []
    for lane in lanes:
        local = dict.fromkeys(names, 0)
        for segment in lane.segments:
            for worker in holders[segment.block]:
                if worker in local:
                    local[worker] += len(segment)
        # Greedily in the order of lanes: the worker that holds most of the lane's rows.
        best = max((w for w in names if room[w]), key=lambda w: (local[w], room[w]))
        room[best] -= 1
        workers.append(best)
    return workers
