"""Assignment of lanes to trainers from one generation to the next, and the log of who ran them."""

from __future__ import annotations

import time
from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Any

from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.placement import Placement, reassign_lanes
from daskml_dist.training.client.cluster_rows import ClusterRows
from daskml_dist.training.client.membership import Membership
from daskml_dist.training.client.run_actors import TrainerTask, WorkerUnreachableError
from daskml_dist.training.spec import FitSpec

#: Threads that a worker counts for that is to get no more lanes: more than none, so that it keeps
#: its own.
_NO_ROOM = 1e-6


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
        Of generation 0.
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
        #: Speed of slow workers, as a share of the others'.
        self.speeds: dict[str, float] = {}
        #: Workers that were there when lanes were dealt, or have joined since: others have yet to
        #: import what the fit needs, and nobody is to wait for that.
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
        """Return whether lanes have rows of some of these blocks."""
        return any(s.block in blocks for lane in self.lanes for s in lane.segments)

    def drop_blocks(self, blocks: Container[int]) -> int:
        """Take blocks from all lanes; return the number of rows dropped."""
        # Blocks that are lost for good leave all lanes.
        before = sum(lane.n_rows for lane in self.lanes)
        self.lanes = [
            replace(lane, segments=tuple(s for s in lane.segments if s.block not in blocks))
            for lane in self.lanes
        ]
        self.lane_rows = self._fit.rows.count_lane_rows(self.lanes)
        return before - sum(lane.n_rows for lane in self.lanes)

    # -- workers -------------------------------------------------------------------------------

    def threads(self) -> dict[str, int]:
        """Return the threads of the workers that can be given work."""
        threads = self._membership.ready
        if not threads:
            # The scheduler may have named workers that were dead already.
            raise WorkerUnreachableError("of every lane", "all were lost at once")
        return threads

    def weighted_threads(self) -> dict[str, float]:
        """Return the threads of these workers, weighted by their speeds."""
        return {a: n * self.speeds.get(a, 1.0) for a, n in self.threads().items()}

    def would_even_out(self) -> bool:
        """Return whether an even spread over the workers that stay would move lanes."""
        known = self._prefer_ready_workers(self.weighted_threads())
        return reassign_lanes(self.lanes, self.workers, {}, known, even=True) != self.workers

    def _prefer_ready_workers(self, capacity: dict[str, float]) -> dict[str, float]:
        """Return the workers that have imported what the fit needs, else all."""
        known = {a: n for a, n in capacity.items() if a in self.dealt}
        return known if known.keys() - self._membership.paused else capacity

    # -- lanes ---------------------------------------------------------------------------------

    def assign_lanes(self, trainers: list[TrainerTask], even: bool) -> list[TrainerLanes]:
        """Return the lanes of each trainer: of those that stay, then of new ones."""
        self._move_lanes(trainers, even)
        lanes = {lane.lane: lane for lane in self.lanes}
        parts = []
        seated: set[int] = set()
        for trainer in trainers:
            here = [lanes[n.lane] for n in trainer.lanes if self.workers[n.lane] == trainer.address]
            parts.append(TrainerLanes(trainer.address, here, trainer))
            seated.update(lane.lane for lane in here)
        # Lanes without a running trainer: one new trainer a worker.
        rest: dict[str, list[LaneSpec]] = {}
        for lane in self.lanes:
            if lane.lane not in seated:
                rest.setdefault(self.workers[lane.lane], []).append(lane)
        return parts + [TrainerLanes(address, here) for address, here in rest.items()]

    def _move_lanes(self, trainers: list[TrainerTask], even: bool) -> None:
        """Give lanes without a worker to others."""
        # One that is paused keeps what it runs, and is given no more.
        paused = set(self._membership.paused).difference(self._membership.leaving)
        paused &= {trainer.address for trainer in trainers}
        capacity = self.weighted_threads() | dict.fromkeys(sorted(paused), _NO_ROOM)
        run_on = {lane.lane for trainer in trainers for lane in trainer.lanes}
        # Lanes that may stay where they are.
        given = {
            lane: worker
            for lane, worker in self.workers.items()
            if worker not in self._membership.paused or lane in run_on
        }
        if even or len(given) < len(self.workers) or not set(given.values()) <= capacity.keys():
            holders, known = self._rows.find_current_holders(), self._prefer_ready_workers(capacity)
            self.workers = reassign_lanes(self.lanes, given, holders, known, even=even)


class AssignmentLog:
    """Log of the workers of lanes over the parts of one fit."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._seatings: list[dict[str, Any]] = []
        self._end = 0.0

    def begin(self) -> None:
        """Note that a part of the fit begins; the first one starts the clock."""
        if self._since is None:
            self._since = time.monotonic()

    def note(self, generation: int, lanes: dict[int, str], seconds: float) -> None:
        """Note who runs each lane from now on, and the seconds that assigning them took.

        Of a part that begins as the last one ended nothing is noted.
        """
        workers = [address for _, address in sorted(lanes.items())]
        if generation == 0:
            seconds = 0.0
            if self._seatings and self._seatings[-1]["workers"] == workers:
                return
        facts = {"generation": generation, "at": self._seconds_since_begin(), "seconds": seconds}
        self._seatings.append({**facts, "workers": workers})

    def end(self) -> None:
        """Note that a part of the fit ended."""
        self._end = self._seconds_since_begin()

    def _seconds_since_begin(self) -> float:
        """Return the seconds since the first part began."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    @property
    def facts(self) -> dict[str, Any]:
        """Return the facts for the history: ``seatings``, and the ``seconds`` of training."""
        if self._since is None:
            return {}
        return {"seatings": list(self._seatings), "seconds": self._end}
