"""Lanes and the workers that run them: at the start, in later generations, and a log of them.

At the start two goals conflict. A pass takes as long as the lane with the most rows, so lanes
should be even; and a block that moves to another worker is sent over the network. By default no
block moves (one lane per thread of each worker with rows). With a given number of lanes they are
even, their bounds are shifted to nearby block bounds, and each goes to the worker that holds most
of its rows. `LaneAssignments` moves the lanes of lost workers to others; `AssignmentLog` records
which workers ran them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from daskml_dist.data.batches import (
    LaneSpec,
    Segment,
    make_even_lanes,
    split_rows,
)
from daskml_dist.data.blocks import BlockInfo
from daskml_dist.training.client.cluster_rows import ClusterRows
from daskml_dist.training.client.membership import Membership
from daskml_dist.training.client.run_actors import TrainerTask, WorkerUnreachableError
from daskml_dist.training.spec import FitSpec, count_training_rows

#: A lane's bound is shifted to a block's bound that is nearer than this share of a lane: lanes are
#: then at most 1.5 times as long as even ones, and fewer blocks are needed by two workers.
_SNAP_SHARE = 0.25
#: Number of threads that counts for a worker that should get no more lanes: above zero, so that it
#: keeps its own lanes.
_NO_ROOM = 1e-6


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
        """Return the lanes of each worker, with workers ordered by their first lane."""
        lanes: dict[str, list[LaneSpec]] = {}
        for lane, worker in zip(self.lanes, self.workers, strict=True):
            lanes.setdefault(worker, []).append(lane)
        return lanes


@dataclass(frozen=True)
class PlacementGain:
    """Gain of an even placement over another, and the bytes that it would move.

    Parameters
    ----------
    skew : float
        Rows of the fullest lane, divided by those of the fullest lane of the even placement.
    rows : int
        Number of rows by which the fullest lane is larger.
    nbytes : int
        Bytes of blocks that would be moved to other workers.
    """

    skew: float
    rows: int
    nbytes: int

    @classmethod
    def compare(
        cls,
        uneven_placement: Placement,
        even_placement: Placement,
        holders: Mapping[int, Sequence[str]],
        infos: Sequence[BlockInfo],
    ) -> PlacementGain:
        """Compare two placements of the same blocks."""
        # A pass takes as long as its fullest lane.
        largest_uneven, largest_even = (
            max(lane.n_rows for lane in p.lanes) for p in (uneven_placement, even_placement)
        )
        sizes = {info.index: info.nbytes for info in infos}
        wanted_places = {
            (segment.block, worker)
            for lane, worker in zip(even_placement.lanes, even_placement.workers, strict=True)
            for segment in lane.segments
        }
        moved_bytes = sum(
            sizes[block] for block, worker in wanted_places if worker not in holders[block]
        )
        return cls(
            largest_uneven / max(largest_even, 1), largest_uneven - largest_even, moved_bytes
        )

    def is_worthwhile(self, passes: int, seconds_a_row: float, bandwidth: float) -> bool:
        """Return whether the skew costs more time than the move, over a number of passes."""
        # Seconds that the skew costs over all passes, compared to the seconds of the transfer.
        return passes * self.rows * seconds_a_row > self.nbytes / bandwidth


def place_lanes(
    rows: Mapping[int, int],
    holders: Mapping[int, Sequence[str]],
    threads: Mapping[str, int],
    n_lanes: int | None,
) -> Placement:
    """Cut rows into lanes and choose their workers; without `n_lanes` no block moves."""
    if n_lanes is None:
        return _place_where_rows_lie(rows, holders, threads)
    lanes = make_even_lanes(rows, n_lanes, snap=_SNAP_SHARE)
    return place_evenly(lanes, holders, threads)


def reassign_lanes(
    lanes: Sequence[LaneSpec],
    current: Mapping[int, str],
    holders: Mapping[int, Sequence[str]],
    capacity: Mapping[str, float],
    *,
    rebalance: bool = False,
) -> dict[int, str]:
    """Move lanes of lost workers to others; move as few lanes as possible."""
    loads = _WorkerLoads(current, capacity)

    def local(lane: LaneSpec, worker: str) -> int:
        return sum(len(s) for s in lane.segments if worker in holders.get(s.block, ()))

    for lane in lanes:
        if lane.lane not in loads.worker_of_lane:
            # The least loaded worker for its capacity; among equally loaded ones, the one with most
            # of the lane's rows.
            best = min(sorted(capacity), key=lambda w: (loads.load_share(w), -local(lane, w)))
            loads.assign_lane(lane.lane, best)
    # Each move takes a lane from the fullest worker, so the loop ends.
    while rebalance and (move := loads.find_evening_move()) is not None:
        busiest, idlest = move
        lane_to_move = min(
            (lane for lane in lanes if loads.worker_of_lane[lane.lane] == busiest),
            key=lambda lane: (-local(lane, idlest), -lane.lane),
        )
        loads.assign_lane(lane_to_move.lane, idlest)
    return loads.worker_of_lane


class _WorkerLoads:
    """Number of lanes of each worker, compared to its capacity."""

    def __init__(self, current: Mapping[int, str], capacity: Mapping[str, float]) -> None:
        # Lanes of lost workers are not included here, and are assigned first.
        self.worker_of_lane = {
            lane: worker for lane, worker in current.items() if worker in capacity
        }
        self._capacity = capacity
        self._lanes = Counter(self.worker_of_lane.values())

    def load_share(self, worker: str, n_more: int = 1) -> float:
        """Return the share of a worker's capacity that its lanes plus `n_more` lanes take."""
        return (self._lanes[worker] + n_more) / self._capacity[worker]

    def assign_lane(self, lane: int, worker: str) -> None:
        """Give a lane to a worker."""
        if lane in self.worker_of_lane:
            self._lanes[self.worker_of_lane[lane]] -= 1
        self.worker_of_lane[lane] = worker
        self._lanes[worker] += 1

    def find_evening_move(self) -> tuple[str, str] | None:
        """Return two workers between which moving a lane evens out the load, or None."""
        # Sorted by address first, so that ties are broken in the same way in every run.
        busiest = max(sorted(self._capacity), key=lambda worker: self.load_share(worker, 0))
        idlest = min(sorted(self._capacity), key=self.load_share)
        return (busiest, idlest) if self.load_share(idlest) < self.load_share(busiest, 0) else None


def _place_where_rows_lie(
    rows: Mapping[int, int], holders: Mapping[int, Sequence[str]], threads: Mapping[str, int]
) -> Placement:
    """Return a placement that moves no block: one lane per thread of each worker with rows."""
    blocks_by_worker: dict[str, list[int]] = {}
    n_rows = dict.fromkeys(threads, 0)
    for block in sorted(rows):
        # A block that no worker holds is made, or fetched, by the least loaded worker.
        worker = min(
            [w for w in holders[block] if w in n_rows] or n_rows, key=lambda w: (n_rows[w], w)
        )
        blocks_by_worker.setdefault(worker, []).append(block)
        n_rows[worker] += rows[block]
    segments: list[tuple[Segment, ...]] = []
    workers: list[str] = []
    # Ordered by first block, so that lanes have the same numbers in each run.
    for worker in sorted(blocks_by_worker, key=lambda w: blocks_by_worker[w][0]):
        parts = [s for s in split_rows(blocks_by_worker[worker], rows, threads[worker]) if s]
        segments += parts
        workers += [worker] * len(parts)
    return Placement([LaneSpec(i, s) for i, s in enumerate(segments)], workers)


def place_evenly(
    lanes: list[LaneSpec], holders: Mapping[int, Sequence[str]], threads: Mapping[str, int]
) -> Placement:
    """Assign each lane to the worker that holds most of it, evenly over the workers."""
    names = sorted(threads)[: len(lanes)] if len(lanes) < len(threads) else sorted(threads)
    if len(lanes) < len(threads):
        holding = {w for block in holders.values() for w in block}
        names = sorted(sorted(threads), key=lambda w: w not in holding)[: len(lanes)]
    # Numbers of lanes differ by at most one between workers.
    free_places = dict.fromkeys(names, len(lanes) // len(names))
    for name in names[: len(lanes) % len(names)]:
        free_places[name] += 1
    workers = []
    for lane in lanes:
        local = dict.fromkeys(names, 0)
        for segment in lane.segments:
            for worker in holders[segment.block]:
                if worker in local:
                    local[worker] += len(segment)
        # Greedy, in lane order: the worker that holds most of the lane's rows.
        best = max((w for w in names if free_places[w]), key=lambda w: (local[w], free_places[w]))
        free_places[best] -= 1
        workers.append(best)
    return Placement(lanes, workers)


@dataclass
class TrainerLanes:
    """Lanes, and the trainer that runs them; None for a new one."""

    address: str
    lanes: list[LaneSpec]
    trainer: TrainerTask | None = None


class LaneAssignments:
    """Lanes of a run, their rows, and the workers that run them.

    Parameters
    ----------
    fit : FitSpec
    placement : Placement
        Placement of generation 0.
    rows : ClusterRows
    membership : Membership
    """

    def __init__(
        self, fit: FitSpec, placement: Placement, rows: ClusterRows, membership: Membership
    ) -> None:
        self.lanes = placement.lanes
        #: Rows of each lane.
        self.lane_rows = fit.rows.lane_rows
        #: Worker of each lane.
        self.workers = dict(enumerate(placement.workers))
        #: Speed of slow workers, as a share of the others' speed.
        self.speeds: dict[str, float] = {}
        #: Workers that existed when lanes were assigned, or that have joined since. Other workers
        #: have yet to import the modules that the fit needs, and the fit should not wait for that.
        self.dealt: set[str] = set()
        self._fit = fit
        self._rows = rows
        self._membership = membership

    @property
    def first_trainers(self) -> list[str]:
        """Return the workers that run lanes, in the order of their first lane."""
        return list(dict.fromkeys(self.workers[lane.lane] for lane in self.lanes))

    # -- rows ----------------------------------------------------------------------------------

    def have_rows_of(self, blocks: Container[int]) -> bool:
        """Return whether lanes have rows of any of these blocks."""
        return any(s.block in blocks for lane in self.lanes for s in lane.segments)

    def drop_blocks(self, blocks: Container[int]) -> int:
        """Remove blocks from all lanes; return the number of rows dropped."""
        # Blocks that are lost for good are removed from all lanes.
        rows_before = sum(lane.n_rows for lane in self.lanes)
        self.lanes = [
            replace(lane, segments=tuple(s for s in lane.segments if s.block not in blocks))
            for lane in self.lanes
        ]
        self.lane_rows = count_training_rows(self.lanes, self._fit.rows.validation_fraction)
        return rows_before - sum(lane.n_rows for lane in self.lanes)

    # -- workers -------------------------------------------------------------------------------

    def threads(self) -> dict[str, int]:
        """Return the threads of the workers that accept work."""
        threads = self._membership.ready
        if not threads:
            # The scheduler may have listed workers that were dead already.
            raise WorkerUnreachableError("of every lane", "all were lost at once")
        return threads

    def weighted_threads(self) -> dict[str, float]:
        """Return the threads of the workers that accept work, weighted by their speeds."""
        return {a: n * self.speeds.get(a, 1.0) for a, n in self.threads().items()}

    def would_even_out(self) -> bool:
        """Return whether an even distribution over the remaining workers would move lanes."""
        capacity = self._prefer_ready_workers(self.weighted_threads())
        return (
            reassign_lanes(self.lanes, self.workers, {}, capacity, rebalance=True) != self.workers
        )

    def _prefer_ready_workers(self, capacity: dict[str, float]) -> dict[str, float]:
        """Return the workers that have imported the fit's modules, or all if there are none."""
        ready_capacity = {a: n for a, n in capacity.items() if a in self.dealt}
        return ready_capacity if ready_capacity.keys() - self._membership.paused else capacity

    # -- lanes ---------------------------------------------------------------------------------

    def assign_lanes(self, trainers: list[TrainerTask], rebalance: bool) -> list[TrainerLanes]:
        """Return the lanes of each trainer: first of running trainers, then of new ones."""
        self._move_lanes(trainers, rebalance)
        lanes = {lane.lane: lane for lane in self.lanes}
        parts = []
        assigned: set[int] = set()
        for trainer in trainers:
            trainer_lanes = [
                lanes[n.lane] for n in trainer.lanes if self.workers[n.lane] == trainer.address
            ]
            parts.append(TrainerLanes(trainer.address, trainer_lanes, trainer))
            assigned.update(lane.lane for lane in trainer_lanes)
        # Lanes without a running trainer: one new trainer per worker.
        remaining: dict[str, list[LaneSpec]] = {}
        for lane in self.lanes:
            if lane.lane not in assigned:
                remaining.setdefault(self.workers[lane.lane], []).append(lane)
        if self._fit.work.call is not None or self._fit.work.keeps_lanes:
            # The new trainer takes all lanes of its worker. A function runs only once in a process;
            # and lanes at their own pace would get equal shares of the process per trainer,
            # although one trainer has fewer lanes.
            for part in parts:
                if part.address in remaining:
                    remaining[part.address] = sorted(
                        remaining[part.address] + part.lanes, key=lambda lane: lane.lane
                    )
                    part.lanes = []
        return parts + [
            TrainerLanes(address, trainer_lanes) for address, trainer_lanes in remaining.items()
        ]

    def _move_lanes(self, trainers: list[TrainerTask], rebalance: bool) -> None:
        """Assign lanes without a worker to other workers."""
        # A paused worker keeps its running lanes, and gets no more.
        paused = set(self._membership.paused).difference(self._membership.leaving)
        paused &= {trainer.address for trainer in trainers}
        capacity = self.weighted_threads() | dict.fromkeys(sorted(paused), _NO_ROOM)
        run_on = {lane.lane for trainer in trainers for lane in trainer.lanes}
        # Lanes that may stay on their workers.
        current_workers = {
            lane: worker
            for lane, worker in self.workers.items()
            if worker not in self._membership.paused or lane in run_on
        }
        if (
            rebalance
            or len(current_workers) < len(self.workers)
            or not set(current_workers.values()) <= capacity.keys()
        ):
            holders = self._rows.find_current_holders()
            ready_capacity = self._prefer_ready_workers(capacity)
            self.workers = reassign_lanes(
                self.lanes, current_workers, holders, ready_capacity, rebalance=rebalance
            )


class AssignmentLog:
    """Log of the workers of lanes over the parts of one fit."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._seatings: list[dict[str, Any]] = []
        self._end = 0.0

    def record_begin(self) -> None:
        """Record that a part of the fit begins; the first one starts the clock."""
        if self._since is None:
            self._since = time.monotonic()

    def record_assignment(self, generation: int, lanes: dict[int, str], seconds: float) -> None:
        """Record which worker runs each lane from now on, and how long the assignment took.

        Nothing is recorded for a part that begins with the same assignment as the last one.
        """
        workers = [address for _, address in sorted(lanes.items())]
        if generation == 0:
            seconds = 0.0
            if self._seatings and self._seatings[-1]["workers"] == workers:
                return
        facts = {"generation": generation, "at": self._seconds_since_begin(), "seconds": seconds}
        self._seatings.append({**facts, "workers": workers})

    def record_end(self) -> None:
        """Record that a part of the fit has ended."""
        self._end = self._seconds_since_begin()

    def _seconds_since_begin(self) -> float:
        """Return the seconds since the first part began."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    @property
    def history_facts(self) -> dict[str, Any]:
        """Return the facts for the history: ``seatings``, and the ``seconds`` of training."""
        if self._since is None:
            return {}
        return {"seatings": list(self._seatings), "seconds": self._end}
