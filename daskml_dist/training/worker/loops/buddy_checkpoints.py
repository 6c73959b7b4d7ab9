"""Images of what trainers have come to over their keys, each in two processes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.packing import pack_object, unpack_object
from daskml_dist.training.worker.loops.context import Context

__all__ = ["BuddyCheckpoint", "BuddyCheckpoints"]

Array = NDArray[Any]

#: Tells this process from all others, with its number: it may be a fork.
_PROCESS = int.from_bytes(os.urandom(6), "little")


@dataclass(frozen=True)
class BuddyCheckpoint:
    """Values of some lanes' keys at the end of an iteration.

    Parameters
    ----------
    n_iter : int
        0: nothing is known yet.
    values : dict of str to ndarray, or None
        By space, of a trainer's own lanes.
    small : ndarray of float64 or None
    reports : sequence of ndarray
        What was reported of each iteration up to there.
    """

    n_iter: int = 0
    values: dict[str, Array] | None = None
    small: NDArray[np.float64] | None = None
    reports: Sequence[Array] = ()


@dataclass
class _Kept:
    """An iteration, as a trainer remembers it: of its own lanes, and of another trainer's."""

    n_iter: int
    small: NDArray[np.float64] | None
    reports: list[Array]
    lanes: dict[int, dict[str, Array]] = field(default_factory=dict)


class BuddyCheckpoints:
    """The last two images that a trainer knows of.

    Every trainer has the one before the last until all have the last.

    Parameters
    ----------
    context : Context
    own : mapping of str to mapping of int to slice
        By space, where the values of each own lane's keys lie.
    """

    def __init__(self, context: Context, own: Mapping[str, Mapping[int, slice]]) -> None:
        self._communicator = context.communicator
        self._generation = context.generation
        self._n_lanes = len(context.lane_rows)
        self._own = own
        self._kept: list[_Kept] = context.memory.setdefault("images", [])
        own_process = np.array([_PROCESS, os.getpid()])
        processes = [tuple(p.tolist()) for (p,) in self._communicator.allgather([own_process])]
        #: Rank that keeps each rank's image too; its own where there is but one process.
        self._keeper = [_next_elsewhere(rank, processes) for rank in range(len(processes))]

    def keep(
        self, values: Mapping[str, Array], n_iter: int, small: Any, reports: list[Array]
    ) -> None:
        """Copy the own values, and give them to another process."""
        few = None if small is None else np.array(small, np.float64)
        kept = _Kept(n_iter, few, list(reports))
        for space, array in values.items():
            for lane, at in self._own[space].items():
                kept.lanes.setdefault(lane, {})[space] = array[at].copy()
        kept.lanes.update(self._mirrored(kept.lanes))
        self._kept[:] = [*self._kept[-1:], kept]

    def _mirrored(self, lanes: dict[int, dict[str, Array]]) -> dict[int, dict[str, Array]]:
        """Values of other trainers' lanes, having given the own to their keeper."""
        rank = self._communicator.rank
        if self._keeper[rank] == rank:
            return {}
        given = [np.empty(0, np.uint8) for _ in self._keeper]
        given[self._keeper[rank]] = _packed(lanes)
        found: dict[int, dict[str, Array]] = {}
        for packed in self._communicator.alltoall(given):
            if len(packed):
                found.update(_unpacked(packed))
        return found

    def agree(self) -> BuddyCheckpoint:
        """The last iteration that is known of all lanes, with the values of the own ones."""
        if not self._generation:
            self._kept.clear()
            return BuddyCheckpoint()
        n_iter, holders = self._best()
        self._kept[:] = [kept for kept in self._kept if kept.n_iter == n_iter]
        if not n_iter:
            return BuddyCheckpoint()
        kept = self._kept[0] if self._kept else None
        lanes = self._handed_out(kept, holders)
        few, reports = self._facts(kept, holders[min(holders)])
        # Whoever is lost next may be before another image: nothing known is forgotten until then.
        known = {} if kept is None else kept.lanes
        self._kept[:] = [_Kept(n_iter, few, reports, {**known, **lanes, **self._mirrored(lanes)})]
        values = {
            space: np.concatenate([lanes[lane][space] for lane in own])
            for space, own in self._own.items()
            if all(space in lanes[lane] for lane in own)
        }
        return BuddyCheckpoint(n_iter, values, few, reports)

    def _best(self) -> tuple[int, dict[int, int]]:
        """The latest iteration of which all lanes are known, 0 for none; a rank that has each."""
        own = np.array(
            [(kept.n_iter, lane) for kept in self._kept for lane in kept.lanes], np.int64
        ).reshape(-1, 2)
        found: dict[int, dict[int, int]] = {}
        for rank, (known,) in enumerate(self._communicator.allgather([own])):
            for n_iter, lane in known.tolist():
                found.setdefault(n_iter, {}).setdefault(lane, rank)
        whole = [n_iter for n_iter, lanes in found.items() if len(lanes) == self._n_lanes]
        best = max(whole, default=0)
        return best, found.get(best, {})

    def _handed_out(
        self, kept: _Kept | None, holders: dict[int, int]
    ) -> dict[int, dict[str, Array]]:
        """The values of the own lanes, of whoever has them."""
        communicator = self._communicator
        own = np.array([lane for at in self._own.values() for lane in at], np.int64)
        given = []
        for (lanes,) in communicator.allgather([np.unique(own)]):
            mine = [lane for lane in lanes.tolist() if holders[lane] == communicator.rank]
            given.append(_packed({lane: kept.lanes[lane] for lane in mine} if kept else {}))
        found: dict[int, dict[str, Array]] = {}
        for packed in communicator.alltoall(given):
            found.update(_unpacked(packed))
        return found

    def _facts(self, kept: _Kept | None, holder: int) -> tuple[Any, list[Array]]:
        """Facts that are the same in all trainers, of one that knows them."""
        own: list[Array] = []
        if self._communicator.rank == holder:
            assert kept is not None
            facts = [kept.small, np.array(kept.reports)]
            own = [np.frombuffer(pack_object(facts, {}), np.uint8)]
        (packed,) = self._communicator.allgather(own)[holder]
        few, reports = unpack_object(packed, {})
        return few, list(reports)


def _next_elsewhere(rank: int, processes: Sequence[tuple[int, ...]]) -> int:
    """The next rank in another process: one that runs several trainers is lost with all of them."""
    others = (r % len(processes) for r in range(rank + 1, rank + len(processes)))
    return next((other for other in others if processes[other] != processes[rank]), rank)


def _packed(lanes: dict[int, dict[str, Array]]) -> NDArray[np.uint8]:
    facts = [[lane, dict(values)] for lane, values in lanes.items()]
    return np.frombuffer(pack_object(facts, {}), np.uint8)


def _unpacked(packed: NDArray[np.uint8]) -> dict[int, dict[str, Array]]:
    return {lane: dict(values) for lane, values in unpack_object(packed, {})}
